"""A run's identity: frozen at its first start, compared at every later one."""

import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from zo.run import lock
from zo.run.__main__ import main
from zo.run.directory import DirectoryError, directory_of, freeze, load
from zo.run.runner import run


def test_an_edited_configuration_is_refused_with_its_key(make_run, capsys):
    cfg = make_run("optimizer=mezo")
    path = freeze(cfg) / "config.yaml"
    whole = path.read_text()
    for was, now, told in (
        ("batch_size: 16", "batch_size: 8", "batch_size was 16; restore that value"),
        ("eps: 0.0001", "eps: 0.5", "optimizer.eps was 0.0001; restore that value"),
        ("data_files:\n", "data_files:\n    more: b\n", "task.data_files.more was not there"),
        ("batch_size: 16", "batch_sizes: 16", "is not this run's: batch_sizes"),
    ):
        assert was in whole
        path.write_text(whole.replace(was, now))
        with pytest.raises(DirectoryError, match=told):
            run(cfg)
    path.write_text(whole.replace("batch_size: 16", "batch_size: 8"))
    assert main([str(path.parent)]) == 2, "nor does it go on by itself"
    said = capsys.readouterr().err
    assert f"but its directory is named {path.parent.name}; undo the change of the file" in said
    path.write_text(whole)
    assert freeze(cfg) == path.parent


@pytest.mark.parametrize("text", ["", "a: ["])
def test_a_broken_configuration_is_refused_with_what_to_do(make_run, capsys, text):
    cfg = make_run("optimizer=mezo")
    path = freeze(cfg) / "config.yaml"
    path.write_text(text)
    assert main([str(path.parent)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{path} is not a run's configuration: ")
    assert "NoneType" not in said
    assert said.endswith(
        "; remove this file and repeat the run's command, which writes it anew and keeps the steps\n"
    )
    path.unlink()
    assert freeze(cfg) == path.parent
    assert load(path.parent).optimizer == cfg.optimizer


def test_a_run_that_another_process_makes_is_left_alone(make_run, monkeypatch, capsys):
    monkeypatch.setattr(lock, "PATIENCE_S", 0.1)
    directory = freeze(make_run("optimizer=mezo"))
    with lock.held(directory):
        assert main([str(directory)]) == 75
    assert capsys.readouterr().err.startswith(f"{directory} is being written by process ")
    assert {path.name for path in directory.iterdir()} == {"config.yaml", "inputs.json", "lock"}


def test_where_a_run_is_made_and_that_it_was_begun_anew_is_not_frozen(make_run):
    """resume=false is for the command that says it, not for what continues the run after it was killed."""
    directory = freeze(make_run("optimizer=mezo", "resume=false"))
    same = ("device=cpu", "threads=1", "checkpoint.full_every=7")
    assert freeze(make_run("optimizer=mezo", *same)) == directory
    assert load(directory).resume
    assert directory_of(make_run("optimizer=mezo", "batch_size=8")) != directory


@pytest.mark.process
def test_many_processes_may_freeze_one_run_at_once(make_run):
    cfg = make_run("optimizer=mezo")
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as processes:
        made = list(processes.map(freeze, [cfg] * 24))
    assert set(made) == {directory_of(cfg)}
    assert {path.name for path in made[0].iterdir()} == {"config.yaml", "inputs.json"}
    assert load(made[0]).optimizer == cfg.optimizer


@pytest.fixture
def read_only():
    """Returns a function that makes a directory impossible to write, also for root."""
    mounted = []

    def make(directory):
        for options in (["--bind", directory, directory], ["-o", "remount,bind,ro", directory]):
            done = subprocess.run(["mount", *map(str, options)], capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
            mounted.append(directory)

    yield make
    for directory in set(mounted):
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_where_nothing_can_be_written_a_run_is_refused_and_a_finished_one_there(
    make_run, finished, read_only, capsys
):
    new = freeze(make_run("optimizer=mezo", "seed=1"))
    for directory in (new, directory_of(finished)):
        read_only(directory)
    assert main([str(new)]) == 2
    assert capsys.readouterr().err == f"{new}/lock: Read-only file system\n"
    assert run(finished)["run/status"] == "finished"
    assert "finished before: test " in capsys.readouterr().out
