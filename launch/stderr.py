"""The stderr of SLURM's jobs: what a job said that died before it started its runs."""

import json
from collections.abc import Sequence
from pathlib import Path

from launch.records import Record, written_since_given
from zo.run.store.atomic import replace_json

SETUP_FAILED = "hydra.launcher.setup failed"

TRAP = (
    """trap 'code=$?; if [ ${#BASH_SOURCE[@]} = 1 ]; then """
    f"""echo "{SETUP_FAILED} (exit status $code): $BASH_COMMAND" >&2; exit $code; fi' ERR"""
)
"""Ends a job's script at a command of its own that fails; commands in functions and sourced files may fail."""

LAST_LINES = 3


def note(out: Path, submission: str, paths: Sequence[Path]) -> None:
    """Notes where the jobs of a submission write their stderr, in the order of their array."""
    replace_json(_file(out, submission), {"stderr": [str(path) for path in paths]})


def of_early_death(directory: Path, record: Record) -> str | None:
    """Returns the last lines and path of the stderr of a run's job if the job died before Python; it has ended.

    A cancelled job did not die.
    """
    try:
        noted = json.loads(_file(directory.parent, record.name).read_text(encoding="utf-8"))
        path = Path(noted["stderr"][record.index])
        text = path.read_text(errors="replace", encoding="utf-8")
    except FileNotFoundError:  # not on SLURM, or never started
        return None
    lines = [line for line in text.splitlines() if line.strip()][-LAST_LINES:]
    last = lines[-1] if lines else ""
    started = written_since_given(directory, "log.txt") and not last.startswith(SETUP_FAILED)
    if started or ("CANCELLED AT" in last and "TIME LIMIT" not in last):
        return None
    return f"the job died before it ran: {' | '.join(lines) or 'it printed nothing'}, see {path}"


def _file(out: Path, submission: str) -> Path:
    return out / ".submit" / f"{submission}.json"
