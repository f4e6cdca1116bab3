"""The page's own tables: a sweep's summary, open runs, every run, machines, printed and measured, what is missing."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.paper.names import UNTRAINED, method_label, model_label, task_label
from analysis.paper.printed_numbers import AVERAGE
from analysis.report.table import ABSENT, COLLAPSED, Cell, Table, number
from analysis.select.cell_runs import EDGE, choose, command, over_seeds, variant
from analysis.select.study_sweeps import PREFIX
from analysis.select.trials import Trials

LABELS = {
    "model": model_label,
    "task": task_label,
    "method": method_label,
    "optimizer": method_label,
}
WORDS = {
    "model": "model.name",
    "task": "task.name",
    "method": "optimizer.name",
    "precision": "precision.name",
}
QUANTITIES = {
    "mean": "accuracy, %",
    "test_accuracy": "accuracy, %",
    "memory_gb": "memory, GB",
    "step_ms": "ms per step",
}
STANDS_FOR = {
    "table1": "Tables 1 and 11",
    "table3_opt_1_3b": "Table 3, OPT-1.3B",
    "table3_mistral_7b": "Table 3, Mistral-7B",
    "table3_opt_13b": "Table 3, OPT-13B",
    "table4": "Table 4, Figure 2",
    "table5_a": "Tables 5 (a), 12 (a)",
    "table5_b": "Tables 5 (b), 12 (b)",
    "table5_c": "Table 5 (c)",
    "table5_d": "Table 5 (d)",
    "table12_c": "Table 12 (c)",
    "figure1": "Figure 1",
}
"""Sweep -> what of the paper it makes; every other sweep is ours."""
PAPER_COLUMNS = (
    *("table", "model", "task", "method", "precision", "setting"),
    *("paper", "measured", "difference", "n", "lr"),
)
MEASURED = PAPER_COLUMNS.index("measured")
NO_TASK = "-"  # an average, or a memory: no choice of a task shows it


def headline(runs: pd.DataFrame, sweeps: list[str], filled: pd.DataFrame) -> dict[str, Any]:
    """The page's title, sentence, tiles and foot, as the template wants them."""
    devices = sorted(set(_text(runs, "provenance.device")) - {""}) if len(runs) else []
    days = sorted({day[:10] for day in runs["started"]}) if len(runs) else []
    span = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else ABSENT
    tiles: list[dict[str, Any]] = [
        {
            "label": "Runs",
            "figure": f"{len(runs):,}",
            "small": "read for this page",
            "more": counted(runs),
        }
    ]
    title = "Nothing has been run yet"
    summary = "Make runs with `python train.py -m sweep=quickstart`, then this page again with `make report`."
    if len(runs):
        title = sweeps[0] if sweeps else "Single runs"
        mine = runs[runs["group"] == (sweeps[0] if sweeps else "")]
        cells = filled[filled["sweep"] == title]
        missing = int((cells["status"] == "missing").sum())
        total = len(mine) + missing
        ended, dead = (
            int((mine["status"] == status).sum()) for status in ("finished", "collapsed")
        )
        shares = [round(100 * part / total, 2) for part in (ended, dead)]
        words = counted(mine) + (f", {missing:,} not started" if missing else "")
        summary = f"The newest {'sweep' if sweeps else 'runs'}: {words}. What was run comes first, the paper after it."
        tiles.insert(
            0,
            {
                "label": "Newest sweep" if sweeps else "Newest",
                "figure": f"{ended:,}",
                "small": f"of {total:,} finished",
                "more": words,
                "bar": shares,
            },
        )
    asked = filled[filled["sweep"].isin(list(STANDS_FOR))].drop_duplicates("run_id")
    known = int((asked["status"] == "finished").sum())
    bar = [round(100 * known / max(len(asked), 1), 2), 0]
    tiles.append(
        {
            "label": "The paper's runs",
            "figure": f"{known:,}",
            "small": f"of {len(asked):,} finished",
            "more": "",
            "bar": bar,
        }
    )
    tiles.append(
        {
            "label": "Machines",
            "figure": str(len(devices)),
            "small": span,
            "more": ", ".join(devices),
        }
    )
    revisions = (
        sorted({r[:10] for line in runs["git_revisions"] for r in line.split()})
        if len(runs)
        else []
    )
    made = f" Runs made at git {', '.join(revisions)}." if revisions else ""
    return {
        "title": title,
        "summary": summary,
        "tiles": tiles,
        "footer": f"Made by `python -m analysis report`.{made}",
    }


