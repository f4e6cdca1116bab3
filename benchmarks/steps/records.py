"""What was measured, one csv row per case, with all that is needed to know what it means."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.steps.cases import Case
from zo.run import atomic

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ("src/zo/**/*.py", "conf/**/*.yaml", "tests/support/*.py", "benchmarks/steps/*.py")
DRAWN = ("figure.py", "forecast.py", "records.py", "tables.py", "__main__.py")
"""Of benchmarks/steps: what changes no time."""


@dataclass(frozen=True)
class Row:
    """A measured case. Times in ms, memory in GiB; None is not measured.

    Attributes:
        machine: The device's name.
        device: cpu or cuda.
        threads: Of the CPU.
        shape: See `Case`; likewise dtype to batches.
        rounds: Measurements, of which the times are medians.
        forwards: Forward passes of a step.
        values: Trainable values.
        step_ms: A whole step.
        forward_ms: Of it, forward passes.
        weights_ms: Of it, passes over the weights.
        processor_ms: Time of all of the process's threads.
        plain_ms: A step of the released code's way, timed in turns with this one.
        plain_processor_ms: Its processor time.
        mezo_processor_ms: Processor time of a step of MeZO, timed in turns with this one.
        passes: Passes over the weights that a step made.
        passes_estimated: Those that the roofline counts.
        state_bytes: Of the state that the method keeps between steps.
        roofline_forward_ms: Estimated time of the forward passes.
        roofline_weights_ms: Estimated time of the passes over the weights.
        peak_gib: The most memory that steps need.
        before_gib: What the process needs without a model.
        gb_per_s: Ceiling: a copy's bytes, read and written, 1e9 per second.
        gflop_per_s: Ceiling: matrix products, 1e9 operations per second.
        normals_per_ns: Ceiling: standard normals, 1e9 per second.
        code: Hash of the code that was measured.
        revision: Git's, with + if files had changed since.
        versions: Of Python and PyTorch and transformers.
        date: When it was measured, UTC.
    """

    machine: str
    device: str
    threads: int
    shape: str
    dtype: str
    examples: str
    method: str
    restore: str
    noise: str
    batch_size: int
    batches: int
    rounds: int
    forwards: int
    values: int
    step_ms: float
    forward_ms: float
    weights_ms: float
    processor_ms: float
    plain_ms: float | None
    plain_processor_ms: float | None
    mezo_processor_ms: float | None
    passes: float | None
    passes_estimated: float | None
    state_bytes: int | None
    roofline_forward_ms: float
    roofline_weights_ms: float
    peak_gib: float
    before_gib: float
    gb_per_s: float
    gflop_per_s: float
    normals_per_ns: float
    code: str
    revision: str
    versions: str
    date: str

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells cases apart: a newer row with the same key takes the older one's place."""
        return (self.machine, *(getattr(self, field.name) for field in fields(Case)))

    @property
    def setting(self) -> tuple[Any, ...]:
        """What rows that are compared have in common."""
        return (self.machine, self.device, self.threads, self.shape, self.dtype, self.examples)

    @property
    def roofline_ms(self) -> float:
        """The estimated time of a step."""
        return self.roofline_forward_ms + self.roofline_weights_ms

    @property
    def rest_ms(self) -> float:
        """Of a step, what is neither forward passes nor passes over the weights."""
        return max(0.0, self.step_ms - self.forward_ms - self.weights_ms)

    @property
    def over_mezo(self) -> float | None:
        """Processor time over that of MeZO's step."""
        return (
            None if self.mezo_processor_ms is None else self.processor_ms / self.mezo_processor_ms
        )

    @property
    def faster(self) -> float | None:
        """How many times faster than the released code's way."""
        return None if self.plain_ms is None else self.plain_ms / self.step_ms


class Records:
    """The rows of a csv file, which is whole at any time.

    Args:
        path: Made with the first row.
    """

    def __init__(self, path: Path):
        self.path = path
        self._rows: dict[tuple[Any, ...], Row] = {}
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                self._rows = {row.key: row for row in map(_parsed, csv.DictReader(file))}

    @property
    def rows(self) -> list[Row]:
        """All rows, cases of one setting together."""
        return list(self._rows.values())

    def add(self, rows: Iterable[Row]) -> None:
        """Adds rows, with the digits that the file holds, each in the place of an older one, and writes the file."""
        self._rows |= {row.key: _parsed(_written(row)) for row in rows}
        text = io.StringIO()
        table = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
        table.writeheader()
        table.writerows(map(_written, self.rows))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atomic.replace(self.path, text.getvalue())

    def has(self, machine: str, case: Case, rounds: int, code: str) -> bool:
        """Whether a case was measured on this machine with this code, at least as often."""
        row = self._rows.get((machine, *(getattr(case, field.name) for field in fields(Case))))
        return row is not None and row.code == code and row.rounds >= rounds


def code_hash() -> str:
    """Returns a hash of what decides the times: commits that touch nothing of it do not count."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in MEASURED for path in ROOT.glob(pattern)}):
        if path.parent.name != "steps" or path.name not in DRAWN:
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _written(row: Row) -> dict[str, str]:
    return {field.name: _shown(getattr(row, field.name)) for field in fields(Row)}


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _parsed(texts: dict[str, str]) -> Row:
    values: dict[str, Any] = {}
    for field in fields(Row):
        text = texts.get(field.name, "")  # a column that an older file lacks
        kind = str(field.type)
        if "None" in kind and not text:
            values[field.name] = None
        elif "float" in kind:
            values[field.name] = float(text)
        else:
            values[field.name] = int(text) if "int" in kind else text
    return Row(**values)
