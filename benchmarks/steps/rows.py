"""What was measured: a csv file with one row per case, and its tables and figure.

Times are in ms, memory in GiB; an empty field was not measured. `step_ms` and its parts are medians of `rounds`
measurements. `passes` over the weights were made.
`peak_gib` is the most memory that steps need, `before_gib` what the process needs without a model. `code` is a hash of
what was measured; `revision` is git's, with + if files had changed since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from analysis.paper.names import method_label
from analysis.report.figures.drawing import RAMP
from analysis.report.figures.drawing import draw as draw_chart
from analysis.report.table import Column, Table
from benchmarks.steps.cases import FORWARD, METHODS, PAPER_WAY, Case
from benchmarks.steps.measure import Peak, Stepper, Times
from zo.run.provenance import provenance
from zo.run.store import atomic

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ("src/zo/**/*.py", "conf/**/*.yaml", "benchmarks/steps/*.py")
VERSIONS = ("python", "torch", "transformers")
TIMED = ("step", "forward", "weights", "processor")
KEY = ["machine", *(field.name for field in fields(Case))]
SETTING = ["machine", "device", "threads", "shape", "dtype", "examples"]
"""What rows that are compared have in common."""

COLUMNS = [
    *KEY,
    *("rounds", "forwards", "values", *(f"{part}_ms" for part in TIMED), "passes"),
    *("state_bytes", "peak_gib", "before_gib", "code", "revision", "versions", "date"),
]
NUMBERS = {
    "ms": ("step_ms", ",.1f"),
    **{part: (f"{part}_ms", ",.1f") for part in ("forward", "weights", "rest")},
    "× faster": ("faster", ".1f"),
    "time × MeZO's": ("time_mezo", ".2f"),
    "passes": ("passes", ".3g"),
    "state, bytes": ("state", ".3g"),
    "GiB": ("peak_gib", ".2f"),
    "memory × forward's": ("memory_forward", ".2f"),
    "memory × MeZO's": ("memory_mezo", ".2f"),
}
"""Heading of a table -> column of `_compared`, and its format."""

PARTS = {"forward_ms": "forward passes", "weights_ms": "passes over the weights", "rest_ms": "rest"}


def read(path: Path) -> pd.DataFrame:
    """Returns the rows of a csv file, none if there is no file."""
    rows = pd.read_csv(path) if path.exists() else pd.DataFrame()
    return rows.reindex(columns=COLUMNS)


def add(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Adds rows to a csv file, which is whole at any time, each in the place of an older one of the same case."""
    frame = pd.DataFrame(rows, columns=COLUMNS)
    if path.exists():
        frame = pd.concat([read(path).astype(object), frame])
    frame = frame.drop_duplicates(KEY, keep="last").astype({"state_bytes": "Int64"})
    path.parent.mkdir(parents=True, exist_ok=True)
    text = frame.infer_objects().to_csv(index=False, lineterminator="\n", float_format="%.6g")
    atomic.replace(path, text)


def of_cases(rows: pd.DataFrame, machine: str, cases: Iterable[Case]) -> pd.DataFrame:
    """Returns the rows of cases on a machine."""
    wanted = {(machine, *vars(case).values()) for case in cases}
    return rows[[key in wanted for key in rows[KEY].itertuples(index=False, name=None)]]


def row(stepper: Stepper, peak: Peak, times: Times, rounds: int) -> dict[str, Any]:
    """Returns the row of a case."""
    made, optimizer = provenance(stepper.assembly.device), stepper.assembly.optimizer
    found = {
        "machine": made["device"],
        **asdict(stepper.case),
        **{f"{name}_ms": 1e3 * getattr(times, name) for name in TIMED},
        "rounds": rounds,
        "forwards": 1,
        "values": sum(t.numel() for t in stepper.assembly.params.local),
        "peak_gib": peak.peak,
        "before_gib": peak.before,
        "code": code_hash(),
        "revision": made["git_revision"] + "+" * made["git_dirty"],
        "versions": ", ".join(f"{name} {made['versions'][name]}" for name in VERSIONS),
        "date": made["started"],
    }
    if stepper.case.method != FORWARD:
        found |= {"forwards": optimizer.config.forwards_per_step, "passes": times.passes}
        found |= {"state_bytes": optimizer.state_bytes()}
    return found


