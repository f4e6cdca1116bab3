"""What submitting leaves with a run, `job.json`: which job it was given to, so that it is not given to a second one."""

import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from launch import read_json
from zo.run.store.atomic import replace_json
from zo.run.store.lock import holder

NAME = "job.json"


class QueueError(RuntimeError):
    """SLURM does not say which jobs there are."""


@dataclass(frozen=True)
class Record:
    """A run's job.

    It is written before the job is submitted, under a name that no other submission has: a submitter that dies in
    between leaves no job that is not found again.
    """

    launcher: str  # `slurm` or `local`
    # The submission's: SLURM's job name, or the folder of the local process that starts the runs
    name: str
    index: int  # Of the job in its array; 0 where there is no array
    when: float  # Seconds since the epoch

    def __str__(self) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.when))
        place = f"[{self.index}]" if self.launcher == "slurm" else ""
        return f"{self.launcher} job {self.name}{place}, given at {at}"

    def write(self, directory: Path) -> None:
        """Leaves it with a run."""
        replace_json(directory / NAME, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> "Record | None":
        """Returns a run's record, if it was ever submitted."""
        found = read_json(directory / NAME)
        return cls(**found) if found else None

    @classmethod
    def alive(
        cls, records: Iterable["Record"], ask_queue: bool, through: "Queue | None" = None
    ) -> dict["Record", str]:
        """Returns the records whose job still waits or runs, and that job in words; SLURM's by its id as in `squeue`.

        `ask_queue=False` takes SLURM's jobs to be all alive.

        Raises:
            QueueError: If SLURM cannot be asked about one of them.
        """
        records = set(records)
        on_slurm = {record for record in records if record.launcher == "slurm"}
        local = {record.name for record in records - on_slurm}
        held = {name for name in local if holder(Path(name)) is not None}
        said = {r: str(r) for r in records if r in on_slurm or r.name in held}
        if ask_queue and on_slurm:
            queued = (through or queue)(sorted({record.name for record in on_slurm}))
            for record in on_slurm:
                job = queued.get((record.name, record.index))
                del said[record]
                if job is not None:
                    said[record] = f"slurm job {job}"
        return said


def record_is_older_than_status(directory: Path) -> bool:
    """Whether the status of a run was written after the run was given to its job."""
    written, given = ((directory / name).stat().st_mtime for name in ("status.json", NAME))
    return written >= given


def queue(names: list[str]) -> dict[tuple[str, int], str]:
    """Returns (job name, index in the array) and id of the jobs of these names that wait, run or come to an end.

    Raises:
        QueueError: If SLURM cannot be asked.
    """
    if shutil.which("squeue") is None:
        raise QueueError("squeue is not on PATH here, and runs were given to SLURM")
    command = ["squeue", "--noheader", "--array", "--format=%i|%j|%K", f"--name={','.join(names)}"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise QueueError(f"squeue says: {done.stderr.strip() or done.returncode}")
    rows = (line.split("|") for line in done.stdout.split())
    return {(name, int(index) if index.isdigit() else 0): job for job, name, index in rows}


class Queue:
    """`queue`, whose answer holds for a while: a controller serves many users."""

    def __init__(self, holds_s: float):
        self._holds_s = holds_s
        self.forget()

    def forget(self) -> None:
        """Makes the next call ask again."""
        self._until = 0.0
        self._names: frozenset[str] = frozenset()
        self._answer: dict[tuple[str, int], str] = {}

    def __call__(self, names: list[str]) -> dict[tuple[str, int], str]:
        """Returns what `queue` returns, or returned for these names a moment ago.

        Raises:
            QueueError: If SLURM is asked and does not answer.
        """
        if not self._names.issuperset(names) or time.monotonic() >= self._until:
            self._until = time.monotonic() + self._holds_s
            self._answer, self._names = queue(names), frozenset(names)
        return self._answer
