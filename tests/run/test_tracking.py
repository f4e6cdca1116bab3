"""Tracking: W&B's offline file holds what metrics.jsonl holds, and losing W&B loses nothing."""

import signal

import pytest
import wandb

from analysis.logs import run_file
from tests.support.victims import At, armed
from zo.config import TrackingConfig
from zo.run.directory import directory_of
from zo.run.rows import read_rows
from zo.run.runner import run
from zo.run.signals import Interrupted
from zo.run.tracking import RunLog


def logged_in(directory):
    """Returns what the only offline file in a run's directory holds."""
    wandb.teardown()  # finish() alone does not wait for the file
    (file,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    return run_file.read_run_file(file)


def test_wandb_offline_file_equals_metrics_jsonl_also_of_a_run_that_was_stopped(make_run):
    """The first attempt's file is written anew, from metrics.jsonl, with the steps that stay."""
    cfg = make_run("optimizer=bszo", "tracking.mode=offline", "tracking.group=quickstart")
    with armed(At("zo.run.loop._step", 3, "after", signal.SIGTERM)), pytest.raises(Interrupted):
        run(cfg)
    summary, directory = run(cfg), directory_of(cfg)
    logged, rows = logged_in(directory), read_rows(directory)
    assert len(logged.history) == len(rows) == 4
    for row, seen in zip(rows, logged.history.to_pylist(), strict=True):
        sent = {k: v for k, v in row.items() if not k.startswith(("best/", "train/losses"))}
        assert {k: v for k, v in seen.items() if v == v} == sent
    assert (logged.group, logged.exit_code) == ("quickstart", 0)
    assert logged.config["optimizer.name"] == "bszo"
    assert logged.config["provenance.parameters"] > 1e6
    del summary["mem/peak_gib"]  # W&B's is the last row's, and saving may take a page more
    assert {k: logged.summary[k] for k in summary} == summary


def test_losing_wandb_is_said_once_and_loses_nothing(tmp_path, capsys):
    named = {"run_id": "mezo-0123456789ab", "name": "mezo", "config": {}}
    log = RunLog(tmp_path, **named, tracking=TrackingConfig(mode="offline"))
    log.write(1, {"train/loss": 0.5})
    lost = log._wandb
    lost.log = lambda *_, **__: (_ for _ in ()).throw(ConnectionResetError("lost"))
    log.write(2, {"train/loss": 0.25})
    log.write(3, {"train/loss": 0.125})
    lost.finish(exit_code=1)
    log.finish({"run/status": "finished"})
    logged = logged_in(tmp_path)
    assert capsys.readouterr().err.count("W&B logging stopped (ConnectionResetError") == 1
    assert [row["train/loss"] for row in read_rows(tmp_path)] == [0.5, 0.25, 0.125]
    assert logged.history["train/loss"].to_pylist() == [0.5, 0.25, 0.125], "written once more"
    assert logged.summary["run/status"] == "finished"
