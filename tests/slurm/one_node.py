"""A sweep of small runs on the SLURM of this machine: submit it, watch it, do things to it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from launch import submit
from launch.profile import register
from launch.sweep import Run, Sweep, standings
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
ONE_NODE = ROOT / "tests" / "slurm" / "one_node_slurm.sh"
ONE_NODE_CONF = Path(os.environ.get("ZO_SLURM_DIR", "/var/lib/zo-slurm")) / "slurm.conf"
if ONE_NODE_CONF.exists():
    os.environ.setdefault("SLURM_CONF", str(ONE_NODE_CONF))

UNTIMED = re.compile("^(?!time/|mem/|crc$)")
"""What of a row is the same however fast the machine is."""


def missing() -> str | None:
    """Why there is no SLURM to test on; None if there is one."""
    if shutil.which("sbatch") is None:
        return "no sbatch here: apt-get install slurmctld slurmd slurm-client munge"
    if os.environ.get("SLURM_CONF") != str(ONE_NODE_CONF) or not ONE_NODE_CONF.exists():
        return f"the one-node SLURM is not set up: {ONE_NODE} start"
    answers = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False)
    return None if "is UP" in answers.stdout else f"slurmctld does not run: {ONE_NODE} start"


def one_node(*arguments: str) -> None:
    """Does something to the SLURM of this machine."""
    as_root = (
        [] if os.geteuid() == 0 else ["sudo", "--non-interactive", "--preserve-env=ZO_SLURM_DIR"]
    )
    subprocess.run([*as_root, str(ONE_NODE), *arguments], check=True, timeout=120)


class Sandbox:
    """A sweep with an output directory of its own.

    Args:
        out: The output directory.
        base: Overrides that all its sweeps share.
    """

    profile = (
        "hydra/launcher=slurm",
        "hydra.launcher.partition=low",
        "hydra.launcher.gres=gpu:1",
        "hydra.launcher.cpus_per_task=1",
        "hydra.launcher.mem_gb=1",
    )

    def __init__(self, out: Path, base: list[str]):
        register()
        self.out = out
        self._base = [*base, f"out={out}"]

    def overrides(self, *more: str) -> list[str]:
        return [*self._base, *self.profile, *more]

    def submit(self, *arguments: str) -> None:
        assert submit.main(self.overrides(*arguments)) == 0

    def start(self, *arguments: str, program: tuple[str, ...] = ("train.py", "-m")):
        """Starts a command in a process of its own and returns it."""
        command = [sys.executable, *program, *self.overrides(*arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, text=True, stdout=pipe, stderr=subprocess.STDOUT)

    def runs(self, *arguments: str) -> list[Run]:
        return Sweep.of(self.overrides(*arguments)).runs

    def wait(self, runs: list[Run], state: str, timeout_s: float = 180) -> None:
        """Waits until all runs are in a state."""

        def reached() -> bool:
            self.states = {k: s.state for k, s in standings(runs).items()}
            return set(self.states.values()) == {state}

        try:
            wait_for(reached, f"all to be {state}", timeout_s)
        except AssertionError as error:
            logs = "\n".join(path.read_text() for path in sorted(self.out.glob("*/log.txt")))
            raise AssertionError(f"{error}; they are {self.states}\n{logs}") from None

    def wait_for_step(self, run: Run, step: int, timeout_s: float = 180) -> None:
        wait_for(lambda: steps(run)[-1:] >= [step], f"{run.run_id} to reach step {step}", timeout_s)


def rows(directory: Path) -> list[dict]:
    """A run's history without what depends on the machine's speed."""
    path = directory / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # being written
            break
        found.append({key: value for key, value in row.items() if UNTIMED.match(key)})
    return found


def steps(run: Run) -> list[int]:
    return [row["step"] for row in rows(run.directory)]


def attempts(run: Run) -> int:
    """How often a run was started and got as far as its first step."""
    return len((run.directory / "attempts.jsonl").read_text().splitlines())


def queued(name: str = "") -> list[str]:
    """Jobs that wait or run: `id state name`."""
    command = ["squeue", "--noheader", "--array", "--format=%i %T %j"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if name in line]


def job_names(sandbox: Sandbox) -> list[str]:
    """The submissions that the runs of a sandbox were last given to."""
    found = [json.loads(path.read_text())["name"] for path in sandbox.out.glob("*/job.json")]
    return sorted(set(found))
