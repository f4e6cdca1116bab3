"""The measured steps as tables."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from analysis.report.style import look
from analysis.report.table import Cell, Table
from benchmarks.steps.cases import FORWARD, METHODS
from benchmarks.steps.records import Row
from benchmarks.steps.shapes import SHAPES

PAPER = Path(__file__).resolve().parents[2] / "results" / "paper" / "table4.csv"
TARGETS_MS = {"bszo": 150, "lozo": 80, "mezo": 110, "hizoo": 200, "mezo_adam": 220}
"""Of a step of OPT-13B in bfloat16 on an H200."""
TARGETS_FASTER = {"sst2": 3, "trec": 6}
"""BSZO over the released code's way: 12-layer OPT of width 768, float32, on a CPU."""


@dataclass(frozen=True)
class Context:
    """What a row is compared with.

    Attributes:
        forward: The row of one forward pass of its setting.
        mezo: MeZO's row of its setting, policy and noise.
        paper: (method, quantity) -> the paper's printed number for its shape, if it has its dtype.
    """

    forward: Row | None
    mezo: Row | None
    paper: dict[tuple[str, str], float]


def _forward_times(row: Row, context: Context) -> str:
    return _times(_net(row), context.forward and _net(context.forward))


def _mezo_times(row: Row, context: Context) -> str:
    return "" if row.method == FORWARD else _times(_net(row), context.mezo and _net(context.mezo))


def _over_mezo(row: Row, context: Context) -> str:
    """Processor times taken in turns; where there are none, step times of two rows."""
    if row.method == FORWARD or context.mezo is row:
        return ""
    if row.over_mezo is not None:
        return f"{row.over_mezo:.2f}"
    return _times(row.step_ms, context.mezo and context.mezo.step_ms)


def _state(row: Row, _: Context) -> str:
    return "" if row.state_bytes is None else f"{row.state_bytes / row.values:.3g}"


def _state_measured(row: Row, context: Context) -> str:
    """Memory beyond MeZO's of the same way; half a byte is the spread of two processes."""
    if row.method in (FORWARD, "mezo") or row.state_bytes is None or context.mezo is None:
        return ""
    return f"{(_net(row) - _net(context.mezo)) * 2**30 / row.values:.1f}"


def _paper(quantity: str) -> Callable[[Row, Context], str]:
    def cell(row: Row, context: Context) -> str:
        found = context.paper.get((row.method, quantity))
        return "" if found is None else f"{found:g}"

    return cell


def _target(row: Row, _: Context) -> str:
    if row.method == "bszo" and row.shape == "opt-125m" and row.device == "cpu":
        return f"≥ {TARGETS_FASTER[row.examples]}×"
    if row.shape == "opt-13b" and row.dtype == "bfloat16" and row.method in TARGETS_MS:
        return f"≤ {TARGETS_MS[row.method]}"
    return ""


COLUMNS: dict[str, Callable[[Row, Context], str]] = {
    "step": lambda row, _: label(row.method),
    "restore": lambda row, _: "" if row.method == FORWARD else row.restore,
    "noise": lambda row, _: "" if row.method == FORWARD else row.noise,
    "ms": lambda row, _: _ms(row.step_ms),
    "forward": lambda row, _: _ms(row.forward_ms),
    "weights": lambda row, _: _ms(row.weights_ms),
    "rest": lambda row, _: _ms(row.rest_ms),
    "roofline": lambda row, _: _ms(row.roofline_ms),
    "× roofline": lambda row, _: _times(row.step_ms, row.roofline_ms),
    "released": lambda row, _: "" if row.plain_ms is None else _ms(row.plain_ms),
    "× faster": lambda row, _: "" if row.faster is None else f"{row.faster:.1f}",
    "time × MeZO's": _over_mezo,
    "passes": lambda row, _: "" if row.passes is None else f"{row.passes:.3g}",
    "estimated": lambda row, _: (
        "" if row.passes_estimated is None else f"{row.passes_estimated:.3g}"
    ),
    "state, bytes": _state,
    "beyond MeZO's": _state_measured,
    "GiB": lambda row, _: f"{row.peak_gib:.2f}",
    "memory × forward's": _forward_times,
    "memory × MeZO's": _mezo_times,
    "paper, ms": _paper("step_ms"),
    "paper, GB": _paper("memory_gb"),
    "target": _target,
}
"""Heading -> text of a row."""

WORDS = 3  # the first columns are words, the others numbers


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yields a table per setting, without columns that are empty, with ceilings and provenance below it."""
    ordered = sorted(rows, key=lambda row: (row.setting, *_place(row)))
    for _, group in groupby(ordered, key=lambda row: row.setting):
        members = list(group)
        lines = [[cell(row, context(row, members)) for cell in COLUMNS.values()] for row in members]
        used = [i for i in range(len(COLUMNS)) if any(line[i] for line in lines)]
        cells: list[Sequence[Cell | str]] = [[line[i] for i in used] for line in lines]
        heads = [list(COLUMNS)[i] for i in used]
        yield Table(title(members[0]), heads, cells, names=WORDS, caption=[_remark(members)])


def context(row: Row, members: Sequence[Row]) -> Context:
    """Returns what a row is compared with among the rows of its setting."""
    way = (row.restore, row.noise)
    return Context(
        forward=next((r for r in members if r.method == FORWARD), None),
        mezo=next((r for r in members if r.method == "mezo" and (r.restore, r.noise) == way), None),
        paper=_printed(row.shape, row.dtype) if row.examples == "sst2" else {},
    )


def title(row: Row) -> str:
    """Returns what the rows of a setting have in common, in words."""
    place = f"{row.threads} threads" if row.device == "cpu" else row.device
    data = {"sst2": "SST-2-like", "trec": "TREC-like"}[row.examples]
    return f"{row.shape}, {row.dtype}, {data} batch of {row.batch_size}; {row.machine}, {place}"


def label(method: str) -> str:
    """Returns a method's name in print."""
    return "one forward pass" if method == FORWARD else look(method).label


def _remark(members: Sequence[Row]) -> str:
    row = members[0]
    normals = {r.noise: r.normals_per_ns for r in members}
    drawn = ", ".join(f"{rate:.3g} ({noise})" for noise, rate in normals.items())
    days = sorted({r.date[:10] for r in members})
    codes = sorted({r.code for r in members})
    return (
        f"{row.values:,} trainable values. Ceilings: {row.gb_per_s:.3g} GB/s, {row.gflop_per_s:.4g} GFLOP/s, {drawn}"
        f" normals per ns. Medians of {row.rounds} rounds over {row.batches} mini-batch"
        f"{'es' * (row.batches > 1)}; {row.versions}; code {', '.join(codes)}; {' to '.join(days[:1] + days[1:][-1:])}."
    )


def _place(row: Row) -> tuple[int, bool, str, str]:
    order = (FORWARD, *METHODS)
    place = order.index(row.method) if row.method in order else len(order)
    return place, (row.restore, row.noise) != ("subtract", "torch"), row.noise, row.restore


def _printed(shape: str, dtype: str) -> dict[tuple[str, str], float]:
    """The paper's Table 4 for a model, in the dtype in which it ran it."""
    if SHAPES[shape].dtype != dtype:
        return {}
    with PAPER.open(encoding="utf-8", newline="") as file:
        return {
            (line["method"], line["quantity"]): float(line["printed"])
            for line in csv.DictReader(file)
            if line["model"] == shape
        }


def _net(row: Row) -> float:
    return row.peak_gib - row.before_gib


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(value: float, of: float | None) -> str:
    return f"{value / of:.2f}" if of else ""
