"""Tracking: W&B's offline file holds what metrics.jsonl holds, and losing W&B loses nothing."""

import wandb

from analysis.logs import run_file
from zo.config import TrackingConfig
from zo.run.directory import directory_of
from zo.run.rows import read_rows
from zo.run.runner import run
from zo.run.tracking import RunLog


def open_log(directory, mode="offline", rows=()):
    directory.mkdir(exist_ok=True)
    return RunLog(
        directory,
        rows,
        run_id="mezo-0123456789ab",
        name="mezo",
        config={"lr": 1e-6, "optimizer": {"name": "mezo"}},
        tracking=TrackingConfig(mode=mode, group="quickstart"),
    )


def logged_in(directory):
    """Returns what the only offline file in a run's directory holds."""
    wandb.teardown()  # finish() alone does not wait for the file
    (file,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    return run_file.read_run_file(file)


def test_wandb_offline_file_equals_metrics_jsonl(make_run):
    cfg = make_run("optimizer=bszo", "tracking.mode=offline", "tracking.group=quickstart")
    summary = run(cfg)
    directory = directory_of(cfg)
    logged = logged_in(directory)
    rows = read_rows(directory)
    assert len(logged.history) == len(rows) == 4
    for row, seen in zip(rows, logged.history.to_pylist(), strict=True):
        sent = {k: v for k, v in row.items() if not k.startswith(("best/", "train/losses"))}
        assert {k: v for k, v in seen.items() if v == v} == sent
    assert logged.group == "quickstart"
    assert logged.config["optimizer.name"] == "bszo"
    assert logged.config["provenance.parameters"] > 1e6
    del summary["mem/peak_gib"]  # W&B's is the last row's, and saving may take a page more
    assert {k: logged.summary[k] for k in summary} == summary


def test_losing_wandb_is_said_once_and_loses_nothing(tmp_path, capsys):
    log = open_log(tmp_path / "run")
    log.write(1, {"train/loss": 0.5})
    lost = log._wandb
    lost.log = lambda *_, **__: (_ for _ in ()).throw(ConnectionResetError("lost"))
    log.write(2, {"train/loss": 0.25})
    log.write(3, {"train/loss": 0.125})
    lost.finish(exit_code=1)
    log.finish({"run/status": "finished"})
    logged = logged_in(tmp_path / "run")
    assert capsys.readouterr().err.count("W&B logging stopped (ConnectionResetError") == 1
    assert [row["train/loss"] for row in read_rows(tmp_path / "run")] == [0.5, 0.25, 0.125]
    assert logged.history["train/loss"].to_pylist() == [0.5, 0.25, 0.125], "written once more"
    assert logged.summary["run/status"] == "finished"


ROWS = [{"step": step, "train/loss": 1 / step} for step in range(1, 6)]


def test_after_a_kill_the_offline_files_hold_every_step_once(tmp_path):
    """The killed attempt's file is written anew, from metrics.jsonl, with the steps that stay."""
    directory = tmp_path / "run"
    killed = open_log(directory)
    for row in ROWS:
        killed.write(row["step"], {"train/loss": row["train/loss"]})
    killed.abandon()
    log = open_log(directory, rows=ROWS[:3])  # steps 4 and 5 are made again
    for row in ROWS[3:]:
        log.write(row["step"], {"train/loss": row["train/loss"]})
    log.finish({"run/status": "finished"})
    logged = logged_in(directory)
    assert logged.history["step"].to_pylist() == [1, 2, 3, 4, 5]
    assert logged.exit_code == 0
