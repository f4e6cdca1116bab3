"""A comparison of lines as tables and a figure: the tuning runs' choices, or what the chosen settings lose.

Files in DIR/<sweep>/ are comparison.{csv,md,tex} and a figure, of a tuning sweep tuning.{csv,md}.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.frames import Frames
from analysis.paper.names import line_label, model_label, task_label
from analysis.report.figures.drawing import Figure, write
from analysis.report.figures.lines import differences, over_passes
from analysis.report.markdown import csv, table_texts, write_texts
from analysis.report.table import Cell, Column, Row, Table, console, number, show
from analysis.select.cells import MAJORITY, notes, of_majority
from analysis.select.comparison import (
    AT_END,
    BASE,
    OTHER,
    SHARED,
    choices,
    criterion_of,
    ended_frame,
    evaluated,
    levels_of,
    lines_frame,
    run_losses,
)
from analysis.select.provenance import foot

SETTINGS = Path(__file__).parents[2] / "results" / "settings"
LOSS = "Validation loss (nats)", "nats"
"""What a line loses, and its unit, unless a task's own measure is improved."""

IMPROVED = {
    "reward": "reward",
    "exact_match": "exact match",
    "f1": "F1",
    "rouge_l": "ROUGE-L",
    "measure": "measure",
}
"""Measures of which minus the value is what a line loses, in words."""

REPORTED = (
    "{} at shares of the budget: means over the reporting seeds ± 95 % CI half-width. The test column is of the step "
    "of the best validation {}. A collapsed seed counts with the loss of the untrained model, or its own last loss if "
    "that is higher.",
    "p: Student's paired t over the seeds. Holm: corrected over the lines above the rule. Minimum detectable effect: "
    "of these seeds, at a power of 80 % and Holm's first level.",
)
TO_LEVEL = (
    "Passes to a loss: forward passes until the validation loss is at most that, twice in succession. In brackets: the "
    "ratio to those of {} over the same seeds, its 95 % interval (Student, logarithms), and p after Holm's correction. "
    "Evaluations bound the passes: a ratio that is equal for all seeds has the interval that they leave open and "
    "no p. ≤: below the loss at the first evaluation already."
)
CENSORED = "{} of {} seeds arrive; the others count with the whole budget"
UNCONFIRMED = "; reached at the end, not confirmed: {}"
TUNED = "Loss: {} {}, a mean over the tuning seeds. Compared are the settings of most seeds."
EDGE = "{} has the smallest or largest value tried: a better one may lie beyond"
TIED = "of another {} the tuning runs lose as much, within 0.00002"
FEWER = "the difference and its interval are of {:.0f} seeds that {} has, too"
UNTUNED: dict[str, Any] = {"role": OTHER, "setting": "{}", "collapsed": 0, "tried": 0, "passes": 0}
UNTUNED |= dict.fromkeys(("edge", "tie", "verdict", "run_ids"), "")
"""What a line of no run has beside its scores."""
OF_BASE = "not decided: {}'s rate is at the edge of its grid"