def counted(runs: pd.DataFrame) -> str:
    """How many runs finished, collapsed, failed, or have no end."""
    if runs.empty:
        return "none"
    words = pd.Series([_state(row)[0] for row in runs.to_dict("records")]).value_counts()
    order = ("finished", "collapsed", "running or killed", "failed")
    return ", ".join(f"{words[word]:,} {word}" for word in order if word in words)


def summary_table(trials: Trials, name: str) -> Table:
    """A sweep's table: each method of each setting at its chosen learning rate."""
    chosen = choose(trials.table.rename(columns={"method": "optimizer"}))
    means = over_seeds(chosen)
    several = [key for key in ("model", "task", "precision") if means[key].nunique() > 1]
    several += ["variant"] if means["variant"].str.len().any() else []
    heads = [
        "method",
        *several,
        "lr",
        "val. %",
        "test %",
        "n",
        "collapsed",
        "best step",
        "ms per step",
        "GiB",
    ]
    best = chosen.groupby(["model", "task", "optimizer", "precision", "variant"], dropna=False)[
        "best_step"
    ].median()
    content = Table(
        f"{trials.sweep}: each method at its chosen learning rate",
        heads,
        names=1 + len(several),
        name=name,
    )
    for row in means.to_dict("records"):
        zero = row["optimizer"] in UNTRAINED
        notes = (EDGE,) if row["at_edge"] else ()
        lr = Cell(ABSENT) if zero else number(row["lr"], "g", notes=notes)
        dead = row["status"] == "collapsed"
        test = Cell(COLLAPSED, kind="collapsed") if dead else _mean(row, "test")
        step = best[
            tuple(row[key] for key in ("model", "task", "optimizer", "precision", "variant"))
        ]
        content.rows.append(
            [
                LABELS["method"](row["optimizer"]),
                *(LABELS.get(key, str)(row[key]) for key in several),
                lr,
                Cell(COLLAPSED, kind="collapsed") if dead else _mean(row, "val"),
                test,
                Cell(f"{row['n']} of {row['seeds']}", float(row["n"])),
                number(row["collapsed"], ".0f"),
                Cell(ABSENT) if zero else number(step, ",.0f"),
                number(row["step_ms"], ",.1f"),
                number(row["peak_gib"], ".2f"),
            ]
        )
        content.facets.append(
            {key: row[key] for key in ("model", "task", "precision")}
            | {"method": row["optimizer"].partition(":")[0]}
        )
    content.caption = [
        "Accuracies: mean ± sample standard deviation over the n finished seeds, test accuracy at the step of best "
        "validation accuracy. The learning rate is chosen by validation accuracy. `*`: every run collapsed.",
        *trials.notes,
    ]
    return content


def _mean(row: Mapping[Any, Any], which: str) -> Cell:
    if pd.isna(row[f"{which}_mean"]):
        return Cell(ABSENT, kind="missing")
    spread = row[f"{which}_std"]
    tail = "" if pd.isna(spread) else f" ± {100 * spread:.2f}"
    kind = "measured" if which == "test" else ""
    return number(row[f"{which}_mean"], ".2f", 100, tail=tail, runs=row["run_ids"], kind=kind)


