"""texts.jsonl: texts of each evaluation with their rewards, and texts that a reward function could not rate."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zo.record.appender import Appender
from zo.run.store.rows import TEXTS

MOST_LINES = 10_000
"""Lines that one attempt writes: all failures are counted in metrics.jsonl."""


class TextLog:
    """Adds lines to `texts.jsonl`.

    Args:
        directory: The run's own.
        after: Last step of the rows that are kept; lines of later steps are removed.
    """

    def __init__(self, directory: Path, after: int):
        self._path, self._after, self._lines = directory / TEXTS, after, 0
        self._file = Appender(self._path, self._kept()) if self._path.exists() else None

    def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds a line per row."""
        if not rows or self._lines >= MOST_LINES:
            return
        if self._file is None:
            self._file = Appender(self._path)
        self._lines += len(rows)
        lines = [json.dumps({"step": step, **row}, default=str) for row in rows]
        self._file.write(("\n".join(lines) + "\n").encode())

    def _kept(self) -> int:
        """Returns the bytes of the file up to the first line of a later step."""
        kept = 0
        for line in self._path.read_bytes().splitlines(keepends=True):
            try:
                if json.loads(line)["step"] > self._after:
                    break
            except (ValueError, KeyError, TypeError):  # torn
                break
            kept += len(line)
        return kept
