"""The tables of a study, out of its frames."""

from typing import Any

import pandas as pd

from analysis.paper.names import UNTRAINED, method_label, model_label, task_label
from analysis.report.study.accuracy import AVERAGE
from analysis.report.table import ABSENT, COLLAPSED, Cell, Table, number
from analysis.select.cell_runs import EDGE
from analysis.select.study_runs import Study
from analysis.select.study_sweeps import EPS, M_IS_K, M_IS_K_PLUS_1, MAIN, NOISE
from analysis.select.sweep_selection import ZERO_SHOT


def accuracy_table(study: Study, frame: pd.DataFrame) -> Table:
    """Test accuracy by method and precision: the frame of `accuracy_frame`."""
    first = study.part(MAIN).iloc[0]
    content = Table(
        f"{study.name}: test accuracy (%), {model_label(first['model'])} on {task_label(first['task'])}",
        ["method", *study.precisions, AVERAGE],
        caption=[
            "Mean ± sample standard deviation over the seeds (their number). The learning rate of each cell is chosen "
            "by validation accuracy over all seeds; the test accuracy is that of the best evaluation on validation. "
            "Bold: the two best trained methods of a column, once its grid is complete. "
            f"{COLLAPSED} every run collapsed, {ABSENT} no number yet.",
            *(f"{sentence}." for sentence in study.lacks(MAIN)),
        ],
    )
    for method, rows in frame.groupby("method", sort=False):
        content.rows.append(
            [method_label(str(method)), *map(_accuracy_cell, rows.to_dict("records"))]
        )
        content.facets.append({"method": str(method)})
        if method == ZERO_SHOT:
            content.breaks.append(len(content.rows))
    return content


def grid_table(study: Study, frame: pd.DataFrame) -> Table:
    """Every learning rate: the frame of `grid_frame`."""
    content = Table(
        f"{study.name}: every learning rate",
        ["method", "precision", "lr", "val. %", "test %", "n", "collapsed", "lacking"],
        names=2,
        caption=[
            "Means over the n finished seeds. → is the chosen learning rate, by validation accuracy alone; "
            "a collapsed run counts as an accuracy of 0."
        ],
    )
    before = None
    for row in frame.to_dict("records"):
        setting = (row["method"], row["precision"])
        if before not in (None, setting):
            content.breaks.append(len(content.rows))
        before = setting
        lr = Cell(ABSENT)
        if row["method"] not in UNTRAINED:
            lr = Cell(f"{'→ ' * row['chosen']}{row['lr']:g}", float(row["lr"]))
        means = [number(row[key], ".2f") for key in ("val_mean", "test_mean")]
        counts = [number(row[key], ".0f") for key in ("n", "collapsed", "lacking")]
        content.rows.append([method_label(row["method"]), row["precision"], lr, *means, *counts])
    return content


def ablation_table(study: Study, frame: pd.DataFrame) -> Table:
    """Accuracy of BSZO over k: the frame of `ablation_frame`."""
    ks = sorted(frame["k"].unique())
    lacks = [line for part in (M_IS_K, M_IS_K_PLUS_1, NOISE) for line in study.lacks(part)]
    content = Table(
        f"{study.name}: test accuracy (%) of BSZO over k, in the form of Table 5",
        ["part", "setting", "precision", *(f"k = {k}" for k in ks)],
        names=3,
        caption=[
            "Mean ± sample standard deviation over the seeds (their number), at equal numbers of steps; a step makes "
            "k + 1 forward passes. The learning rate is chosen by validation for every cell. Bold: the better of (a) "
            f"and (b), and of (c)'s rows, for each k. {COLLAPSED} every run collapsed, {ABSENT} no number yet.",
            *(f"{line}." for line in lacks),
        ],
    )
    for (part, setting, precision), rows in frame.groupby(
        ["part", "setting", "precision"], sort=False
    ):
        by_k = {row["k"]: row | {"grid_lacking": row["lacking"]} for row in rows.to_dict("records")}
        cells = [_mean_cell(by_k[k]) if k in by_k else Cell("") for k in ks]
        content.rows.append([f"({part})", str(setting), str(precision), *cells])
    return content


def eps_table(study: Study, frame: pd.DataFrame) -> Table:
    """A larger ε in half precision: the frame of `eps_frame`."""
    content = Table(
        f"{study.name}: a larger ε in half precision",
        ["method", "precision", "ε", "lr", "test %", "last loss", "gain, points [95 %]"],
        names=3,
        caption=[
            "Test accuracy: mean ± sample standard deviation over the seeds (their number), at the learning rate "
            "chosen by validation. Last loss: of validation, nats, mean over the seeds. Gain: over the study's own ε "
            f"in this precision, interval as in claims.md. {ABSENT} no number yet.",
            *(f"{line}." for line in study.lacks(EPS)),
        ],
    )
    for row in frame.to_dict("records"):
        own = pd.isna(row["eps"])
        names = [method_label(row["method"]), row["precision"], "own" if own else f"{row['eps']:g}"]
        notes = (f"{row['lacking']} runs of this grid lack",) if row["lacking"] and row["n"] else ()
        gain = Cell("") if own and row["n"] else number(row["gain"], "+.2f")
        if pd.notna(row["low"]):
            low, high = (number(row[end], "+.2f").text for end in ("low", "high"))
            gain = Cell(f"{gain.text} [{low}, {high}]", gain.value)
        content.rows.append(
            [
                *names,
                number(row["lr"], "g"),
                _mean(row, notes),
                number(row["last_loss"], ".4f"),
                gain,
            ]
        )
    return content


def _accuracy_cell(row: dict[Any, Any]) -> Cell:
    """A number, or the mark of why there is none, with its notes."""
    if row["precision"] != AVERAGE:
        return _mean_cell(row)
    if pd.isna(row["test_mean"]):
        return Cell(COLLAPSED if row["status"] == "collapsed" else ABSENT)
    left_out = int(row["seeds"] - row["n"])
    notes = (f"without {left_out} that collapsed",) if left_out else ()
    return number(row["test_mean"], ".2f", notes=notes, bold=bool(row["bold"]))


def _mean_cell(row: dict[Any, Any]) -> Cell:
    """The mean of a setting over its seeds."""
    lacking = int(row["grid_lacking"])
    lack = f"{lacking} of the {int(row['grid'])} runs of this grid lack"
    if row["status"] == "collapsed":
        return Cell(COLLAPSED, notes=(f"all {int(row['grid'])} runs collapsed",), kind="collapsed")
    if row["status"] != "finished":
        return Cell(ABSENT, notes=(lack,) if lacking else (), kind="missing")
    notes = (
        [f"{int(row['collapsed'])} of {int(row['seeds'])} seeds collapsed"]
        if row["collapsed"]
        else []
    )
    notes += [f"chosen among the runs that there are: {lack}"] if lacking else []
    notes += [EDGE] if row.get("at_edge") is True and row.get("method") not in UNTRAINED else []
    notes += [str(row["remark"])] if row.get("remark") else []
    return _mean(row, tuple(notes))


def _mean(row: dict[Any, Any], notes: tuple[str, ...]) -> Cell:
    if pd.isna(row["test_mean"]):
        return Cell(ABSENT)
    tail = f" ± {number(row['test_std'], '.2f').text} ({int(row['n'])})"
    return number(
        row["test_mean"],
        ".2f",
        tail=tail,
        notes=notes,
        runs=row["run_ids"],
        bold=bool(row.get("bold")),
    )
