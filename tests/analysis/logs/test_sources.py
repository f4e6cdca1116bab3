"""Runs out of directories and committed frames: fragments merged, files read once, cells filled under new ids."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.logs import committed, manifests, sources
from analysis.logs.fragments import Fragment
from analysis.logs.frames import Frames, merge
from analysis.logs.history import History
from analysis.logs.run_file import LogError, history_table
from analysis.logs.sources import load
from analysis.select.cells import fill, notes
from tests.analysis.make_logs import config, cut_copy, history, predictions, summary, write_run

ENDED = {"run/status": "finished"}


def test_runs_and_history(quickstart, tmp_path):
    frames = load([quickstart], tmp_path / "cache")
    runs = frames.runs.set_index("run_id")
    assert list(runs.index) == ["bszo-3", "bszo-4", "mezo-1", "mezo-4", "mezo-5", "zero"]
    mezo = runs.loc["mezo-4"]
    seen = mezo[["group", "status", "fragments", "torn"]].tolist()
    assert seen == ["quickstart", "finished", 1, False]
    assert (mezo["optimizer.name"], mezo["lr"], mezo["seed"]) == ("mezo", 1e-4, 0)
    assert mezo["task.label_words"] == '["terrible", "great"]'
    assert mezo["best/test_accuracy"] == 0.85
    assert mezo["best/test_predictions"] == predictions(17)
    assert mezo["git_revisions"] == "1489d1e0000000000000000000000000000000ab"
    assert runs.loc["mezo-1", "status"] == "collapsed"
    rows = frames.history.one("mezo-4")
    assert list(rows.columns[:2]) == ["run_id", "step"]
    assert list(rows["eval/val_accuracy"].dropna()) == [0.5, 0.6, 0.75, 0.7, 0.75]
    assert frames.unidentified == ()


def test_later_fragment_wins_per_step(tmp_path):
    """A run killed at step 12, its file torn, continued from step 10 by another revision."""
    first = [*history(2, [0.5, 0.6], seed=1), {"step": 11, "train/loss": 9.0}]
    path = write_run(tmp_path / "first", "r", config("mezo", 1e-4), first, {})
    out = tmp_path / "out"
    cut_copy(path, out, path.stat().st_size - 30)  # inside the exit record
    second = [{"step": 10, "train/loss": 0.1}, {"step": 12, "train/loss": 0.2}]
    settings = config("mezo", 1e-4, provenance={"git_revision": "fff"})
    write_run(out, "r", settings, second, summary(2, [0.5, 0.6], 12))
    frames = load([out], tmp_path / "cache")
    (run,) = frames.runs.to_dict("records")
    assert (run["fragments"], run["torn"], run["status"]) == (2, True, "finished")
    assert run["git_revisions"] == "1489d1e0000000000000000000000000000000ab fff"
    rows = frames.history.one("r").set_index("step")
    assert list(rows.index) == list(range(13))
    assert rows.loc[9:, "train/loss"].tolist() == [first[9]["train/loss"], 0.1, 9.0, 0.2]


def evaluated(runs: str, last: float, accuracy: float = 0.734) -> Frames:
    """Runs of two evaluations, of which the second has this loss, and of this accuracy on the test examples."""
    losses = pd.DataFrame({"step": [1, 2], committed.LOSS: [0.7, last]})
    rows = pd.DataFrame({"run_id": [*runs]}).merge(losses, how="cross")
    result = {"group": "s", "status": "finished", "best/step": 2.0, "best/test_accuracy": accuracy}
    frame = pd.DataFrame({"run_id": [*runs]}).assign(**result)
    return Frames(frame, History.of_frame(rows), ())


@pytest.mark.parametrize(
    ("again", "said"),
    [
        (evaluated("b", 0.5), "losses, best steps and test accuracies are equal."),
        (evaluated("b", 0.5008), "these differ: b (losses by 8.0e-04 nats)."),
        (evaluated("b", 0.5, 0.74), "differ: b (test accuracy 73.40%, now 74.00%)."),
    ],
)
def test_a_run_that_replaces_a_recorded_one_is_named_where_it_differs(again, said):
    both = committed.merge([again, evaluated("ab", 0.5)])
    frames = committed.merge([both])  # which keeps what was replaced
    assert [*frames.replaced] == ["b"]
    cells = pd.DataFrame({"sweep": "s", "run_id": ["a", "b"], "status": "finished"})
    (note,) = notes(cells, frames)
    assert note.startswith("Runs made again, in the place of recorded ones: 1; ")
    assert note.endswith(said)


@pytest.mark.parametrize("order", [1, -1])
def test_a_recorded_end_counts_before_an_attempt_without_one(order):
    begun = evaluated("ab", 0.9)
    begun.runs["status"] = ["unfinished", "finished"]
    frames = committed.merge([begun, evaluated("a", 0.5)][::order])
    assert frames.runs["status"].tolist() == ["finished", "finished"]
    last = [frames.history.one(run)[committed.LOSS].iloc[-1] for run in "ab"]
    assert (last, [*frames.replaced]) == ([0.5, 0.9], [])


def fragment(place: str, losses: dict[int, float] | None = None, **more: Any) -> Fragment:
    rows = [{"_step": step, "train/loss": loss} for step, loss in (losses or {}).items()]
    known = {"identified": True, "summary": ENDED, "history": history_table(rows)}
    return Fragment(place, "r", **known | more)


HERE = fragment("run-1/run-r.wandb", {1: 1.0, 2: 2.0})
THERE = fragment("entity/project/r", {2: 9.0, 3: 3.0}, is_copy=True)
KILLED = replace(HERE, summary={})
ATTEMPTS = [
    {"config": {"provenance.attempts": [{}] * i}, "started": 100.0 - 60 * i} for i in (1, 2)
]
LOSSES = [{"summary": ENDED | {"eval/val_loss": loss}} for loss in (0.5, 0.51, 0.500001)]
AGAIN = fragment("run-2/run-r.wandb", {1: 5.0}, summary={"run/status": "failed"}, started=9.0)
ACCURACIES = [{"summary": ENDED | {"best/test_accuracy": accuracy}} for accuracy in (0.8, 0.9, 0.9)]
ANEW = [
    {"wandb_id": name, "started": float(i)} for i, name in enumerate(("r", "r-20260131T120000"))
]


@pytest.mark.parametrize(
    ("fragments", "losses", "count", "duplicates"),
    [
        pytest.param([HERE, THERE], [1, 2, 3], 2, 0, id="a run file before W&B's copy"),
        pytest.param([KILLED, THERE], [1, 9, 3], 2, 0, id="which has the end, if the file has not"),
        pytest.param(
            [replace(KILLED, **ATTEMPTS[0]), fragment("run-2/run-r.wandb", {1: 5.0}, **ATTEMPTS[1])],
            [5, 2], 2, 0, id="a later attempt though its clock is behind",
        ),
        pytest.param([fragment(f"run-{i}/run-r.wandb", **more) for i, more in enumerate(ACCURACIES)], [], 3, 3,
            id="several results"),
        pytest.param([fragment(f"run-{i}/run-r.wandb", **ACCURACIES[i]) for i in (1, 2)], [], 2, 0,
            id="the same result twice"),
        pytest.param([fragment(f"run-{i}/run-r.wandb", **LOSSES[i]) for i in (0, 1)], [], 2, 2,
            id="several losses"),
        pytest.param([fragment(f"run-{i}/run-r.wandb", **LOSSES[i]) for i in (0, 2)], [], 2, 0,
            id="a loss rounded otherwise"),
        pytest.param([fragment("run-2/run-r.wandb", {1: 5.0}, **ANEW[1]), replace(HERE, **ANEW[0])], [5], 1, 0,
            id="made anew, the newest beginning"),
        pytest.param([AGAIN, HERE], [1, 2], 2, 0, id="an end before a later attempt without one"),
        pytest.param([replace(AGAIN, wandb_id="r-2"), replace(HERE, wandb_id="r")], [1, 2], 1, 0,
            id="an end before a new beginning without one"),
    ],
)  # fmt: skip
def test_of_several_fragments_of_a_run_the_right_one_counts(fragments, losses, count, duplicates):
    frames = merge(fragments)
    (run,) = frames.runs.to_dict("records")
    assert frames.history.one("r").get("train/loss", pd.Series()).tolist() == losses
    assert (run["status"], run["fragments"], run["duplicates"]) == ("finished", count, duplicates)


def test_a_run_that_ended_without_a_whole_file_is_named(tmp_path, capsys):
    ended = {"mezo-1": "finished", "mezo-2": "interrupted", "mezo-3": "collapsed"}
    for name, status in ended.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "status.json").write_text(json.dumps({"run/status": status}))
    write_run(tmp_path, "mezo-3", config("mezo", 1e-4), history(2, [0.5]), {})  # was not ended
    load([tmp_path], tmp_path / "cache")
    command = f"zo log {tmp_path / 'mezo-1'} {tmp_path / 'mezo-3'}"
    assert command in capsys.readouterr().err
    write_run(tmp_path, "mezo-3", config("mezo", 1e-4), history(2, [0.5]), ENDED)
    shutil.copytree(tmp_path / "mezo-3", tmp_path / "a copy")
    load([tmp_path], tmp_path / "cache")
    said = capsys.readouterr().err
    assert "1 runs that have ended have no whole W&B file" in said
    assert "mezo-3" not in said
    assert "a copy" not in said


def test_only_changed_files_are_read_again(logs, tmp_path, monkeypatch):
    read: list[str] = []
    of_file = sources.read_run_file
    monkeypatch.setattr(
        sources, "read_run_file", lambda at: read.append(Path(at).name) or of_file(at)
    )
    fresh = load([logs], tmp_path / "cache")
    for _ in ("read and kept", "kept"):
        frames = load([logs], tmp_path / "kept")
        pd.testing.assert_frame_equal(frames.runs, fresh.runs)
        for run_id in fresh.history.rows:
            kept, wanted = (one.history.one(run_id) for one in (frames, fresh))
            pd.testing.assert_frame_equal(kept, wanted)
    assert len(read) == 2 * len(fresh.runs)
    (path,) = logs.glob("zero/wandb/offline-run-*/run-zero.wandb")
    path.write_bytes(path.read_bytes()[:-20])
    shutil.rmtree(logs / "mezo-1")
    runs = load([logs], tmp_path / "kept").runs.set_index("run_id")
    assert read[2 * len(fresh.runs) :] == ["run-zero.wandb"]
    assert runs.loc["zero", "torn"]
    assert "mezo-1" not in runs.index


def test_committed_runs_have_their_cells_and_evaluations_beside_them(quickstart, tmp_path):
    frames = load([quickstart], tmp_path / "cache")
    run_id = frames.runs.loc[frames.runs["status"] == "finished", "run_id"].iloc[-1]
    cell = dict.fromkeys(("sweep", "model", "task", "optimizer", "precision"), "a")
    cell |= {"run_id": run_id, "variant": {"optimizer.k": 2}, "seed": 0, "lr": 1e-3, "steps": 3}
    frames.runs.to_parquet(tmp_path / "runs.parquet")
    rows = frames.history.one(run_id, ["eval/val_accuracy"]).dropna()
    rows.to_parquet(tmp_path / committed.EVALUATED)
    manifests.write([cell, cell | {"run_id": "gone", "lr": 1e-4}], tmp_path / committed.CELLS)
    again = load([tmp_path / "runs.parquet"], tmp_path / "cache")
    kept = again.history.one(run_id, ["eval/val_accuracy"])
    assert kept["eval/val_accuracy"].tolist() == rows["eval/val_accuracy"].tolist()
    filled = fill(again.cells_of(["a"]), again.runs).set_index("run_id")
    assert filled["status"].to_dict() == {run_id: "finished", "gone": "missing"}
    assert filled["k"].tolist() == [2, 2]


def test_another_file_is_refused(tmp_path):
    (tmp_path / "a.parquet").write_text("no parquet")
    with pytest.raises(LogError, match=r"a.parquet"):
        load([tmp_path / "a.parquet"], tmp_path)