def comparison(
    sweep: str, filled: pd.DataFrame, frames: Frames
) -> tuple[pd.DataFrame, Table, list[Figure]]:
    """The frame of a sweep of lines, its table and, of reporting runs, its figure."""
    cells = filled[filled["sweep"] == sweep]
    runs = run_losses(cells, frames)
    first = cells.iloc[0]
    names = model_label(first["model"]), task_label(first["task"])
    title = f"{sweep}: {names[0]} on {names[1]}, {first['precision']}"
    mine = frames.runs[frames.runs["run_id"].isin(runs["run_id"])]
    rewarded = bool(runs["val_reward"].notna().any())
    improved = [IMPROVED[measure] for measure in runs["measure"].unique() if measure in IMPROVED]
    what = (f"Minus the validation {improved[0]}", f"minus the {improved[0]}") if improved else LOSS
    below = [foot(f"{len(mine)} runs", mine), *notes(cells, frames)]
    tunes = (cells.groupby("line")["lr"].nunique() > 1).any()
    counts, why = ended_frame(cells)
    if why and not tunes:
        return counts, Table.of(title, counts, COUNTS, caption=[why, *below]), []
    if not (runs["steps"] > 0).any():
        return runs, Table(title, ["line"], caption=["No run that trains has ended.", *below]), []
    if tunes:
        by, words = criterion_of(cells)
        frame = choices(runs[runs["steps"] > 0], by=by).sort_values("loss", ignore_index=True)
        said = [TUNED.format(what[0][0].lower() + what[0][1:], words), *below]
        return frame, Table.of(title, frame, TUNING, names=2, caption=said), []
    chosen = _chosen(sweep)
    frame = lines_frame(runs, cells)
    for key, missing in (("edge", ""), ("tie", ""), ("tried", 0)):
        places = zip(frame["line"], frame["setting"], strict=True)
        frame[key] = [chosen.get(place, {}).get(key, missing) for place in places]
    for base in frame[frame["role"] == BASE].to_dict("records"):
        if "lr" in base["edge"].split(", "):
            said_of = OF_BASE.format(line_label(base["line"]))
            frame["verdict"] = frame["verdict"].where(frame["verdict"] == "", said_of)
    if len(tested := {*runs["labels"]} - {None, ""}) == 1:
        share, f1 = of_majority(*tested)
        own = {"line": MAJORITY, "seeds": 1, "test": 100 * share, "macro_f1": 100 * f1}
        frame = pd.concat([frame, pd.DataFrame([own | UNTUNED])], ignore_index=True)
    if frame["macro_f1"].isna().all():
        frame = frame.drop(columns=["macro_f1", "macro_f1_half"])
    measure = improved[0] if improved else "accuracy"
    said = [sentence.format(what[0], measure) for sentence in REPORTED]
    test, levels = "test, exact %" if rewarded else "test %", levels_of(cells)
    lacking = [f"{share:g} %" for share, key in SHARED.items() if key not in evaluated(frame)]
    lacking += ["passes to a loss"] * (not levels)
    said += [f"Not recorded: {', '.join(lacking)}."] * bool(lacking)
    table = _table(title, frame, [*said, *below], f"sweep-{sweep}", test, levels)
    figures = [differences(title, frame, what), *over_passes(title, runs, frames.history)]
    return frame, table, figures


def write_comparison(
    sweep: str, filled: pd.DataFrame, frames: Frames, directory: Path
) -> list[Path]:
    """Write and print the table, and draw the figure; the paths."""
    frame, table, figures = comparison(sweep, filled, frames)
    name = "comparison" if figures or "ended" in frame else "tuning"
    show(table, console(200))
    texts = table_texts(name, csv(frame, "%.6g"), [table], tex=name == "comparison")
    drawn = [path for figure in figures for path in write(figure, directory)]
    return [*write_texts(directory, texts), *drawn]


def _chosen(sweep: str) -> dict[Any, dict[Any, Any]]:
    """What is written of each line's chosen setting: (line, setting) -> columns."""
    path = SETTINGS / f"{sweep}.csv"
    if not path.is_file():
        return {}
    found = pd.read_csv(path, comment="#", keep_default_na=False)
    return found.set_index(["line", "setting"]).to_dict("index")


def _setting(row: Row) -> Cell:
    """The values of a setting, with notes of what lies at an edge and of what was as good."""
    values = json.loads(row["setting"])
    shown = {key.rpartition(".")[2]: value for key, value in values.items()}
    words = [f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()]
    said = [note.format(row[key]) for key, note in (("edge", EDGE), ("tie", TIED)) if row[key]]
    return Cell(", ".join(words), notes=tuple(said))