def open_table(runs: pd.DataFrame, title: str) -> Table:
    """Runs without an end: how far each is, and why it stopped where its log says so."""
    content = Table(title, ["run", "state", "step", "of", "method", "lr", "seed", "started (UTC)"])
    for row in runs.sort_values("started", ascending=False, kind="stable").to_dict("records"):
        state, kind = _state(row)
        code = f" (exit code {int(row['exit_code'])})" if state == "failed" else ""
        cells = [
            number(row.get(key), form) for key, form in (("last_step", ",.0f"), ("steps", ",.0f"))
        ]
        ends: list[Cell | str] = [
            number(row.get("lr"), "g"),
            number(row.get("seed"), ".0f"),
            str(row["started"]).replace("T", " "),
        ]
        content.rows.append(
            [row["run_id"], Cell(state + code, kind=kind), *cells, _label(row, "method"), *ends]
        )
        content.facets.append(_facet(row))
    content.caption = [
        "A log without an exit code belongs to a run that goes on, or to one that was killed."
    ]
    return content


def runs_table(runs: pd.DataFrame, title: str, name: str) -> Table:
    """One row per run, whatever became of it."""
    heads = [
        "run",
        "sweep",
        "model",
        "task",
        "method",
        "precision",
        "lr",
        "seed",
        "status",
        "val. %",
        "test %",
        "steps",
    ]
    content = Table(
        title, [*heads, "ms per step", "peak GiB", "started (UTC)", "device"], name=name
    )
    for row in runs.to_dict("records"):
        state, kind = _state(row)
        step = row.get("run/collapse_step")
        state += (
            f" at step {int(step)}"
            if state == "collapsed" and step is not None and pd.notna(step)
            else ""
        )
        content.rows.append(
            [
                str(row["run_id"]),
                row["group"] or ABSENT,
                *(_label(row, key) for key in WORDS),
                number(row.get("lr"), "g"),
                number(row.get("seed"), ".0f"),
                Cell(state, kind=kind),
                number(row.get("best/val_accuracy"), ".1f", 100),
                number(row.get("best/test_accuracy"), ".1f", 100),
                number(row.get("last_step"), ",.0f"),
                number(row.get("time/step_ms_median"), ",.1f"),
                number(row.get("mem/peak_gib"), ".2f"),
                str(row["started"]).replace("T", " "),
                str(row.get("provenance.device") or ""),
            ]
        )
        content.facets.append(_facet(row))
    content.caption = ["`ms per step` is the median; on a CPU, memory is the whole process's."]
    return content


def devices_table(runs: pd.DataFrame) -> Table:
    """What was run on which device, when, and with which versions."""
    frame = pd.DataFrame(
        {
            "device": _text(runs, "provenance.device"),
            "sweep": runs["group"].replace("", "single runs"),
            "torch": _text(runs, "provenance.versions.torch"),
            "git": _text(runs, "provenance.git_revision").str.slice(0, 10),
            "hours": pd.to_numeric(runs.reindex(columns=["time/total_s"])["time/total_s"]) / 3600,
            "day": runs["started"].str.slice(0, 10),
            "status": runs["status"],
        }
    )
    heads = [
        "device",
        "sweep",
        "torch",
        "git",
        "finished",
        "collapsed",
        "unfinished",
        "hours",
        "days",
    ]
    content = Table("What was run on which device, and when", heads, names=4, name="devices-table")
    for (device, sweep), part in frame.groupby(["device", "sweep"], sort=True):
        counts, days = part["status"].value_counts(), sorted(part["day"].unique())
        known = [", ".join(sorted(set(part[key]) - {""})) or "unknown" for key in ("torch", "git")]
        numbers = [
            number(int(counts.get(status, 0)), ".0f")
            for status in ("finished", "collapsed", "unfinished")
        ]
        span = " to ".join(dict.fromkeys([days[0], days[-1]]))
        content.rows.append(
            [
                str(device) or "unknown",
                str(sweep),
                *known,
                *numbers,
                number(part["hours"].sum(), ".2f"),
                span,
            ]
        )
    return content


