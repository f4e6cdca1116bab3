"""Where runs stand: the lock decides what runs, the queue what waits, the status the rest; and the table of it."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from launch import ROOT, records, status
from launch.records import Record
from launch.sweep import Sweep, standings
from tests.launch.conftest import note, states
from zo.config import ConfigError, command_line
from zo.run import fit
from zo.run.hours import step_times
from zo.run.store.atomic import seal
from zo.run.store.lock import held


def test_a_run_runs_if_a_process_holds_it_whatever_its_status_says(runs):
    note(runs[0], "running")
    note(runs[1], "running")
    with held(runs[1].directory):
        assert states(runs[:2]) == ["interrupted", "running"]
        assert f"process {os.getpid()} on" in standings(runs)[runs[1].run_id].note
    assert states(runs[:2]) == ["interrupted", "interrupted"]


def test_a_run_that_failed_and_was_given_to_a_job_again_is_queued_until_that_one_fails(runs):
    """`ask_queue=False` takes the job to be alive."""
    (run, *_) = runs
    note(run, "failed", error="OSError: no space")
    now = time.time()
    Record("slurm", "zo-x", 0, now).write(run.directory)
    for written, state in ((now - 60, "queued"), (now + 60, "failed")):
        os.utime(run.directory / "status.json", (written, written))
        assert states([run], ask_queue=False) == [state]


def test_directories_that_cannot_be_read_are_one_sentence(runs):
    runs[0].directory.parent.mkdir(exist_ok=True)
    os.chmod(runs[0].directory.parent, 0)
    root = os.geteuid() == 0
    try:
        if root:  # who reads everything
            os.seteuid(65534)
        with pytest.raises(ConfigError, match="out="):
            standings(runs)
    finally:
        if root:
            os.seteuid(0)
        os.chmod(runs[0].directory.parent, 0o755)


def test_status_shows_a_row_per_method_and_lists(grid, runs, capsys):
    note(runs[0], "collapsed", collapse_what="loss is nan at step 7")
    note(runs[3], "failed", error="Traceback\nRuntimeError: out of memory")
    assert status.main([*grid, "--failed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == [runs[3].run_id, "failed"]
    assert lines[0].endswith("  RuntimeError: out of memory")
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "model precision method tasks runs collapsed failed missing ms/step hours left from",
        "reviews-tiny fp32 mezo rotten_tomatoes 2 1 · 1 ? ?",
        "reviews-tiny fp32 bszo rotten_tomatoes 2 · 1 1 ? ?",
        "reviews-tiny fp32 zero_shot rotten_tomatoes 1 · · 1 0",
        "4 runs left: 3 of unknown step time (zo status --step-ms METHOD=N)",
        "1 of 5 runs done: 1 collapsed, 1 failed, 3 missing",
    ]
    assert status.main([*grid, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("  loss is nan at step 7")
    assert len(lines) == 5 + 6


def test_cells_of_runs_that_were_started_one_by_one_are_written_where_it_is_asked_for(
    grid, runs, tmp_path, capsys
):
    written = tmp_path / "out" / "sweeps" / "mine.jsonl"
    for more, there in (([], False), (["--manifest"], True)):
        assert status.main([*grid, "name=mine", *more]) == 0
        assert written.exists() == there
    cells = map(json.loads, written.read_text().splitlines())
    assert [cell["run_id"] for cell in cells][:4] == [run.run_id for run in runs]


def test_a_run_in_progress_is_listed_with_step_loss_and_hours_left(grid, runs, capsys):
    note(runs[1], "running")
    row = {"step": 1, "train/loss": 0.5, "time/step_s": 3600.0}
    (runs[1].directory / "metrics.jsonl").write_bytes(seal(row) + b'{"step": 2, "tr')
    with held(runs[1].directory):
        assert status.main([*grid, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  step 1 of 2, loss 0.5000, 1.0 h left  process " in lines[1]
    assert "loss" not in lines[0]


def test_every_number_of_hours_says_where_it_comes_from(capsys, tmp_path):
    """Measured here, typed for a method, measured in results/, by the formula; `--estimate` says the same."""
    keys = ["model=opt-1.3b", "precision=fp32", "task=sst2", "lr=1e-6", f"out={tmp_path}"]
    typed = [*keys, "optimizer=mezo,hizoo,bszo,bszo_b", "steps=36000"]
    (mezo,) = [run for run in Sweep.of(typed).runs if run.cfg.optimizer.name == "mezo"]
    note(mezo, "finished")
    (mezo.directory / "status.json").write_text('{"time/step_ms_median": 50.0}')
    (mezo.directory / "attempts.jsonl").write_text('{"device": "NVIDIA A100"}\n{"torn')
    assert status.main([*typed, "--step-ms", "hizoo=200"]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line.partition(" sst2 1 1 ")[2] for line in said[1:5]] == [
        "50.0 0.5 measured here on NVIDIA A100",
        "200.0 2.0 as typed",
        "171.1 1.7 measured on an H200 with noise=torch, in results/",
        "223.2 2.2 by the formula, for an H200",
    ]
    assert said[6] == (
        "5 runs left: 6.4 hours: 0.5 measured here on NVIDIA A100; 2.0 as typed;"
        " 1.7 measured on an H200 with noise=torch, in results/; 2.2 by the formula, for an H200"
    )
    runs = command_line.read(typed, multirun=True).cells
    assert fit.show(cfg for cfg, _ in runs) == 0
    estimated = capsys.readouterr().out
    assert "36,000 steps of 50 ms, measured here on NVIDIA A100, without evaluations" in estimated
    assert "36,000 steps of 171 ms, measured on an H200 with noise=torch, in results/" in estimated
    with pytest.raises(SystemExit):
        status.main([*typed, "--step-ms", "lozo=3"])
    assert "--step-ms lozo=: the methods are bszo, bszo_b, hizoo, mezo" in capsys.readouterr().err


def test_hours_of_the_docs_are_those_of_the_status():
    """Of Table 3's sweep on OPT-1.3B; a run of each method stands for its 30."""
    keys = ["model=opt-1.3b", "precision=fp32", "task=sst2", "lr=1e-6"]
    methods = "optimizer=mezo,mezo_adam,hizoo,lozo,bszo,bszo_b"
    runs = [
        (cfg, Path("none")) for cfg, _ in command_line.read([*keys, methods], multirun=True).cells
    ]
    steps = [step for step in step_times(runs, {}).values() if step is not None]
    hours = sum(30 * 20_000 * step.ms / 3.6e6 for step in steps)
    for page, cell in (("reproducing", "| 180 | 171 |"), ("clusters", "180 runs, 171 GPU hours")):
        assert cell in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert round(hours) == 171