def _to_level(i: int) -> Callable[[Row], Cell]:
    """What makes the cell of the passes to a level."""

    def cell(row: Row) -> Cell:
        ratio, reached, seeds = row[f"ratio_{i}"], row[f"reached_{i}"], row["seeds"]
        tail: str = "" if pd.isna(ratio) else f" (× {ratio:.2f})"
        if pd.notna(row[f"low_{i}"]):
            tail = f" (× {ratio:.2f}, {row[f'low_{i}']:.2f} to {row[f'high_{i}']:.2f}"
            tail += ")" if pd.isna(p := row[f"p_holm_{i}"]) else f", p {p:.2g})"
        elif np.isfinite(most := row[f"most_{i}"]):
            tail = f" (× {ratio:.2f}, {row[f'least_{i}']:.2f} to {most:.2f} by the evaluations)"
        censored = [CENSORED.format(int(reached), seeds)] if reached < seeds else []
        if row[f"at_end_{i}"] > 0:
            censored[0] += UNCONFIRMED.format(int(row[f"at_end_{i}"]))
        made = number(row[f"passes_{i}"], ",.0f", tail=tail, notes=tuple(censored))
        return replace(made, text=f"≤ {made.text}") if row[f"at_once_{i}"] > 0 else made

    return cell


def _with_half(name: str, form: str) -> Callable[[Row], Cell]:
    """What makes a mean's cell, with half the width of its interval."""

    def cell(row: Row) -> Cell:
        half = row[f"{name}_half"]
        tail: str = "" if pd.isna(half) else f" ± {half:{form.lstrip('+')}}"
        return number(row[name], form, tail=tail, runs=row["run_ids"] if name == AT_END else "")

    return cell


def _line(row: Row) -> str:
    return line_label(row["line"])


COUNTS: dict[str, Column] = {"line": _line, "ended": ("ended", ".0f"), "runs": ("runs", ".0f")}
"""How many runs of each line have ended: the columns of `ended_frame`."""
TUNING: dict[str, Column] = {
    "line": _line,
    "setting": _setting,
    "loss": ("loss", ".4f"),
    "seeds": ("seeds", ".0f"),
    "runs": ("tried", ".0f"),
}
"""What the tuning runs chose: the columns of `choices`."""


def _interval(row: Row) -> Cell:
    ends = (number(row[key], "+.4f").text for key in ("low", "high"))
    return Cell(" to ".join(ends) if pd.notna(row["low"]) else "")


def _table(
    title: str, frame: pd.DataFrame, caption: list[str], name: str, test: str, levels: list[float]
) -> Table:
    """The reporting runs: the frame of `lines_frame`; `test` heads what was measured on test examples."""
    of_base = frame[frame["role"] == BASE]
    base, most = line_label(next(iter(of_base["line"]), "the base")), of_base["seeds"].max()
    caption = [TO_LEVEL.format(base)] * bool(levels) + caption
    known = [key for key in evaluated(frame) if key != AT_END]
    columns: dict[str, Column] = {
        "line": _line,
        "setting": _setting,
        "tuning runs": ("tried", ".0f"),
        "seeds": lambda row: Cell(
            str(row["seeds"]),
            float(row["seeds"]),
            notes=(f"{row['collapsed']} collapsed",) * bool(row["collapsed"])
            + (FEWER.format(row["pairs"], base),)
            * bool(
                row["passes"] and row["role"] != BASE and row["pairs"] < max(most, row["seeds"])
            ),
        ),
        **{f"passes to {level:g}": _to_level(i) for i, level in enumerate(levels)},
        "ms a pass": ("pass_ms", ".1f"),
        **{f"{key.removeprefix('loss_')} %": (key, ".4f") for key in known},
        "100 %": _with_half(AT_END, ".4f"),
        f"minus {base}": ("gap", "+.4f"),
        "95 %": _interval,
        "p": ("p_value", ".2g"),
        "Holm": ("p_holm", ".2g"),
        "verdict": "verdict",
        "minimum detectable effect": ("minimum_detectable_effect", ".4f"),
        "minus its method": _with_half("own", "+.4f"),
        test: _with_half("test", ".1f"),
    }
    if "macro_f1" in frame:
        columns["macro F1 %"] = _with_half("macro_f1", ".1f")
    facets = [{"method": line.partition(",")[0]} for line in frame["line"]]
    more: dict[str, Any] = {"breaks": [int((frame["role"] != OTHER).sum())], "facets": facets}
    return Table.of(title, frame, columns, names=2, caption=caption, name=name, **more)