def coverage_table(filled: pd.DataFrame) -> Table:
    """How much of each sweep has been run, and the command for the rest."""
    heads = [
        "sweep",
        "stands for",
        "cells",
        "finished",
        "collapsed",
        "interrupted",
        "lacking",
        "to run the rest",
    ]
    content = Table("Cells of every sweep", heads, names=2, name="coverage-table")
    for sweep, cells in filled.groupby("sweep", sort=False):
        counts = cells["status"].value_counts()
        done, dead, cut = (int(counts.get(s, 0)) for s in ("finished", "collapsed", "unfinished"))
        ours = "ours: a study" if str(sweep).startswith(PREFIX) else "ours"
        rest = f"{command(str(sweep))}" if len(cells) > done + dead else "complete"
        numbers = [
            number(n, ".0f") for n in (len(cells), done, dead, cut, len(cells) - done - dead)
        ]
        content.rows.append([str(sweep), STANDS_FOR.get(str(sweep), ours), *numbers, rest])
    content.caption = [
        "Every sweep is a file in conf/sweep. A run that several sweeps share is made once and counted in each."
    ]
    return content


def paper_table(beside: pd.DataFrame, filled: pd.DataFrame) -> Table:
    """Every accuracy, memory and time that the paper prints, beside what was measured.

    Args:
        beside: see `analysis.select.paper_cells.beside`.
        filled: the cells of all sweeps, see `analysis.select.cell_runs.fill`.
    """
    keys = ["table", "model", "task", "method"]
    stds = {
        tuple(row[k] for k in keys): row
        for row in beside[beside["quantity"] == "std"].to_dict("records")
    }
    first = filled.drop_duplicates(["sweep", "model"])
    precisions = dict(
        zip(zip(first["sweep"], first["model"], strict=True), first["precision"], strict=True)
    )
    grids = {str(sweep): rows for sweep, rows in filled.groupby("sweep")}
    content = Table(
        "The paper's cells: printed and measured", PAPER_COLUMNS, names=6, name="paper-measured"
    )
    shown = beside[beside["quantity"].isin(list(QUANTITIES)) & (beside["status"] != "absent")]
    for cell in shown.to_dict("records"):
        std = stds.get(tuple(cell[k] for k in keys)) if cell["quantity"] == "mean" else None
        precision = precisions.get((cell["sweep"], cell["model"]), "")
        method, average = str(cell["method"] or "bszo"), cell["task"] == AVERAGE
        task = "average" if average else task_label(cell["task"]) if cell["task"] else ABSENT
        names = [
            f"{cell['table']} {cell['part']}".strip(),
            model_label(cell["model"]),
            task,
            method_label(method),
        ]
        tail = f" ± {std['printed']}" if std else ""
        value = None if pd.isna(cell["value"]) else float(cell["value"])
        printed = Cell(cell["printed"], value, tail=tail, bold=bool(cell["bold"]))
        content.rows.append(
            [
                *names,
                precision or ABSENT,
                _setting(cell),
                printed,
                *_measured(cell, std, grids.get(cell["sweep"])),
            ]
        )
        facet = {"model": cell["model"], "method": method, "precision": precision}
        content.facets.append(
            facet | {"task": NO_TASK if average or not cell["task"] else cell["task"]}
        )
    content.caption = [
        "Accuracies are percentages of the test examples, at the step of best validation accuracy and the chosen "
        "learning rate; with several seeds, mean ± sample standard deviation. n: finished runs; † some of the runs "
        "lack. Bold as in the paper; of measured numbers, once a whole group has been measured. `–`: not measured "
        "here; point at it for the command that runs it. `*` collapsed."
    ]
    return content


