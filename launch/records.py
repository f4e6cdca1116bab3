"""What submitting leaves: `job.json` with each run, so that it is not given to a second job, and paths of stderr.

`.submit/NAME.json` beside the runs says where the jobs of a submission write their stderr.
"""

import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from launch import LaunchError
from zo.run.store.atomic import read_json, replace_json
from zo.run.store.lock import holder

NAME = "job.json"
SETUP_FAILED = "hydra.launcher.setup failed"
LAST_LINES = 3  # Of a job's stderr


class QueueError(LaunchError):
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

    def write(self, directory: Path) -> None:
        """Leaves it with a run."""
        replace_json(directory / NAME, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> "Record | None":
        """Returns a run's record, if it was ever submitted."""
        found = read_json(directory / NAME)
        return cls(**found) if found else None

    @classmethod
    def alive(cls, records: Collection["Record"], ask_queue: bool) -> dict["Record", str]:
        """Returns the records whose job still waits or runs, and that job in words; SLURM's by its id as in `squeue`.

        `ask_queue=False` takes SLURM's jobs to be all alive.

        Raises:
            QueueError: If SLURM cannot be asked about one of them.
        """
        on_slurm = {record.name for record in records if record.launcher == "slurm"}
        local = {record.name for record in records} - on_slurm
        alive = {name for name in local if holder(Path(name)) is not None}
        jobs = queue(sorted(on_slurm)) if ask_queue and on_slurm else {}
        alive |= set() if ask_queue else on_slurm
        known = {record: jobs.get((record.name, record.index)) for record in records}
        found = {record: f"slurm job {job}" for record, job in known.items() if job}
        return found | {r: f"{r.launcher} job {r.name}" for r in records if r.name in alive}


def written_since_given(directory: Path, name: str) -> bool:
    """Whether a file of a run was written after the run was given to its job."""
    path = directory / name
    return path.exists() and path.stat().st_mtime >= (directory / NAME).stat().st_mtime


def queue(names: list[str]) -> dict[tuple[str, int], str]:
    """Returns (job name, index in the array) -> id of the jobs in the queue. Raises QueueError if nobody can say."""
    if shutil.which("squeue") is None:
        raise QueueError("squeue is not on PATH here, and runs were given to SLURM")
    command = ["squeue", "--noheader", "--array", "--format=%i|%j|%K", f"--name={','.join(names)}"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise QueueError(f"squeue says: {done.stderr.strip() or done.returncode}")
    rows = (line.split("|") for line in done.stdout.split())
    return {(name, int(index) if index.isdigit() else 0): job for job, name, index in rows}


def note_stderr(out: Path, submission: str, paths: Sequence[Path]) -> None:
    """Notes where the jobs of a submission write their stderr, in the order of their array."""
    replace_json(out / ".submit" / f"{submission}.json", {"stderr": [str(path) for path in paths]})


def early_death(directory: Path, record: Record) -> str | None:
    """Returns the last lines and path of the stderr of a run's job if the job died before Python; it has ended.

    A cancelled job did not die.
    """
    try:
        noted = read_json(directory.parent / ".submit" / f"{record.name}.json")
        path = Path(noted["stderr"][record.index])
        text = path.read_text(errors="replace", encoding="utf-8")
    except (KeyError, FileNotFoundError):  # not on SLURM, or never started
        return None
    lines = [line for line in text.splitlines() if line.strip()][-LAST_LINES:]
    last = lines[-1] if lines else ""
    started = written_since_given(directory, "log.txt") and not last.startswith(SETUP_FAILED)
    if started or ("CANCELLED AT" in last and "TIME LIMIT" not in last):
        return None
    return f"the job died before it ran: {' | '.join(lines) or 'it printed nothing'}, see {path}"
