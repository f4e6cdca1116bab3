"""The page's own tables: a sweep's summary, open runs, every run, machines, what is missing."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from analysis.paper.names import (
    SWEEPS,
    UNTRAINED,
    method_label,
    model_label,
    plain,
    task_label,
)
from analysis.report.table import ABSENT, COLLAPSED, Cell, Column, Row, Table, number
from analysis.select.cell_runs import EDGE, STATUSES, choose, over_seeds
from analysis.select.provenance import days, listed, revisions
from analysis.select.trials import Trials

LABELS: dict[str, Callable[[str], str]] = {
    "model": model_label,
    "task": task_label,
    "method": method_label,
    "precision": str,
}
WORDS = {key: f"{'optimizer' if key == 'method' else key}.name" for key in LABELS}
"""What the page filters by -> column of the runs frame."""


def headline(runs: pd.DataFrame, sweeps: list[str], filled: pd.DataFrame) -> dict[str, Any]:
    """The page's title, sentence, tiles and foot, as the template wants them."""
    asked = filled[filled["sweep"].isin(list(SWEEPS))].drop_duplicates("run_id")
    known, of = int((asked["status"] == "finished").sum()), len(asked)
    devices = runs["provenance.device"].nunique() if len(runs) else 0
    names = listed(runs, "provenance.device") if len(runs) else ""
    tiles = [
        _tile("Runs", len(runs), "read for this page", counted(runs)),
        _tile("The paper's runs", known, f"of {of:,} finished", "", [known / max(of, 1), 0]),
        _tile("Machines", devices, days(runs) or ABSENT, names),
    ]
    title = "Nothing has been run yet"
    summary = "Make runs with `python train.py -m sweep=quickstart`, then this page again with `make report`."
    footer = "Made by `python -m analysis report`."
    if len(runs):
        title = sweeps[0] if sweeps else "Single runs"
        mine = runs[runs["group"] == (sweeps[0] if sweeps else "")]
        missing = int((filled.loc[filled["sweep"] == title, "status"] == "missing").sum())
        total = len(mine) + missing
        ends = [int((mine["status"] == status).sum()) for status in STATUSES[:2]]
        words = counted(mine) + (f", {missing:,} not started" if missing else "")
        summary = f"The newest {'sweep' if sweeps else 'runs'}: {words}. What was run comes first, the paper after it."
        parts = [part / total for part in ends]
        newest = "Newest sweep" if sweeps else "Newest"
        tiles.insert(0, _tile(newest, ends[0], f"of {total:,} finished", words, parts))
        made = ", ".join(revisions(runs))
        footer += f" Runs made at git {made}." if made else ""
    return {"title": title, "summary": summary, "tiles": tiles, "footer": footer}


def _tile(
    label: str, figure: int, small: str, more: str, bar: list[float] | None = None
) -> dict[str, Any]:
    tile = {"label": label, "figure": f"{figure:,}", "small": small, "more": more}
    return tile | ({"bar": [round(100 * part, 2) for part in bar]} if bar else {})


def counted(runs: pd.DataFrame) -> str:
    """How many runs finished, collapsed, failed, or have no end."""
    if runs.empty:
        return "none"
    words = pd.Series([_state(row)[0] for row in runs.to_dict("records")]).value_counts()
    order = ("finished", "collapsed", "running or killed", "failed")
    return ", ".join(f"{words[word]:,} {word}" for word in order if word in words)


def summary_table(trials: Trials, name: str) -> Table:
    """A sweep's table: each method of each setting at its chosen learning rate."""
    means = over_seeds(choose(trials.table.rename(columns={"method": "optimizer"})))
    several = [key for key in ("model", "task", "precision") if means[key].nunique() > 1]
    several += ["variant"] if means["variant"].str.len().any() else []

    def trained(make: Callable[[Row], Cell]) -> Column:
        return lambda row: Cell(ABSENT) if row["optimizer"] in UNTRAINED else make(row)

    columns: dict[str, Column] = {
        "method": lambda row: method_label(row["optimizer"]),
        **{k: (lambda row, k=k: LABELS.get(k, str)(row[k])) for k in several},  # type: ignore[misc]
        "lr": trained(lambda r: number(r["lr"], "g", notes=(EDGE,) * bool(r["at_edge"]))),
        "val. %": lambda row: _mean(row, "val"),
        "test %": lambda row: _mean(row, "test"),
        "n": lambda row: Cell(f"{row['n']} of {row['seeds']}", float(row["n"])),
        "collapsed": ("collapsed", ".0f"),
        "best step": trained(lambda row: number(row["best_step"], ",.0f")),
        "ms per step": ("step_ms", ",.1f"),
        "GiB": ("peak_gib", ".2f"),
    }
    records = means.to_dict("records")
    facets = [
        {key: row[key] for key in ("model", "task", "precision")}
        | {"method": plain(row["optimizer"])}
        for row in records
    ]
    caption = [
        "Accuracies: mean ± sample standard deviation over the n finished seeds, test accuracy at the step of best "
        "validation accuracy. The learning rate is chosen by validation accuracy. `*`: every run collapsed.",
        *trials.notes,
    ]
    title, names = f"{trials.sweep}: each method at its chosen learning rate", 1 + len(several)
    return Table.of(title, records, columns, names=names, name=name, caption=caption, facets=facets)


