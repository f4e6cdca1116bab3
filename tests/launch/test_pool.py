"""Runs as child processes: several at once, one failing without the others, every signal passed on."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch import pool
from launch.pool import Pool, slots
from tests.support.waiting import wait_for

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
directory = Path(sys.argv[1])
wants = json.loads((directory / "wants.json").read_text())
def stop(number, frame):
    (directory / "signal").write_text(signal.Signals(number).name)
    sys.exit(143)
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, stop)
with (directory / "starts").open("a") as file:
    file.write(f"{time.time()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")
time.sleep(wants.get("seconds", 0))
(directory / "ends").write_text(str(time.time()))
print(wants.get("says", "done"))
code = wants.get("code", 0)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@pytest.fixture(autouse=True)
def program(tmp_path, monkeypatch):
    """A stand-in for a run that ends as it is told to: real processes, signals and statuses, no model."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    monkeypatch.setattr(pool, "RUN", (sys.executable, str(path)))
    monkeypatch.setattr(pool, "BUSY_S", 0.2)
    return path


@pytest.fixture
def wanting(tmp_path):
    def make(name, **wants):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "wants.json").write_text(json.dumps(wants))
        return directory

    return make


def test_no_more_run_at_once_than_there_are_slots_and_each_has_its_device(wanting):
    """And one fails without the others."""
    runs = [wanting(str(i), seconds=0.6, code=int(i == 1), says="E: no") for i in range(4)]
    made = Pool(runs, slots(["3", "GPU-x"], 2))
    made.run()
    assert [made.codes[run] for run in runs] == [0, 1, 0, 0]
    assert made.failures == [f"1: E: no (exit status 1), see {runs[1] / 'log.txt'}"]
    assert made.unfinished == []
    begun = [(run / "starts").read_text().split() for run in runs]
    ended = [float((run / "ends").read_text()) for run in runs]
    spans = [(float(at), end, device) for (at, device), end in zip(begun, ended, strict=True)]
    assert sorted(device for *_, device in spans) == ["3", "3", "GPU-x", "GPU-x"]
    at_once = [[d for b, e, d in spans if b <= begin < e] for begin, *_ in spans]
    assert sorted(max(at_once, key=len)) == ["3", "GPU-x"], "two at once, each on its device"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_run_that_dies_without_a_word_is_noted_as_failed(wanting, number):
    run = wanting("a", code=-number)
    Pool([run], [{}]).run()
    status = json.loads((run / "status.json").read_text())
    assert status["run/status"] == "failed"
    assert f"killed by {number.name}" in status["run/error"]


JOB = """
import signal, sys
from launch import pool
from launch.job import Job
pool.RUN = (sys.executable, sys.argv[1])
def submitit(number, frame):
    print("queued again", flush=True)
    raise SystemExit(255)
def bypass(number, frame):
    pass
signal.signal(signal.SIGTERM, bypass)
signal.signal(signal.SIGUSR2, submitit)
Job(sys.argv[2:])()
print("result", flush=True)
"""


def started_job(program, runs):
    """A job in a process of its own, with handlers as Submitit installs them; returns it when all runs go on."""
    command = [sys.executable, "-c", JOB, str(program), *map(str, runs)]
    job = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    wait_for(lambda: all((run / "starts").exists() for run in runs), "the runs to start")
    return job


@pytest.mark.parametrize(
    ("number", "code", "says"), [("SIGTERM", 143, ""), ("SIGUSR2", 255, "queued again\n")]
)
def test_a_job_passes_signals_on_waits_and_ends_as_slurm_wants(
    program, wanting, number, code, says
):
    runs = [wanting("a", seconds=60), wanting("b", seconds=60)]
    job = started_job(program, runs)
    job.send_signal(getattr(signal, number))
    output, _ = job.communicate(timeout=30)
    assert (job.returncode, output) == (code, says)
    assert [(run / "signal").read_text() for run in runs] == [number] * 2
