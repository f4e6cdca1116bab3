"""Tracking: W&B's offline file holds what metrics.jsonl holds, and losing W&B loses nothing."""

import json
import math
from pathlib import Path

import wandb

from analysis import wandb_files
from analysis.frames import read_frames
from zo.config import TrackingConfig
from zo.run import run
from zo.tracking import RunLog, wandb_mode


def open_log(directory, mode="offline"):
    return RunLog(
        directory,
        run_id="mezo-0123456789ab",
        name="mezo",
        config={"lr": 1e-6, "optimizer": {"name": "mezo"}},
        config_yaml="lr: 1e-6\n",
        tracking=TrackingConfig(mode=mode),
        group="quickstart",
    )


def test_wandb_offline_file_equals_metrics_jsonl(make_run):
    cfg = make_run("optimizer=bszo", "tracking.mode=offline")
    summary = run(cfg, sweep="quickstart")
    wandb.teardown()  # finish() alone does not wait for the file
    (directory,) = Path(cfg.out).glob("bszo-*")
    (file,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    logged = wandb_files.read_run_file(file)
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert len(logged.history) == len(rows) == 4
    for row, seen in zip(rows, logged.history, strict=True):
        assert seen["_step"] == row.pop("step")
        assert {k: seen[k] for k in row} == row
    assert logged.group == "quickstart"
    assert logged.config["optimizer.name"] == "bszo"
    assert logged.config["provenance.parameters"] > 1e6
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
    wandb.teardown()
    assert capsys.readouterr().err.count("W&B is lost (ConnectionResetError") == 1
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["train/loss"] for line in lines] == [0.5, 0.25, 0.125]
    frames = read_frames([tmp_path / "run"])
    assert list(frames.history["train/loss"]) == [0.5, 0.25, 0.125]
    assert list(frames.runs["status"]) == ["finished"]


def test_a_nan_is_written_as_it_is(tmp_path):
    log = open_log(tmp_path / "run", mode="disabled")
    log.write(1, {"eval/val_loss": float("nan")})
    log.finish({"run/status": "collapsed"})
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert math.isnan(json.loads(line)["eval/val_loss"])


def test_a_row_is_on_disk_as_soon_as_it_is_written(tmp_path):
    log = open_log(tmp_path / "run", mode="disabled")
    log.write(1, {"train/loss": 0.5})
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 1, "train/loss": 0.5}\n'
    log.fail("killed")


def test_auto_is_offline_without_a_key(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert wandb_mode("auto") == "offline"
    assert wandb_mode("disabled") == "disabled"
