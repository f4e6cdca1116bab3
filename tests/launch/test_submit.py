"""What is submitted and what is left alone, how it is packed, and what is refused in one sentence."""

import json
import os
import pkgutil
from itertools import chain, repeat
from unittest.mock import DEFAULT, Mock, call, patch

import pytest

import launch
from launch import multirun, slurm, submit
from launch.multirun import SLURM_S
from launch.profile import SlurmProfile
from tests.launch.conftest import changed, note
from zo.config import command_line

SLURM = "hydra/launcher=slurm"


@pytest.fixture
def sbatch(monkeypatch):
    """Takes the place of sbatch: a list of (groups, profile, name), of which all wait in the queue."""
    taken = []

    def waiting(names):
        jobs = [(name, index) for groups, _, name in taken for index in range(len(groups))]
        return {job: f"7_{job[1]}" for job in jobs}

    monkeypatch.setattr(slurm, "check", lambda: None)
    monkeypatch.setattr("launch.records.queue", waiting)
    monkeypatch.setattr(slurm, "submit", lambda *given: taken.append(given) or "7")
    return taken


def test_missing_and_interrupted_runs_are_submitted_and_nothing_else(grid, runs, sbatch, capsys):
    note(runs[0], "finished")
    note(runs[1], "interrupted")
    note(runs[2], "failed", error="E")
    assert submit.main([*grid, SLURM]) == 0
    ((groups, _, name),) = sbatch
    assert groups[:2] == [[runs[1].directory], [runs[3].directory]]
    out = capsys.readouterr().out
    assert "5 runs: 1 finished, 1 interrupted, 1 failed, 2 missing; 3 submitted" in out
    assert "1 failed before: --retry-failed submits them, too" in out
    for run in (runs[1], runs[3]):
        assert (run.directory / "config.yaml").exists()
        assert json.loads((run.directory / "job.json").read_text())["name"] == name
    assert not (runs[0].directory / "job.json").exists()
    assert submit.main([*grid, SLURM, "--retry-failed"]) == 0
    assert [runs[2].directory] in sbatch[1][0]
    (path,) = (runs[0].directory.parent / "sweeps").iterdir()
    noted = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["run_id"] for line in noted[:4]] == [run.run_id for run in runs]
    assert [line["optimizer"] for line in noted[4:]] == ["zero_shot"], "once"
    assert {line["sweep"] for line in noted} == {runs[1].cfg.tracking.group}


def test_a_dry_run_writes_nothing_and_needs_no_slurm(
    grid, runs, sbatch, tmp_path, capsys, monkeypatch
):
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    given = ["account=mine", "mem_gb=64", "array_parallelism=2", "runs_per_job=2"]
    given = [f"hydra.launcher.{key}" for key in given]
    assert submit.main([*grid, SLURM, *given, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == [run.run_id for run in runs]
    assert lines[5].startswith("5 runs left: 4 of unknown step time")
    assert lines[6] == "5 runs: 5 missing; 0 submitted, 5 would be"
    assert lines[7] == (
        "asked of SLURM: account mine, partition the cluster's default, GPUs gpu:1, CPUs 4, memory 65536M,"
        " time 1440 minutes, array of 3, 2 at once,"
        f" script {tmp_path}/out/.slurm/JOB_0/JOB_submission.sh"
    )
    assert not sbatch
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "moment",
    [
        "launch.submit.freeze",
        pytest.param("launch.slurm.submit", marks=pytest.mark.process),
        pytest.param("launch.records.queue", marks=pytest.mark.process),
        "time.sleep",
    ],
)
def test_ctrl_c_at_any_moment_ends_the_wait_and_not_the_jobs(grid, sbatch, capsys, moment):
    first = chain([KeyboardInterrupt], repeat(DEFAULT))
    with patch(moment, wraps=pkgutil.resolve_name(moment), side_effect=first) as function:
        assert multirun.make(command_line.read([*grid, SLURM], True)) == 130
    assert function.called
    assert moment != "time.sleep" or function.call_args == call(SLURM_S), "the queue is spared"
    out = capsys.readouterr().out.splitlines()
    assert out[-1].startswith("Jobs that were submitted go on. How: zo status model=")
    assert out[-2] == ("5 missing" if "submit" in moment else "5 queued")


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hydra.launcher.partitoin=x"], "hydra.launcher.partitoin=x: no such key; did you mean partition?"),
        (["hydra.launcher.mem_gb=lots"], "hydra.launcher.mem_gb=lots: must be a number"),
        (["hydra.launcher.timeout_min=1"], "hydra.launcher.signal_delay_s=120: must be less than the time limit"),
        (["hydra.launcher.runs_per_job=0"], "hydra.launcher.runs_per_job=0: must be at least 1"),
        (["hydra.launcher.gpus_per_node=1"], "hydra.launcher.gpus_per_node=1: must be null where gres asks"),
        (["+hydra.launcher.sbatch.mem-gb=1"], "must not repeat mem-gb, which is a key of its own"),
        (["resume=false"], "resume=false: must be true for a job"),
        (["hydra/launcher=basic"], "hydra/launcher=basic: runs in its own process; take slurm or local"),
        (["hydra/launcher=submitit_slurm"], "hydra/launcher=submitit_slurm: must be one of basic,"),
        (["hydra/launcher=slurmy"], "hydra/launcher=slurmy: did you mean slurm?"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_written(
    grid, sbatch, tmp_path, capsys, arguments, says
):
    assert submit.main(changed([*grid, SLURM], *arguments)) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("partitoin: gpu", "hydra/launcher=mine: hydra.launcher.partitoin: no such key; did you mean partition?"),
        ("mem_gb: lots", "hydra/launcher=mine: hydra.launcher.mem_gb: must be a number"),
        ("setup:\n\t- x", "mine.yaml: line 4 has a tab; indent with spaces; this profile is left out"),
    ],
)  # fmt: skip
def test_a_wrong_profile_is_named_with_its_key(
    grid, sbatch, own_conf, tmp_path, monkeypatch, capsys, text, says
):
    (tmp_path / "mine.yaml").write_text(f"defaults:\n  - slurm\n{text}\n")
    monkeypatch.setattr("launch.profile.PROFILES", tmp_path)
    assert submit.main([*grid, "hydra/launcher=mine"]) == 2
    assert says in capsys.readouterr().err


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Returns a function that returns the lines of a profile's job script."""
    from submitit import SlurmExecutor

    def lines(**values):
        slurm.submit([[tmp_path / "run"]] * 9, SlurmProfile(**values), "zo-x")
        return (tmp_path / "script").read_text().splitlines()

    (tmp_path / ".submit").mkdir()
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/script\necho Submitted batch job 7\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SlurmExecutor, "affinity", lambda *_: 2)
    return lines