def test_a_queued_run_has_its_jobs_id_as_squeue_shows_it(runs, monkeypatch):
    said = "7_1|zo-x|1\n8|zo-y|N/A\n"
    done = subprocess.CompletedProcess([], 0, said, "")
    monkeypatch.setattr(records.shutil, "which", lambda name: name)
    monkeypatch.setattr(records.subprocess, "run", lambda *given, **more: done)
    for run, name, index in zip(runs[:3], ("zo-x", "zo-y", "zo-z"), (1, 0, 0), strict=True):
        run.directory.mkdir(parents=True)
        Record("slurm", name, index, time.time()).write(run.directory)
    found = [standings(runs)[run.run_id] for run in runs[:3]]
    assert [of.note for of in found] == ["slurm job 7_1", "slurm job 8", ""]
    assert [of.state for of in found] == ["queued", "queued", "missing"]


@pytest.mark.parametrize(
    ("said", "reached_python", "state", "says"),
    [
        ("module: not found\n\nsrun: no python\n", False, "failed", "module: not found | srun: no python"),
        ("", False, "failed", "it printed nothing"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", False, "interrupted", ""),
        ("slurmstepd: *** JOB 7 ON n1 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***", False, "failed", "TIME LIMIT"),
        ("1 runs are to be continued", True, "interrupted", ""),
        (f"1 runs are to be continued\n{records.SETUP_FAILED} (exit status 1): x", True, "failed", "exit status 1"),
        (None, False, "interrupted", ""),
    ],
)  # fmt: skip
def test_a_job_that_died_before_python_failed_and_says_where(
    runs, monkeypatch, tmp_path, said, reached_python, state, says
):
    monkeypatch.setattr(records, "queue", lambda names: {})
    (run, *_) = runs
    note(run, "running")
    log = run.directory / "log.txt"
    log.write_text("of an earlier job")
    os.utime(log, (0, 0))
    Record("slurm", "zo-x", 1, time.time()).write(run.directory)
    paths = [tmp_path / f"7_{index}_0_log.err" for index in range(2)]
    (tmp_path / "out" / ".submit").mkdir()
    records.note_stderr(run.directory.parent, "zo-x", paths)
    if said is not None:
        paths[1].write_text(said)
    if reached_python:
        log.write_text("of this job")
    found = standings([run])[run.run_id]
    assert found.state == state
    assert says in found.note
    assert (str(paths[1]) in found.note) == (state == "failed")