def run_command(cell: Mapping[Any, Any], grid: pd.DataFrame | None) -> str:
    """What runs a cell of the paper, at all learning rates and seeds.

    Args:
        cell: a row of the frame of `analysis.select.paper_cells.beside`.
        grid: the cells of its sweep.
    """
    choices = [f"sweep={cell['sweep']}"]
    for name, value in (
        ("model", cell["model"]),
        ("task", cell["task"]),
        ("optimizer", cell["method"]),
    ):
        if value and value != AVERAGE and grid is not None and grid[name].nunique() > 1:
            choices.append(f"{name}={value}")
    varied = variant(str(grid["variant"].iloc[0])) if grid is not None and len(grid) else {}
    if "optimizer.k" in varied and cell["k"]:
        choices.append(f"optimizer.k={cell['k']}")
    if "optimizer.adaptive_noise" in varied and cell["adaptive_noise"]:
        choices.append(f"optimizer.adaptive_noise={str(cell['adaptive_noise'] == 'with').lower()}")
    return " ".join(["python -m launch.submit", *choices])


def _measured(
    cell: Mapping[Any, Any], std: Mapping[Any, Any] | None, grid: pd.DataFrame | None
) -> list[Cell]:
    """Measured, difference, n and learning rate."""
    lacking = int(cell["lacking"])
    tip = f"Runs lacking: {lacking}. To run them: {run_command(cell, grid)}" if lacking else ""
    tip = ". ".join(part for part in (str(cell["remark"]), tip) if part)
    runs = str(cell["run_ids"])
    if pd.isna(cell["measured"]):
        dead = cell["here"] == "collapsed"
        tip = "No sweep asks for this cell." if cell["here"] == "nowhere" else tip
        text, kind = (COLLAPSED, "collapsed") if dead else (ABSENT, "missing")
        sign = Cell(text, kind=kind, tip=tip, runs=runs)
        return [sign, Cell(ABSENT), number(0 if dead else cell["n"], ".0f"), Cell(ABSENT)]
    spread = f" ± {std['measured']:.2f}" if std is not None and pd.notna(std["measured"]) else ""
    tail = spread + "†" * bool(lacking)
    measured = number(
        cell["measured"],
        ".2f",
        tail=tail,
        kind="measured",
        bold=bool(cell["here_bold"]),
        tip=tip,
        runs=runs,
    )
    return [
        measured,
        number(cell["difference"], "+.2f"),
        number(cell["n"], ".0f"),
        number(cell["lr"], "g", notes=(EDGE,) if cell["at_edge"] else ()),
    ]


def _setting(cell: Mapping[Any, Any]) -> str:
    parts = [f"run {cell['run']}"] if cell["run"] else []
    parts += [f"k = {cell['k']}"] if cell["k"] else []
    if cell["part"] in ("c", "d"):
        parts.append(f"{cell['adaptive_noise']} adaptive noise")
    elif cell["part"]:
        parts.append("m = k" if cell["part"] == "a" else "m = k + 1")
    return ", ".join(parts or [QUANTITIES[cell["quantity"]]])


def _state(row: Mapping[Any, Any]) -> tuple[str, str]:
    """What became of a run, in words, and how that looks."""
    if row["status"] != "unfinished":
        return str(row["status"]), "collapsed" if row["status"] == "collapsed" else ""
    code = row.get("exit_code")
    ended = code is not None and pd.notna(code) and int(code) != 0
    return ("failed", "collapsed") if ended else ("running or killed", "missing")


def _facet(row: Mapping[Any, Any]) -> dict[str, str]:
    found = {key: row.get(column) for key, column in WORDS.items()}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _label(row: Mapping[Any, Any], key: str) -> str:
    value = row.get(WORDS[key])
    return LABELS.get(key, str)(value) if isinstance(value, str) else ABSENT


def _text(runs: pd.DataFrame, key: str) -> pd.Series:
    return runs.reindex(columns=[key])[key].fillna("").astype(str)
