"""Tracking: W&B's offline file holds what metrics.jsonl holds, and losing W&B loses nothing."""

import json
import socket
from pathlib import Path
from unittest import mock

import psutil
import pytest
import wandb

from analysis.logs import run_file, sources
from tests.support.crowd import free_port
from tests.support.runs import stopped_after
from zo.config.settings import chosen_mode
from zo.run.__main__ import main
from zo.run.assembly import Session
from zo.run.command import Shared
from zo.run.logs import wandb_run
from zo.run.logs.tracking import RunLog
from zo.run.runner import run
from zo.run.store.directory import Inputs, directory_of
from zo.run.store.rows import read_rows


def logged_in(directory):
    """Returns what the only offline file in a run's directory holds."""
    wandb.teardown()  # finish() alone does not wait for the file
    (file,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    return run_file.read_run_file(file)


@pytest.mark.process
def test_wandb_offline_file_equals_metrics_jsonl_also_of_a_run_that_was_stopped(
    make_run, tmp_path, monkeypatch
):
    """The first attempt's file is written anew, from metrics.jsonl, with the steps that stay."""
    cfg = make_run("optimizer=bszo", "tracking.mode=offline", "tracking.group=quickstart")
    directory = directory_of(cfg)

    def failed():
        wandb.teardown()
        return sources.load([directory], tmp_path).runs["failed"].item()

    with stopped_after(3):
        run(cfg)
    assert not failed()
    with monkeypatch.context() as broken:
        broken.setattr(Session, "executor", None)
        with pytest.raises(TypeError):
            run(cfg)
    assert failed()
    summary = run(cfg)
    logged, rows = logged_in(directory), read_rows(directory)
    assert len(logged.history) == len(rows) == 4
    for row, seen in zip(rows, logged.history.to_pylist(), strict=True):
        sent = {k: v for k, v in row.items() if not k.startswith(("best/", "train/losses"))}
        assert {k: v for k, v in seen.items() if v == v} == sent
    assert (logged.group, logged.exit_code) == ("quickstart", 0)
    assert logged.config["optimizer.name"] == "bszo"
    assert logged.config["provenance.parameters"] > 1e6
    assert json.loads(logged.config["provenance.inputs"]) == Inputs.load(directory).files
    del summary["mem/peak_gib"]  # W&B's is the last row's, and saving may take a page more
    assert {k: logged.summary[k] for k in summary} == summary


def test_wandb_mode_is_read_whatever_its_case_and_a_project_from_the_environment(
    make_run, tmp_path, monkeypatch
):
    modes = {"": "auto", "OFFLINE": "offline", "dryrun": "offline", "no": "auto"}
    for given, mode in (modes | {"disabled": "disabled"}).items():
        monkeypatch.setenv("WANDB_MODE", given)
        assert (chosen_mode("auto"), chosen_mode("online")) == (mode, "online"), given
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setattr(wandb, "init", begun := mock.Mock())
    for given in ([], ["tracking.project=x"]):
        RunLog(make_run("tracking.mode=offline", *given), tmp_path)
    assert [call.kwargs["project"] for call in begun.call_args_list] == ["mine", "x"]


def test_a_run_whose_directory_is_relative_writes_there_though_wandb_began_elsewhere(
    make_run, tmp_path, monkeypatch
):
    """W&B's process, which later runs share, has the directory in which the first one began."""
    cfg = make_run("tracking.mode=offline")
    for name in ("one", "two"):
        (tmp_path / name / name).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        log = RunLog(cfg, Path(name))
        log.write(1, {"train/loss": 0.5})
        log.finish({"run/status": "finished"})
    logged_in(tmp_path / "two" / "two")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["one"]


def test_losing_wandb_is_said_once_and_loses_nothing(make_run, tmp_path, capsys):
    log = RunLog(make_run("tracking.mode=offline"), tmp_path)
    log.write(1, {"train/loss": 0.5})
    cores = [one for one in psutil.Process().children() if one.name() == "wandb-core"]
    assert cores
    for core in cores:
        core.kill()
        core.wait()
    log.write(2, {"train/loss": 0.25})
    log.write(3, {"train/loss": 0.125})
    log.finish({"run/status": "finished"})
    logged = logged_in(tmp_path)
    assert capsys.readouterr().err.count("W&B logging stopped (") == 1
    assert [row["train/loss"] for row in read_rows(tmp_path)] == [0.5, 0.25, 0.125]
    assert logged.history["train/loss"].to_pylist() == [0.5, 0.25, 0.125], "written once more"
    assert logged.summary["run/status"] == "finished"


@pytest.fixture
def server(monkeypatch):
    """Returns a function that gives W&B a key and a server on a port of this machine."""

    def use(key: str, port: int) -> None:
        wandb.teardown()  # it has read the environment
        monkeypatch.delenv("WANDB_MODE")
        monkeypatch.setenv("WANDB_API_KEY", key)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setattr(wandb_run, "INIT_SECONDS", 1.0)

    yield use
    wandb.teardown()


@pytest.mark.process
@pytest.mark.parametrize("mode", ["auto", "online"])
@pytest.mark.parametrize("fault", ["nobody listens", "nobody answers", "no key"])
def test_without_wandb_a_run_is_logged_offline_which_is_said_once(
    mode, fault, make_run, server, capsys
):
    shared = Shared()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if fault == "nobody answers" else free_port()
        server("k" * 3 if fault == "no key" else "k" * 40, port)
        for seed in (0, 1):
            cfg = make_run("optimizer=mezo", f"tracking.mode={mode}", f"seed={seed}")
            run(cfg, shared=shared)
            logged = logged_in(directory_of(cfg))
            assert logged.summary["run/status"] == "finished"
            assert (len(logged.history), logged.exit_code) == (4, 0)
    said = capsys.readouterr().err
    assert said.count("W&B cannot be logged to: ") == 1
    assert said.count("logged offline, `wandb sync` sends it later") == 1


def test_the_log_of_a_run_that_ended_without_one_is_written_from_its_rows(finished, refused):
    directory = directory_of(finished)
    assert main(["log", str(directory)]) == 0
    logged, status = logged_in(directory), json.loads((directory / "status.json").read_text())
    assert {key: logged.summary[key] for key in status} == status
    losses = [row["train/loss"] for row in read_rows(directory)]
    assert logged.history["train/loss"].to_pylist() == losses
    assert logged.config["optimizer.name"] == "mezo"
    assert logged.config["provenance.versions.torch"]
    whole = (directory / "metrics.jsonl").read_text()
    (directory / "metrics.jsonl").write_text(whole[:-5])
    assert "steps 4 to 4 cannot be read" in refused(main, "log", directory)
    (directory / "status.json").write_text("{}")
    assert f"zo resume {directory} goes on with it" in refused(main, "log", directory)


@pytest.mark.process
def test_a_run_that_is_made_anew_has_another_id_at_wandb_and_keeps_it(make_run):
    cfg = make_run("optimizer=mezo", "tracking.mode=offline")
    run(cfg)
    directory = directory_of(cfg)
    first = logged_in(directory)
    cfg.resume = False
    with stopped_after(2):
        run(cfg)
    stopped = logged_in(directory)
    assert first.place != stopped.place
    cfg.resume = True
    run(cfg)
    again = logged_in(directory)
    assert (first.run_id, again.run_id) == (directory.name, directory.name)
    assert first.wandb_id == directory.name
    assert again.wandb_id == stopped.wandb_id != first.wandb_id
