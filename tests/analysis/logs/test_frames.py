import math
from pathlib import Path

from analysis.logs.sources import load
from tests.analysis.make_logs import config, cut_copy, history, predictions, summary, write_run


def test_runs_and_history(quickstart: Path) -> None:
    frames = load([quickstart], cache_dir=None)
    runs = frames.runs.set_index("run_id")
    assert list(runs.index) == ["bszo-3", "bszo-4", "mezo-1", "mezo-4", "mezo-5", "zero"]
    mezo = runs.loc["mezo-4"]
    assert (mezo["group"], mezo["status"], mezo["fragments"], mezo["torn"]) == (
        *("quickstart", "finished", 1),
        False,
    )
    assert (mezo["optimizer.name"], mezo["lr"], mezo["seed"]) == ("mezo", 1e-4, 0)
    assert mezo["task.label_words"] == '["terrible", "great"]'
    assert mezo["best/test_accuracy"] == 0.85
    assert mezo["best/test_predictions"] == predictions(17)
    assert mezo["git_revisions"] == "1489d1e0000000000000000000000000000000ab"
    assert runs.loc["mezo-1", "status"] == "collapsed"
    rows = frames.history.one("mezo-4")
    assert list(rows.columns[:2]) == ["run_id", "step"]
    assert list(rows["step"]) == list(range(41))
    assert list(rows["eval/val_accuracy"].dropna()) == [0.5, 0.6, 0.75, 0.7, 0.75]
    assert math.isnan(rows["train/loss"].iloc[0])
    assert list(rows["train/forwards"])[1:] == [2.0 * step for step in range(1, 41)]
    assert frames.unidentified == ()


def test_later_fragment_wins_per_step(tmp_path: Path) -> None:
    """A run killed at step 12, its file torn, continued from step 10 by another revision."""
    first = [*history(2, [0.5, 0.6], seed=1), {"step": 11, "train/loss": 9.0}]
    path = write_run(tmp_path / "first", "r", config("mezo", 1e-4), first, {})
    out = tmp_path / "out"
    cut_copy(path, out, path.stat().st_size - 30)  # inside the exit record
    second = [{"step": 10, "train/loss": 0.1}, {"step": 12, "train/loss": 0.2}]
    provenance = {"git_revision": "fff"}
    write_run(
        *(out, "r", config("mezo", 1e-4, provenance=provenance)), second, summary(2, [0.5, 0.6], 12)
    )
    frames = load([out], cache_dir=None)
    (run,) = frames.runs.to_dict("records")
    assert (run["fragments"], run["torn"], run["status"]) == (2, True, "finished")
    assert run["git_revisions"] == "1489d1e0000000000000000000000000000000ab fff"
    rows = frames.history.one("r").set_index("step")
    assert list(rows.index) == list(range(13))
    assert rows.loc[10, "train/loss"] == 0.1
    assert rows.loc[12, "train/loss"] == 0.2
    assert rows.loc[11, "train/loss"] == 9.0
    assert rows.loc[9, "train/loss"] == first[9]["train/loss"]
