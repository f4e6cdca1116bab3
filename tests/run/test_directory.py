"""A run's directory: its identity, frozen at its first start, and its lock, of one live process, whoever died in it."""

import json
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from unittest import mock

import pytest

from zo.run.__main__ import main
from zo.run.runner import run
from zo.run.store import lock
from zo.run.store.directory import DirectoryError, directory_of, freeze, load
from zo.run.store.lock import held, holder


def test_an_edited_or_broken_configuration_is_refused_with_its_key_and_what_to_do(make_run):
    cfg = make_run("optimizer=mezo")
    path = freeze(cfg) / "config.yaml"
    whole = path.read_text()
    rename = f"but its directory is named {path.parent.name}; undo the change of the file"
    remove = "; remove this file and repeat the run's command, which writes it anew and keeps the"
    for was, now, told, what_to_do in (
        ("batch_size: 16", "batch_size: 8", "batch_size was 16; restore that value", rename),
        ("eps: 0.0001", "eps: 0.5", "optimizer.eps was 0.0001; restore that value", rename),
        ("data_files:\n", "data_files:\n    more: b\n", "files.more was not there", rename),
        ("batch_size: 16", "batch_sizes: 16", "is not this run's: batch_sizes", remove),
        (whole, "", "config.yaml is not this run's: (?!.*NoneType)", remove),
        (whole, "a: [", "config.yaml is not this run's: ", remove),
    ):
        assert was in whole
        path.write_text(whole.replace(was, now))
        with pytest.raises(DirectoryError, match=told):
            run(cfg)
        with pytest.raises(DirectoryError, match=what_to_do):  # nor does it go on by itself
            load(path.parent)
    path.unlink()
    assert freeze(cfg) == path.parent
    assert load(path.parent).optimizer == cfg.optimizer


@pytest.mark.process
def test_many_processes_may_freeze_one_run_at_once(make_run):
    """Frozen is not that it was begun anew: what continues it after a kill must not begin it anew again."""
    cfg = make_run("optimizer=mezo", "resume=false")
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as processes:
        made = list(processes.map(freeze, [cfg] * 24))
    assert set(made) == {directory_of(cfg)}
    assert {path.name for path in made[0].iterdir()} == {"config.yaml", "inputs.json"}
    assert load(made[0]).optimizer == cfg.optimizer
    assert load(made[0]).resume


def test_where_nothing_can_be_written_a_run_is_refused_and_a_finished_one_shown(
    make_run, finished, refused, capsys
):
    new = freeze(make_run("optimizer=mezo", "seed=1"))
    (new / "lock").mkdir()
    assert refused(main, new) == f"{new}/lock: Is a directory"
    files = {path: path.stat().st_mtime_ns for path in directory_of(finished).iterdir()}
    assert run(finished)["run/status"] == "finished"
    assert "finished before: test " in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in directory_of(finished).iterdir()} == files


def test_a_live_process_keeps_others_out_and_a_killed_one_is_taken_over(
    make_run, monkeypatch, capsys
):
    """The exit status of the run's command is 75 meanwhile, and it writes nothing."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    directory = freeze(make_run("optimizer=mezo"))
    with held(directory):
        found, left = holder(directory), (directory / lock.HOLDER).read_text()
        assert main([str(directory)]) == 75
    by = f"process {os.getpid()} on {socket.gethostname()}, SLURM job 17, since "
    assert str(found).startswith(by)
    assert capsys.readouterr().err == f"{directory} is being written by {found}\n"
    assert {path.name for path in directory.iterdir()} == {"config.yaml", "inputs.json", "lock"}
    (directory / lock.HOLDER).write_text(left)  # as a killed process leaves it
    assert holder(directory) is None
    with held(directory):
        pass
    assert capsys.readouterr().err == f"{directory}: taken over from {found}, which is gone\n"


def test_a_lock_is_given_back_also_when_its_body_fails_and_taken_without_a_word(
    tmp_path, monkeypatch, capsys
):
    """A file system without locks is said and used."""
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), held(tmp_path):
            raise ZeroDivisionError
    assert holder(tmp_path) is None
    assert capsys.readouterr().err == ""
    refuse = mock.Mock(side_effect=OSError(lock.errno.ENOLCK, "no locks"))
    monkeypatch.setattr("fcntl.flock", refuse)
    with held(tmp_path):
        pass
    assert "this file system has no locks" in capsys.readouterr().err


def test_a_directory_that_is_removed_while_the_run_trains_ends_it_in_one_sentence(
    make_run, before_steps
):
    cfg, steps = make_run("optimizer=mezo", "steps=50"), []

    def remove(session, step):
        steps.append(step)
        if step == 3:
            shutil.rmtree(directory_of(cfg))

    before_steps(remove)
    with pytest.raises(DirectoryError, match="removed while the run went on; the same command"):
        run(cfg)
    assert steps == [1, 2, 3]


@pytest.mark.process
@pytest.mark.parametrize("nobody", ["| true", ">&-"])
def test_a_run_whose_output_nobody_reads_goes_on_to_its_end(make_run, nobody):
    directory = freeze(make_run("optimizer=mezo"))
    command = f"set -o pipefail; {sys.executable} -m zo resume {directory} {nobody}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((directory / "status.json").read_text())["run/status"] == "finished"
