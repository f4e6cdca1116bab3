"""Runs that train the last block alone: what is computed once, what is said of it, and that no number changes."""

import json
import re

import pytest

from tests.support.runs import composed, rows_of, rows_once_run
from zo.config import identity
from zo.lm.scoring.states import KeptStates
from zo.run import reuse
from zo.run.assembly import Session
from zo.run.command import Shared
from zo.run.reuse import begin_reuse
from zo.run.runner import run

LAST = ("adapter=layers", "adapter.layers=last:1")
GIB = "precision.prefix_cache_gib"


def losses_once_run(cfg):
    return [row["train/losses"] for row in rows_once_run(cfg)]


MORE = ("optimizer=mezo", "optimizer=mezo objective=metric lr=1e-2")


@pytest.mark.parametrize(
    "overrides",
    [
        "optimizer=bszo precision.restore=streamed distributed.shards=2",
        *(pytest.param(of, marks=pytest.mark.process) for of in MORE),
    ],
)
def test_a_run_has_the_losses_of_one_that_computes_all_blocks(
    make_run, monkeypatch, tmp_path, overrides
):
    """The same bits where blocks are computed once per mini-batch; where states are kept, but for rounding."""
    cfgs = [
        make_run(*LAST, *overrides.split(), "steps=2", f"{GIB}={gib}", f"out={tmp_path / out}")
        for gib, out in ((1, "kept"), (0, "once"), (0, "plain"))
    ]
    kept, once = map(losses_once_run, cfgs[:2])
    monkeypatch.setattr(reuse, "begin_reuse", lambda *_: None)
    plain = losses_once_run(cfgs[2])
    assert once == plain
    for found, expected in zip(kept, plain, strict=True):
        assert found == pytest.approx(expected, abs=1e-5)


MEZO, FACTORS = "optimizer=mezo", ("optimizer=lozo", "precision.restore=factors")
WITH_INPUT = ("adapter=layers", r'adapter.pattern="embed_tokens|layers\.[1-9]"', MEZO)
KEPT = rf"kept per example: train, validation, test, 0\.\d+ GiB \({GIB}=1\)"
SOME = rf"kept per example: train, 0\.00\d+ GiB \({GIB}=0.0006\); not kept: validation takes 0\.00\d+ GiB, "
EVERY = "all blocks are computed for every probe"
ONCE = r"computed once per mini-batch: blocks 0 to \d+ of model\.decoder\.layers; "
SAID = [
    ((*LAST, MEZO), KEPT),
    ((*LAST, *FACTORS), KEPT),
    ((*LAST, "optimizer=sgd"), KEPT),
    ((*LAST, MEZO, f"{GIB}=0.0006"), rf"{SOME}test takes 0\.00\d+ GiB"),
    ((*LAST, MEZO, f"{GIB}=1e-6"), rf"{ONCE}not kept: train takes 0.00\d+ GiB, .* \({GIB}=1e-06\)"),
    ((*LAST, MEZO, f"{GIB}=0"), f"{ONCE}nothing is kept per example: {GIB}=0"),
    ((*LAST, *FACTORS, f"{GIB}=0"), f"{EVERY}: {FACTORS[1]} measures all points in one forward pass; nothing .*"),
    (WITH_INPUT, f"{EVERY}: the input of model.decoder.layers depends on trained weights"),
    (("adapter=lora", MEZO), None),
    ((MEZO,), None),
    ((*LAST, "optimizer=zero_shot", "steps=0"), None),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "said"), SAID)
def test_what_is_kept_or_computed_once_is_said(make_run, overrides, said):
    cfg = make_run(*overrides)
    line = begin_reuse(cfg, Session.open(cfg))
    assert line == said or re.fullmatch(f"frozen blocks: {said}", line), line


def test_the_budget_is_part_of_a_run_whose_blocks_are_frozen_alone(make_run):
    """Which split is kept decides the last bits of its losses."""
    none, most = f"{GIB}=0", f"{GIB}=1"
    choices = (LAST, (*LAST, most), (*LAST, none), (), (none,))
    ids = [identity.run_id(make_run("optimizer=mezo", *choice)) for choice in choices]
    assert ids[0] == ids[1] != ids[2]
    assert ids[3] == ids[4]


def test_a_loss_of_generated_texts_is_left_alone(tmp_path):
    path = tmp_path / "own.jsonl"
    lines = [{"prompt": f"a film {i}", "completion": " good"} for i in range(24)]
    path.write_text("".join(json.dumps(of) + "\n" for of in lines))
    task = ("task=completion", f"task.path={path}", "objective=generation", "task.max_new_tokens=2")
    small = ("model=reviews-tiny", "optimizer=mezo", "steps=2", "batch_size=4")
    cfg = composed(tmp_path, *LAST, *task, *small)
    line = begin_reuse(cfg, Session.open(cfg))
    assert "the texts that a step generates are continued" in line


@pytest.mark.process
def test_runs_of_a_multirun_share_what_is_kept(make_run, monkeypatch, tmp_path):
    """The second run computes no example's states again, and has the numbers that it has alone."""
    computed, put, shared = [], KeptStates.put, Shared()
    monkeypatch.setattr(KeptStates, "put", lambda *given: (computed.append(1), put(*given)))
    second = [make_run(*LAST, "optimizer=mezo", "seed=1", f"out={tmp_path / n}") for n in "ab"]
    run(make_run(*LAST, "optimizer=mezo", f"out={tmp_path / 'a'}"), shared=shared)
    first = len(computed)
    run(second[0], shared=shared)
    assert len(computed) - first < first / 2  # examples of mini-batches that the first run had not
    run(second[1])
    alone, beside = ([row["train/losses"] for row in rows_of(cfg)] for cfg in second[::-1])
    assert alone == beside
    before = len(computed)
    run(make_run(*LAST, "optimizer=mezo", "model.weights=random", "seed=2"), shared=shared)
    assert len(computed) > before + first / 2  # of other weights
