"""Runs on pairs of answers: an order is learned, and the reference is that of the first start, wherever a run stops."""

import csv
import json
from pathlib import Path

import pytest

from tests.support.runs import composed, rows_of, rows_once_run, stopped_after
from tests.support.victims import exit_statuses, what_it_came_to
from zo.lm.scoring.preferences import PreferenceScorer
from zo.run.results.export import export
from zo.run.results.predict import predict
from zo.run.runner import run
from zo.run.store import atomic
from zo.run.store.directory import REFERENCE, InputsError, directory_of, freeze

PAIRS = Path(__file__).parents[2] / "examples" / "preferences.jsonl"
SMALL = ("task=preference", f"task.path={PAIRS}", "steps=4", "eval_every=2", "threads=1")
SMALL += ("optimizer=mezo", "lr=1e-3", "batch_size=4", "device=cpu", "task.train_size=12")
SMALL += ("task.validation_size=6", "task.test_size=6")


@pytest.mark.process  # seconds
@pytest.mark.parametrize("objective", ["dpo", "simpo"])
def test_a_run_learns_which_answers_are_preferred(objective, tmp_path):
    """On pairs whose texts it has not seen; DPO's untrained model prefers nothing."""
    sizes = ("task.train_size=null", "task.validation_size=null", "steps=60", "eval_every=60")
    start = ("steps=0",) if objective == "dpo" else ("steps=1", "lr=1e-9", "eval_every=1")
    given = (*SMALL, *sizes, f"objective={objective}", "batch_size=16")
    (before,) = rows_once_run(composed(tmp_path, *given, *start))
    after = rows_once_run(composed(tmp_path, *given))[-1]
    assert after["eval/val_accuracy"] >= 0.9 > before["eval/val_accuracy"]
    assert after["eval/val_margin"] > before["eval/val_margin"] + 0.1
    assert after["eval/val_loss"] < before["eval/val_loss"]
    texts = [json.loads(line) for line in PAIRS.read_text().splitlines()]
    for key in ("prompt", "chosen", "rejected"):
        assert len({row[key] for row in texts}) == len(texts)


SETTINGS = ["precision.restore=merged", "precision.restore=streamed model.offload=disk"]
MORE = [
    "adapter=lora lr=1e-2 precision=bf16",
    "adapter=layers adapter.layers=last:1",
    "optimizer=lozo precision.restore=factors",
    "optimizer=adam lr=1e-4",
    "objective=simpo",
    "checkpoint.full_every=2",
]


@pytest.mark.parametrize(
    "settings", [*SETTINGS, *(pytest.param(of, marks=pytest.mark.process) for of in MORE)]
)
def test_an_interrupted_run_takes_the_stored_reference_and_ends_as_the_other(
    settings, tmp_path, monkeypatch
):
    """At weights that a replay or a checkpoint moves, the reference is neither computed nor another one."""
    one, other = (composed(tmp_path / name, *SMALL, *settings.split()) for name in ("a", "b"))
    run(one)
    first = rows_of(one)[0]["train/loss"]
    assert "simpo" in settings or first == pytest.approx(0.693147, abs=0.02)
    with stopped_after(3):
        run(other)
    stored = directory_of(other) / REFERENCE
    if "simpo" in settings:
        assert not stored.exists()
    else:
        assert stored.read_bytes() == (directory_of(one) / REFERENCE).read_bytes()
    monkeypatch.delattr(PreferenceScorer, "log_probabilities")
    run(other)
    assert what_it_came_to(directory_of(other)) == what_it_came_to(directory_of(one))


def test_a_lost_reference_is_computed_anew_and_another_one_is_refused(tmp_path):
    cfg, twin = (composed(tmp_path / name, *SMALL) for name in ("a", "b"))
    run(twin)
    path = directory_of(cfg) / REFERENCE
    for content in (None, b"torn"):
        with stopped_after(1):
            run(cfg)
        path.unlink() if content is None else path.write_bytes(content)
    other = atomic.unseal((directory_of(twin) / REFERENCE).read_bytes())
    other["train"][0][0] += 1
    path.write_bytes(atomic.seal(other))
    with pytest.raises(InputsError, match="reference"):
        run(cfg)
    path.unlink()
    run(cfg)
    assert what_it_came_to(directory_of(cfg)) == what_it_came_to(directory_of(twin))


def test_predictions_of_pairs_are_a_table_and_an_export_orders_new_ones(tmp_path):
    cfg = composed(tmp_path / "out", *SMALL, "lr=1e-2")
    run(cfg)
    with (directory_of(cfg) / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert {row["label"] for row in rows} == {"chosen"}
    assert {"prompt", "chosen", "rejected"} < rows[0].keys()
    export(directory_of(cfg), "best", tmp_path / "weights")
    for source in (directory_of(cfg), tmp_path / "weights"):
        text, said = predict(source, PAIRS)
        assert text.splitlines()[0].startswith("row,prompt,chosen,rejected,label,predicted")
        assert "without the reference" in said[0]
        assert said[1].endswith("of 160 rows")


@pytest.mark.process
def test_two_processes_have_the_bits_of_one(tmp_path):
    given = (*SMALL, "optimizer.n=1", "distributed.shards=2", "distributed.timeout=60")
    one, two = (composed(tmp_path / name, *given) for name in ("a", "b"))
    run(one)
    directory = freeze(two)
    assert exit_statuses(directory, 2) == [0, 0], (directory / "log.txt").read_text()
    assert what_it_came_to(directory) == what_it_came_to(directory_of(one))
