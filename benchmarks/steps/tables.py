"""The measured steps as tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.report.style import look
from analysis.report.table import Table
from benchmarks.steps.cases import FORWARD, METHODS, PAPER_WAY
from benchmarks.steps.records import SETTING, with_sums
from benchmarks.steps.shapes import SHAPES

PAPER = Path(__file__).resolve().parents[2] / "results" / "paper" / "table4.csv"
TARGETS_MS = {"bszo": 150, "lozo": 80, "mezo": 110, "hizoo": 200, "mezo_adam": 220}
"""Of a step of OPT-13B in bfloat16 on an H200."""

TARGETS_FASTER = {"sst2": 3, "trec": 6}
"""BSZO over the released code's way: 12-layer OPT of width 768, float32, on a CPU."""

ORDER = {method: place for place, method in enumerate((FORWARD, *METHODS))}
HEADS = ("step", "restore", "noise", "ms", "forward", "weights", "rest", "roofline", "× roofline")
HEADS += ("released", "× faster", "time × MeZO's", "passes", "estimated", "state, bytes")
HEADS += ("beyond MeZO's", "GiB", "memory × forward's", "memory × MeZO's")
HEADS += ("paper, ms", "paper, GB", "target")


def tables(rows: pd.DataFrame) -> Iterator[Table]:
    """Yields a table per setting, without columns that are empty, with ceilings and provenance below it."""
    for _, group in with_sums(rows).groupby(SETTING):
        way = zip(group["restore"], group["noise"], strict=True)
        group = group.assign(place=group["method"].map(ORDER), new=[w != PAPER_WAY for w in way])
        group = group.sort_values(["place", "new", "noise", "restore"])
        lines = pd.DataFrame([_line(row, group) for _, row in group.iterrows()], columns=HEADS)
        used = lines.loc[:, (lines != "").any()]
        body, first = list(used.to_numpy().tolist()), group.iloc[0]
        yield Table(title(first), list(used), body, names=3, caption=[_remark(group)])


def _line(row: Any, group: pd.DataFrame) -> list[str]:
    """Returns the cells of a row; the rows of its setting are what it is compared with."""
    same = (group["restore"] == row["restore"]) & (group["noise"] == row["noise"])
    forward, mezo = group[group["method"] == FORWARD], group[(group["method"] == "mezo") & same]
    one, memory = row["method"] == FORWARD, row["peak_gib"] - row["before_gib"]
    paper = _printed(row["shape"], row["dtype"]) if row["examples"] == "sst2" else {}
    over_forward = _over(memory, forward["peak_gib"] - forward["before_gib"])
    over_mezo = _over(memory, mezo["peak_gib"] - mezo["before_gib"])
    over_time = _over(row["step_ms"], mezo["step_ms"])
    if row["method"] == "mezo":
        over_time = ""
    elif pd.notna(row["mezo_processor_ms"]):  # taken in turns; else step times of two rows
        over_time = f"{row['processor_ms'] / row['mezo_processor_ms']:.2f}"
    return [
        label(row["method"]),
        *("" if one else row[way] for way in ("restore", "noise")),
        *(_ms(row[f"{part}_ms"]) for part in ("step", "forward", "weights", "rest", "roofline")),
        f"{row['step_ms'] / row['roofline_ms']:.2f}" if row["roofline_ms"] else "",
        _ms(row["plain_ms"]),
        _number(row["plain_ms"] / row["step_ms"], ".1f"),
        "" if one else over_time,
        *(_number(row[name], ".3g") for name in ("passes", "passes_estimated")),
        _number(row["state_bytes"] / row["values"], ".3g"),
        _beyond(row, memory, mezo),
        f"{row['peak_gib']:.2f}",
        over_forward,
        "" if one else over_mezo,
        *(paper.get((row["method"], of), "") for of in ("step_ms", "memory_gb")),
        _target(row),
    ]


def _beyond(row: Any, memory: float, mezo: pd.DataFrame) -> str:
    """Memory beyond MeZO's of the same way, bytes per value; half a byte is the spread of two processes."""
    if row["method"] in (FORWARD, "mezo") or pd.isna(row["state_bytes"]) or mezo.empty:
        return ""
    of_mezo = (mezo["peak_gib"] - mezo["before_gib"]).iloc[0]
    return f"{(memory - of_mezo) * 2**30 / row['values']:.1f}"


def _target(row: Any) -> str:
    if row["method"] == "bszo" and row["shape"] == "opt-125m" and row["device"] == "cpu":
        return f"≥ {TARGETS_FASTER[row['examples']]}×"
    if row["shape"] == "opt-13b" and row["dtype"] == "bfloat16" and row["method"] in TARGETS_MS:
        return f"≤ {TARGETS_MS[row['method']]}"
    return ""


def title(row: Any) -> str:
    """Returns what the rows of a setting have in common, in words."""
    place = f"{row['threads']} threads" if row["device"] == "cpu" else row["device"]
    data = {"sst2": "SST-2-like", "trec": "TREC-like"}[row["examples"]]
    model = f"{row['shape']}, {row['dtype']}, {data} batch of {row['batch_size']}"
    return f"{model}; {row['machine']}, {place}"


def label(method: str) -> str:
    """Returns a method's name in print."""
    return "one forward pass" if method == FORWARD else look(method).label


def _remark(group: pd.DataFrame) -> str:
    row = group.iloc[0]
    rates = group.groupby("noise", sort=False)["normals_per_ns"].last()
    drawn = ", ".join(f"{rate:.3g} ({noise})" for noise, rate in rates.items())
    days, codes = sorted(group["date"].str[:10].unique()), sorted(group["code"].unique())
    return (
        f"{row['values']:,} trainable values. Ceilings: {row['gb_per_s']:.3g} GB/s, {row['gflop_per_s']:.4g} GFLOP/s,"
        f" {drawn} normals per ns. Medians of {row['rounds']} rounds over {row['batches']} mini-batch"
        f"{'es' if row['batches'] > 1 else ''}; {row['versions']}; code {', '.join(codes)};"
        f" {' to '.join(days[:1] + days[1:][-1:])}."
    )


def _printed(shape: str, dtype: str) -> dict[tuple[str, str], str]:
    """The paper's Table 4 for a model, in the dtype in which it ran it."""
    if SHAPES[shape].dtype != dtype:
        return {}
    frame = pd.read_csv(PAPER).query("model == @shape")
    printed = zip(frame["method"], frame["quantity"], frame["printed"], strict=True)
    return {(method, quantity): f"{value:g}" for method, quantity, value in printed}


def _ms(value: float) -> str:
    return _number(value, ",.0f" if value >= 100 else ".3g")


def _number(value: float, form: str) -> str:
    return "" if pd.isna(value) else f"{value:{form}}"


def _over(value: float, of: pd.Series) -> str:
    return f"{value / of.iloc[0]:.2f}" if len(of) and of.iloc[0] else ""