def code_hash() -> str:
    """Returns a hash of what decides the times: commits that touch nothing of it do not count."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in MEASURED for path in ROOT.glob(pattern)}):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def in_settings(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yields the rows of each setting: by method, in the paper's way first."""
    for _, group in rows.groupby(SETTING):
        new = group[["restore", "noise"]].ne(list(PAPER_WAY)).any(axis=1)
        group = group.assign(place=group["method"].map([FORWARD, *METHODS].index), new=new)
        yield group.sort_values(["place", "new", "noise", "restore"], ignore_index=True)


def tables(rows: pd.DataFrame) -> Iterator[Table]:
    """Yields a table per setting, without columns that are empty, with provenance below it."""
    for group in in_settings(rows):
        shown = _compared(group)
        columns: dict[str, Column] = {
            "step": lambda row: label(row["method"]),
            "restore": "restore",
            "noise": "noise",
            **{head: of for head, of in NUMBERS.items() if shown[of[0]].notna().any()},
        }
        name = title(group.iloc[0])
        yield Table.of(name, shown, columns, names=3, caption=[_remark(group)])


def _compared(group: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of a setting beside its forward pass, MeZO, and the same method in the paper's way."""
    trains, way = group["method"] != FORWARD, ["restore", "noise"]
    group = group.assign(memory=group["peak_gib"] - group["before_gib"], rest_ms=rest)
    mezo = group[group["method"] == "mezo"].set_index(way)[["step_ms", "memory"]]
    beside = group.join(mezo.add_suffix("_mezo"), on=way)
    paper = group[group[way].eq(list(PAPER_WAY)).all(axis=1)].set_index("method")["step_ms"]
    return beside.assign(
        faster=(beside["method"].map(paper) / beside["step_ms"]).where(trains),
        time_mezo=(beside["step_ms"] / beside["step_ms_mezo"]).where(trains),
        state=beside["state_bytes"] / beside["values"],
        memory_forward=beside["memory"] / beside["memory"][~trains].mean(),
        memory_mezo=(beside["memory"] / beside["memory_mezo"]).where(trains),
    )


def rest(rows: pd.DataFrame) -> pd.Series:
    """Returns what of a step is neither forward passes nor passes over the weights, in ms."""
    return (rows["step_ms"] - rows["forward_ms"] - rows["weights_ms"]).clip(lower=0)


def title(row: Any) -> str:
    """Returns what the rows of a setting have in common, in words."""
    place = f"{row['threads']} threads" if row["device"] == "cpu" else row["device"]
    data = {"sst2": "SST-2-like", "trec": "TREC-like"}[row["examples"]]
    model = f"{row['shape']}, {row['dtype']}, {data} batch of {row['batch_size']}"
    return f"{model}; {row['machine']}, {place}"


def label(method: str) -> str:
    """Returns a method's name in print."""
    return "one forward pass" if method == FORWARD else method_label(method)


def _remark(group: pd.DataFrame) -> str:
    row, days = group.iloc[0], sorted(group["date"].str[:10].unique())
    return (
        f"Milliseconds; {row['values']:,} trainable values. Medians of {row['rounds']} rounds over {row['batches']} "
        f"mini-batches; {row['versions']}; code {', '.join(sorted(group['code'].unique()))}; "
        f"{' to '.join(days[:1] + days[1:][-1:])}."
    )


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Draws what every step's time is made of, a panel per setting."""
    scale = alt.Scale(domain=[*PARTS.values()], range=[*RAMP[5:0:-2]])
    panels = []
    for group in in_settings(rows):
        names = group["method"].map(label) + ", " + group["restore"] + ", " + group["noise"]
        parts = group.assign(rest_ms=rest, way=names).rename(columns=PARTS)
        long = parts.melt(["way"], [*PARTS.values()], "part", "ms")
        y = alt.Y("way:N", sort=None, title=None)
        colour = alt.Color("part:N", scale=scale, sort=None)
        bars = alt.Chart(long).mark_bar().encode(alt.X("ms:Q", title="ms per step"), y, colour)
        size = {"width": 340, "height": alt.Step(10), "title": title(group.iloc[0])}
        panels.append(bars.properties(**size))
    draw_chart(alt.vconcat(*panels), path)
