"""Runs that train the last block alone: what is computed once, what is said of it, and that no number changes."""

import json
import re

import pytest

from zo import config
from zo.config import command_line
from zo.run import runner
from zo.run.assembly import Session
from zo.run.reuse import begin_reuse
from zo.run.runner import run
from zo.run.store.directory import directory_of
from zo.run.store.rows import read_rows

LAST = ("adapter=layers", "adapter.layers=last:1")


def losses_of(cfg):
    return [row["train/losses"] for row in read_rows(directory_of(cfg))]


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer=mezo",),
        ("optimizer=bszo", "precision.restore=streamed", "distributed.shards=2"),
        ("optimizer=mezo", "objective=metric", "lr=1e-2"),
    ],
)
def test_a_run_has_the_losses_of_one_that_computes_all_blocks(make_run, monkeypatch, overrides):
    cfg = make_run(*LAST, *overrides)
    run(cfg)
    monkeypatch.setattr(runner, "begin_reuse", lambda *_: None)
    plain = make_run(*LAST, *overrides, f"out={cfg.out}2")
    run(plain)
    assert losses_of(cfg) == losses_of(plain)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            (*LAST, "optimizer=mezo"),
            r"computed once per mini-batch: blocks 0 to \d+ of model\.decoder\.layers",
        ),
        (
            (*LAST, "optimizer=lozo", "precision.restore=factors"),
            ".*factors measures all points in one forward pass",
        ),
        (("adapter=lora", "optimizer=mezo"), None),
        (("optimizer=mezo",), None),
        ((*LAST, "optimizer=sgd"), None),
    ],
)
def test_what_is_computed_once_is_said(make_run, overrides, said):
    cfg = make_run(*overrides)
    line = begin_reuse(cfg, Session.open(cfg))
    assert line == said or re.fullmatch(f"frozen blocks: {said}.*", line), line


def test_a_loss_of_generated_texts_is_left_alone(tmp_path):
    path = tmp_path / "own.jsonl"
    lines = [{"prompt": f"a film {i}", "completion": " good"} for i in range(24)]
    path.write_text("".join(json.dumps(of) + "\n" for of in lines))
    config.register()
    task = ("task=completion", f"task.path={path}", "objective=generation", "task.max_new_tokens=2")
    small = ("model=reviews-tiny", "optimizer=mezo", f"out={tmp_path}", "tracking.mode=disabled")
    (cfg,) = command_line.runs([*LAST, *task, *small, "steps=2", "batch_size=4"])
    session = Session.open(cfg)
    line = begin_reuse(cfg, session)
    assert "the texts that a step generates are continued" in line