@pytest.mark.parametrize(
    ("values", "sent"),
    [
        ({"mem_gb": None}, []),
        ({"sbatch": {"mem-per-cpu": "2G", "wckey": "mine"}}, ["mem-per-cpu=2G", "wckey=mine"]),
        ({"sbatch": {"mem_per_gpu": "8G"}}, ["mem-per-gpu=8G"]),
    ],
)
def test_memory_is_asked_for_once_or_left_to_the_cluster(script, values, sent):
    asked = [line.removeprefix("#SBATCH --") for line in script(**values)]
    assert [option for option in asked if option.startswith(("mem", "wckey"))] == sent


def test_variables_that_sbatch_would_drop_are_refused(grid, capsys, monkeypatch):
    monkeypatch.setattr(slurm, "check", lambda: None)
    profile = [
        "+hydra.launcher.environment.WANDB_API_KEY=hush",
        "+hydra.launcher.sbatch.export=NONE",
    ]
    assert submit.main([*grid, SLURM, *profile]) == 2
    said = capsys.readouterr().err
    assert said.startswith("hydra.launcher.environment: sbatch would pass on NONE only")
    assert "hush" not in said


@pytest.mark.parametrize(
    ("configured", "says"),
    [
        ("MaxArraySize    = 3\n", "5 jobs are more than the cluster's MaxArraySize, 3; `zo submit ... --limit 3` "
            "submits as many runs, and again the next; hydra.launcher.runs_per_job=2 makes fewer jobs\n"),
        ("", "sbatch refuses an array of 5 jobs; see MaxArraySize in `scontrol show config`; `zo submit "),
    ],
)  # fmt: skip
def test_too_large_an_array_is_told_with_its_limit_and_what_to_type(
    grid, tmp_path, capsys, monkeypatch, configured, says
):
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError

    text = "sbatch: error: Batch job submission failed: Invalid job array specification"
    submitted = Mock(side_effect=FailedJobError(text))
    monkeypatch.setattr(slurm, "check", lambda: None)
    monkeypatch.setattr(SlurmExecutor, "affinity", lambda *_: 2)
    monkeypatch.setattr(SlurmExecutor, "submit_array", submitted)
    shown = Mock(return_value=Mock(stdout=configured))
    monkeypatch.setattr(slurm.subprocess, "run", shown)
    assert submit.main([*grid, SLURM]) == 2
    assert capsys.readouterr().err.startswith(says)


def test_a_profile_reaches_sbatch_whole(script):
    values = {
        "partition": "gpu", "account": "me", "qos": "low", "constraint": "a100", "gres": "gpu:2",
        "cpus_per_task": 3, "mem_gb": 1.5, "timeout_min": 90, "signal_delay_s": 45,
        "array_parallelism": 5, "setup": ["module load x"], "environment": {"A": "b c"},
        "sbatch": {"mail-type": "FAIL", "exclusive": True},
    }  # fmt: skip
    made = script(**values)
    for line in (
        "partition=gpu", "account=me", "qos=low", "constraint=a100", "gres=gpu:2", "cpus-per-task=3",
        "mem=1536M", "time=90", "signal=USR2@45", "array=0-8%5", "mail-type=FAIL", "exclusive",
        "requeue", "job-name=zo-x", "nodes=1", "ntasks-per-node=1", "open-mode=append",
    ):  # fmt: skip
        assert f"#SBATCH --{line}" in made
    assert made.index("zo_A=$A") < made.index("module load x") < made.index("export A=$zo_A")
    assert not any("b c" in line or "wckey" in line for line in made)
    assert any(line.startswith(f"export PYTHONPATH={launch.ROOT}") for line in made)


def test_a_directory_that_cannot_be_made_is_said_in_a_sentence(grid, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    typed = changed(grid, f"out={tmp_path / 'file' / 'x'}", "hydra/launcher=local")
    assert submit.main(typed) == 2
    assert "is a file; choose another directory" in capsys.readouterr().err
