"""What was measured: a csv file with one row per case. Times in ms, memory in GiB; an empty field was not measured.

machine to batches tell cases apart (see `Case`). Medians of `rounds` measurements: `step_ms`, and of it `forward_ms` in
forward passes and `weights_ms` in passes over the weights; `processor_ms` of all threads. Timed in turns with a case:
`plain_ms` and `plain_processor_ms`, the released code's step; `mezo_processor_ms`, MeZO's. `passes` over the weights
were made, `passes_estimated` are those that the roofline counts; `roofline_*_ms` are estimated times. `peak_gib` is the
most memory that steps need, `before_gib` what the process needs without a model. `gb_per_s`, `gflop_per_s` and
`normals_per_ns` are what the device does at best. `code` is a hash of what was measured; `revision` is git's, with +
if files had changed since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from benchmarks.steps.cases import Case
from zo.run import atomic

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ("src/zo/**/*.py", "conf/**/*.yaml", "benchmarks/steps/*.py")
DRAWN = ("figure.py", "records.py", "tables.py", "__main__.py")
"""Of benchmarks/steps: what changes no time."""

Row: TypeAlias = dict[str, Any]
KEY = ["machine", *(field.name for field in fields(Case))]
SETTING = ["machine", "device", "threads", "shape", "dtype", "examples"]
"""What rows that are compared have in common."""

COLUMNS = [
    *("machine", "device", "threads", "shape", "dtype", "examples", "method", "restore", "noise"),
    *("batch_size", "batches", "rounds", "forwards", "values"),
    *("step_ms", "forward_ms", "weights_ms", "processor_ms", "plain_ms", "plain_processor_ms"),
    *("mezo_processor_ms", "passes", "passes_estimated", "state_bytes"),
    *("roofline_forward_ms", "roofline_weights_ms", "peak_gib", "before_gib"),
    *("gb_per_s", "gflop_per_s", "normals_per_ns", "code", "revision", "versions", "date"),
]


def with_sums(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns rows with `roofline_ms` and `rest_ms`, what is neither forward passes nor passes over the weights."""
    rest = (rows["step_ms"] - rows["forward_ms"] - rows["weights_ms"]).clip(lower=0)
    roofline = rows["roofline_forward_ms"] + rows["roofline_weights_ms"]
    return rows.assign(rest_ms=rest, roofline_ms=roofline)


class Records:
    """The rows of a csv file, which is whole at any time.

    Args:
        path: Made with the first row.
    """

    def __init__(self, path: Path):
        self.path = path
        self.rows = pd.DataFrame(columns=COLUMNS)
        if path.exists():
            self.rows = pd.read_csv(path).reindex(columns=COLUMNS)  # an older file lacks some

    def add(self, rows: Iterable[Row]) -> None:
        """Adds rows, each in the place of an older one, and writes the file."""
        frame = pd.DataFrame(rows, columns=COLUMNS)
        if len(self.rows):
            frame = pd.concat([self.rows.astype(object), frame])
        frame = frame.drop_duplicates(KEY, keep="last").astype({"state_bytes": "Int64"})
        frame = frame.infer_objects()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = frame.to_csv(index=False, lineterminator="\n", float_format="%.6g")
        atomic.replace(self.path, text)
        self.__init__(self.path)  # type: ignore[misc]  # with the digits that the file holds

    def of(self, machine: str, cases: Sequence[Case]) -> pd.DataFrame:
        """Returns the rows of cases."""
        wanted = {(machine, *vars(case).values()) for case in cases}
        keys = zip(*(self.rows[name] for name in KEY), strict=True)
        return self.rows.loc[np.array([key in wanted for key in keys], dtype=bool)]

    def has(self, machine: str, case: Case, rounds: int, code: str) -> bool:
        """Whether a case was measured on this machine with this code, at least as often."""
        row = self.of(machine, [case])
        return bool(((row["code"] == code) & (row["rounds"] >= rounds)).any())


def code_hash() -> str:
    """Returns a hash of what decides the times: commits that touch nothing of it do not count."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in MEASURED for path in ROOT.glob(pattern)}):
        if path.parent.name != "steps" or path.name not in DRAWN:
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