def _mean(row: Row, which: str) -> Cell:
    if row["status"] == "collapsed":
        return Cell(COLLAPSED, kind="collapsed")
    if pd.isna(row[f"{which}_mean"]):
        return Cell(ABSENT, kind="missing")
    spread = row[f"{which}_std"]
    tail = "" if pd.isna(spread) else f" ± {100 * spread:.2f}"
    kind = "measured" if which == "test" else ""
    return number(row[f"{which}_mean"], ".2f", 100, tail=tail, runs=row["run_ids"], kind=kind)


RUN: dict[str, Column] = {
    "run": "run_id",
    "sweep": lambda row: row["group"] or ABSENT,
    **{key: (lambda row, key=key: _label(row, key)) for key in LABELS},  # type: ignore[misc]
    "lr": ("lr", "g"),
    "seed": ("seed", ".0f"),
    "status": lambda row: Cell(" at step ".join(_end(row)), kind=_state(row)[1]),
    "state": lambda row: Cell(_state(row)[0] + _exit_code(row), kind=_state(row)[1]),
    "val. %": ("best/val_accuracy", ".1f", 100),
    "test %": ("best/test_accuracy", ".1f", 100),
    "steps": ("last_step", ",.0f"),
    "step": ("last_step", ",.0f"),
    "of": ("steps", ",.0f"),
    "ms per step": ("time/step_ms_median", ",.1f"),
    "peak GiB": ("mem/peak_gib", ".2f"),
    "started (UTC)": lambda row: str(row["started"]).replace("T", " "),
    "device": lambda row: str(row.get("provenance.device") or ""),
}
"""Every column of a table of runs."""
OPEN = ("run", "state", "step", "of", "method", "lr", "seed", "started (UTC)")
EVERY = tuple(heading for heading in RUN if heading not in ("state", "step", "of"))


def open_table(runs: pd.DataFrame, title: str) -> Table:
    """Runs without an end: how far each is, and why it stopped where its log says so."""
    newest = runs.sort_values("started", ascending=False, kind="stable")
    said = "A log without an exit code belongs to a run that goes on, or to one that was killed."
    return _runs(newest, title, OPEN, said)


def runs_table(runs: pd.DataFrame, title: str, name: str) -> Table:
    """One row per run, whatever became of it."""
    said = "`ms per step` is the median; on a CPU, memory is the whole process's."
    return _runs(runs, title, EVERY, said, name)


def _runs(
    runs: pd.DataFrame, title: str, heads: tuple[str, ...], said: str, name: str = ""
) -> Table:
    records = runs.to_dict("records")
    columns = {heading: RUN[heading] for heading in heads}
    facets = [
        {key: row[column] for key, column in WORDS.items() if isinstance(row.get(column), str)}
        for row in records
    ]
    return Table.of(title, records, columns, name=name, caption=[said], facets=facets)


def devices_table(runs: pd.DataFrame) -> Table:
    """What was run on which device, when, and with which versions."""
    device = runs.reindex(columns=["provenance.device"])["provenance.device"].fillna("unknown")
    rows = []
    for keys, part in runs.groupby([device, runs["group"].replace("", "single runs")], sort=True):
        seconds = pd.to_numeric(part.reindex(columns=["time/total_s"])["time/total_s"])
        known: dict[str, Any] = dict(zip(("device", "sweep"), map(str, keys), strict=True))  # type: ignore[call-overload]
        known |= {"torch": listed(part, "provenance.versions.torch"), "days": days(part)}
        known |= {"git": ", ".join(revisions(part)) or "unknown", "hours": seconds.sum() / 3600}
        rows.append({s: int((part["status"] == s).sum()) for s in STATUSES[:3]} | known)
    columns: dict[str, Column] = {
        **{key: key for key in ("device", "sweep", "torch", "git")},
        **{status: (status, ".0f") for status in STATUSES[:3]},
        "hours": ("hours", ".2f"),
        "days": "days",
    }
    title = "What was run on which device, and when"
    return Table.of(title, rows, columns, names=4, name="devices-table")


def _end(row: Row) -> list[str]:
    """What became of a run, and at which step it collapsed."""
    step = row.get("run/collapse_step")
    there = row["status"] == "collapsed" and step is not None and pd.notna(step)
    return [_state(row)[0], *([str(int(step))] if there else [])]  # type: ignore[arg-type]


def _exit_code(row: Row) -> str:
    return f" (exit code {int(row['exit_code'])})" if _state(row)[0] == "failed" else ""


def _state(row: Mapping[Any, Any]) -> tuple[str, str]:
    """What became of a run, in words, and how that looks."""
    if row["status"] != "unfinished":
        return str(row["status"]), "collapsed" if row["status"] == "collapsed" else ""
    code = row.get("exit_code")
    ended = code is not None and pd.notna(code) and int(code) != 0
    return ("failed", "collapsed") if ended else ("running or killed", "missing")


def _label(row: Row, key: str) -> str:
    value = row.get(WORDS[key])
    return LABELS[key](value) if isinstance(value, str) else ABSENT
