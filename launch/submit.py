"""Submits what of a sweep is missing or was interrupted, and nothing else. The jobs go on without this process.

    zo submit sweep=table1 hydra/launcher=slurm hydra.launcher.partition=gpu
    zo submit sweep=table1 hydra/launcher=slurm --retry-failed
    zo submit sweep=quickstart hydra/launcher=local --dry-run

May be repeated at any time, by several people at once: a run that is finished, runs or waits in the queue is left
alone. Without hydra/launcher=... it is slurm where there is an sbatch, else local. How it goes: zo status
"""

import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launch import LaunchError, local, manifest, slurm
from launch.profile import LocalProfile, Profile, SlurmProfile, profile_of, register
from launch.records import Record
from launch.status import hours_left
from launch.sweep import Run, Standing, Sweep, counted, standings
from zo import config
from zo.config import ConfigError, Problem, command_line
from zo.config.presets import unknown_copies
from zo.extras import alias, parser, progress
from zo.run.signals import CTRL_C, INTERRUPTED
from zo.run.store.directory import DirectoryError, freeze
from zo.run.store.lock import held, holder

UNUSABLE = (ConfigError, DirectoryError, LaunchError)
SUBMITTABLE = ("missing", "interrupted")


class Submission:
    """A sweep that is to be submitted: composed and checked, with the profile that says how.

    Raises:
        ConfigError: If a run or the profile has a problem.
    """

    def __init__(self, sweep: Sweep):
        self.sweep = sweep
        self.profile: Profile = profile_of(sweep.asked)
        if any(not run.cfg.resume for run in self.sweep.runs):
            right = "must be true for a job, which would start anew whenever it is queued again; remove its directory"
            raise ConfigError([Problem("resume", False, right)])
        self.name = f"zo-{self.sweep.name}-{uuid.uuid4().hex[:8]}"
        self.process: subprocess.Popen[bytes] | None = None  # makes the runs on this machine

    @property
    def on_slurm(self) -> bool:
        """Whether the jobs go to SLURM."""
        return isinstance(self.profile, SlurmProfile)

    def choose(
        self, retry_failed: bool, limit: int | None = None, ask_queue: bool = True
    ) -> tuple[list[Run], dict[str, Standing]]:
        """Returns the runs that would be submitted, at most `limit`, and where all stand."""
        found = standings(self.sweep.runs, ask_queue)
        states = (*SUBMITTABLE, "failed") if retry_failed else SUBMITTABLE
        chosen = [run for run in self.sweep.runs if found[run.run_id].state in states]
        return chosen[:limit], found

    def give(self, retry_failed: bool, limit: int | None = None) -> dict[str, Standing]:
        """Submits what `choose` returns, while no other process submits to the same directory, and says so.

        Returns where all runs stood before.

        Raises:
            LaunchError: If SLURM does not answer or refuses, or a process does not start.
            DirectoryError: If a run's directory cannot be written or is of another run.
        """
        if self.on_slurm:
            slurm.check()
        out = Path(self.sweep.runs[0].cfg.out).absolute()
        if (problem := command_line.directory_problem(str(out))) is not None:
            raise ConfigError([problem])
        directory = out / ".submit"
        directory.mkdir(parents=True, exist_ok=True)
        if (other := holder(directory)) is not None:
            print(f"waiting for another submitter: {other}", file=sys.stderr)
        with held(directory, patience_s=-1):
            chosen, before = self.choose(retry_failed, limit)
            manifest.write(self.sweep.manifest, out)
            if chosen:
                self._give(chosen)
        print(f"{len(before)} runs: {counted(before.values())}; {len(chosen)} submitted")
        print(hours_left(self.sweep, before, local=isinstance(self.profile, LocalProfile)))
        return before

    def _give(self, runs: list[Run]) -> None:
        directories = [freeze(run.cfg).absolute() for run in progress(runs, "freezing")]
        now = time.time()
        if isinstance(self.profile, LocalProfile):
            folder = Path(self.profile.folder) / self.name
            for directory in directories:
                Record("local", str(folder), 0, now).write(directory)
            self.process = local.start(folder, directories, self.profile)
            return
        size = self.profile.runs_per_job
        groups = [directories[i : i + size] for i in range(0, len(directories), size)]
        for i, directory in enumerate(directories):
            Record("slurm", self.name, i // size, now).write(directory)
        job = slurm.submit(groups, self.profile, self.name)
        print(f"SLURM job {job}" + f", {len(groups)} in its array" * (len(groups) > 1))

    def described(self, runs: int) -> str:
        """Returns in words what so many runs would ask the cluster, or this machine, for."""
        if isinstance(self.profile, LocalProfile):
            folder = Path(self.profile.folder) / "SUBMISSION"
            each = f"{self.profile.processes} at once for each GPU, or without one"
            return f"on this machine: {runs} runs, {each}; log {folder}/log.txt"
        jobs = -(-runs // self.profile.runs_per_job)
        return f"asked of SLURM: {slurm.described(self.profile, jobs)}"

    def stop(self) -> int:
        """Stops the runs on this machine and waits until they have saved; returns the exit status of this process."""
        if self.process is None:
            return CTRL_C
        self.process.terminate()
        with suppress(KeyboardInterrupt):  # a second one does not wait
            self.process.wait()
        return INTERRUPTED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser("submit", __doc__)
    made.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as for zo train -m")
    made.add_argument("--retry-failed", action="store_true", help="submit failed runs, too")
    made.add_argument("--limit", type=int, metavar="N", help="submit N runs at most")
    made.add_argument("--dry-run", action="store_true", help="list what would be submitted")
    args = made.parse_args(argv)
    if args.limit is not None and args.limit < 1:
        made.error("--limit must be at least 1")
    register()
    there = shutil.which("sbatch") is not None  # without it a dry run shows jobs as queued
    try:
        if not any(word.startswith("hydra/launcher=") for word in args.overrides):
            args.overrides.append(f"hydra/launcher={'slurm' if there else 'local'}")
        sweep = Sweep.of(args.overrides)
        if not sweep.runs:
            print(sweep.nothing_to_do)
            return 0
        submission, runs = Submission(sweep), sweep.runs
        for said in dict.fromkeys(s for r in runs for s in unknown_copies(r.cfg.model, r.cfg.task)):
            print(said, file=sys.stderr)
        if args.dry_run:
            chosen, before = submission.choose(args.retry_failed, args.limit, ask_queue=there)
            for run in chosen:
                print(f"{run.run_id}  {config.describe(run.cfg)}")
            print(hours_left(sweep, before))
            would = f"0 submitted, {len(chosen)} would be"
            print(f"{len(runs)} runs: {counted(before.values())}; {would}")
            if chosen:
                print(submission.described(len(chosen)))
            return 0
        before = submission.give(args.retry_failed, args.limit)
    except UNUSABLE as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Jobs that were submitted go on; the same command submits the rest", file=sys.stderr)
        return CTRL_C
    failed = sum(standing.state == "failed" for standing in before.values())
    if failed and not args.retry_failed:
        print(f"{failed} failed before: --retry-failed submits them, too")
    return 0


if __name__ == "__main__":
    sys.exit(alias("submit", main))
