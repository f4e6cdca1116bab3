"""How far weights go from their start: the pull back, its measure, and a task that they should not forget."""

import math
from collections import Counter

import pytest
import torch

import zo
from tests.support.runs import rows_once_run
from tests.support.tiny_models import opt
from tests.support.tiny_runs import TinyRun
from zo.lm import initial_weights
from zo.lm.config import ModelConfig
from zo.run.store.directory import directory_of
from zo.weights import anchor
from zo.weights.anchor import Drift
from zo.weights.space import ParameterSpace

PULLED = ("optimizer=mezo", "optimizer.anchor=start", "optimizer.anchor_decay=1e3")


@pytest.mark.process
def test_weights_of_the_start_are_read_from_the_models_files_where_a_copy_is_large(
    make_run, monkeypatch, tmp_path
):
    """The run has the same bits; its distance from the start is smaller than without a pull."""
    free = rows_once_run(make_run("optimizer=mezo"))
    copied = rows_once_run(make_run(*PULLED))
    monkeypatch.setattr(initial_weights, "HOST_SHARE", 0.0)
    reads, found = Counter(), initial_weights.rereads

    def counted(*given):
        pairs = found(*given).items()
        return {i: lambda i=i, read=read: reads.update([i]) or read() for i, read in pairs}

    monkeypatch.setattr(initial_weights, "rereads", counted)
    again = rows_once_run(make_run(*PULLED, f"out={tmp_path / 'again'}"))
    assert {*reads.values()} == {4}, "once at each of 4 steps"
    assert [row.get("train/losses") for row in again] == [row.get("train/losses") for row in copied]
    for of_free, of_copied in ((free[1], copied[1]), (free[3], copied[3])):
        assert 0 < of_copied["eval/drift"] < of_free["eval/drift"]


def test_tensors_that_no_file_has_with_the_same_bits_are_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(initial_weights, "HOST_SHARE", 0.0)
    model = opt()
    model.save_pretrained(tmp_path)
    params = ParameterSpace.of(model)
    params.local[3].add_(1.0)
    cfg = ModelConfig(name="tiny", path=str(tmp_path))
    found = initial_weights.rereads(cfg, params.names, params.local)
    assert found.keys() == {*range(len(params.local))} - {3}
    assert all(torch.equal(read(), params.local[i]) for i, read in found.items())
    random = ModelConfig(name="t", weights="random")
    assert not initial_weights.rereads(random, params.names, params.local)


@pytest.mark.parametrize(("restore", "method"), [("merged", "mezo"), ("factors", "lozo")])
@pytest.mark.parametrize("entries", [2**14, 64])
def test_drift_is_the_distance_from_the_start_or_close_to_it(restore, method, entries, monkeypatch):
    """Factors beside the weights count, too."""
    monkeypatch.setattr(anchor, "ENTRIES", entries)
    trial = TinyRun(opt(), method, restore, lr=1e-2)
    distance, was = Drift(trial.params), trial.weights()
    assert math.fsum(distance.squares()) == 0
    trial.steps(4)
    found = math.sqrt(math.fsum(distance.squares()))
    if restore == "factors":
        trial.params.policy.merge_factors()
    pairs = zip(trial.weights(), was, strict=True)
    exact = math.sqrt(sum(float((p - q).double().square().sum()) for p, q in pairs))
    assert found == pytest.approx(exact, rel=1e-5 if entries > 64 else 0.1)


def test_a_state_of_another_start_and_factors_are_refused():
    model, later = (torch.nn.Linear(4, 2) for _ in range(2))
    pull = {"lr": 1e-3, "anchor": "start", "anchor_decay": 1.0}
    state = zo.MeZO(model, **pull).state_dict()
    zo.MeZO(model, **pull).load_state_dict(state)
    with pytest.raises(ValueError, match=r"^state:"):
        zo.MeZO(later, **pull).load_state_dict(state)
    with pytest.raises(ValueError, match=r"^restore='factors'"):
        zo.TeZO(model, restore="factors", **pull)


def test_another_task_is_scored_at_each_evaluation_and_is_part_of_the_run(make_run, reviews_csv):
    """The same examples have the score of the run's own validation."""
    sizes = "train_size: 64, validation_size: 32, test_size: 48, max_length: 32"
    also = f"{{name: rotten_tomatoes, data_files: {{train: {reviews_csv}}}, {sizes}}}"
    cfg, plain = make_run("optimizer=mezo", f"task.also={also}"), make_run("optimizer=mezo")
    rows, without = rows_once_run(cfg), rows_once_run(plain)
    assert directory_of(cfg) != directory_of(plain)
    for row, other in zip(rows, without, strict=True):
        assert row["train/losses"] == other["train/losses"]
        assert row.get("eval/also_accuracy") == row.get("eval/val_accuracy")
        assert row.get("eval/also_loss") == row.get("eval/val_loss")
    assert "eval/also_accuracy" in rows[1]


def test_what_rounding_leaves_of_a_step_is_logged_and_said_once(make_run, capsys):
    rows = rows_once_run(make_run("optimizer=mezo", "precision=bf16", "lr=1e-6"))
    assert [row.get("optim/survives") is not None for row in rows] == [False, True, False, True]
    said = capsys.readouterr().out
    assert said.count("of the step is left after rounding to torch.bfloat16") == 1
    assert said.count("was compared with weights displaced by hand") == 1
    assert all(row["optim/survives"] < 0.5 for row in rows[1::2])
    whole = rows_once_run(make_run("optimizer=mezo"))
    assert not any("optim/survives" in row for row in whole)
