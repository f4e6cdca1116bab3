"""The tables of a study, out of its frames."""

from typing import Any

import pandas as pd

from analysis.paper.names import UNTRAINED, ZERO_SHOT, method_label, model_label, task_label
from analysis.report.table import ABSENT, COLLAPSED, Cell, Column, Row, Table, number
from analysis.select.cell_runs import EDGE
from analysis.select.study_frames import AVERAGE
from analysis.select.study_runs import EPS, M_IS_K, M_IS_K_PLUS_1, MAIN, NOISE, Study

MARKS = f"{COLLAPSED} every run collapsed, {ABSENT} no number yet."
MEAN = "ean ± sample standard deviation over the seeds (their number)"
METHOD: dict[str, Column] = {"method": lambda row: method_label(row["method"])}


def accuracy_table(study: Study, frame: pd.DataFrame) -> Table:
    """Test accuracy by method and precision: the frame of `accuracy_frame`."""
    first = study.part(MAIN).iloc[0]
    title = f"{study.name}: test accuracy (%), {model_label(first['model'])} on {task_label(first['task'])}"
    caption = [
        f"M{MEAN}. The learning rate of each cell is chosen "
        "by validation accuracy over all seeds; the test accuracy is that of the best evaluation on validation. "
        f"Bold: the two best trained methods of a column, once its grid is complete. {MARKS}",
        *study.lacks(MAIN),
    ]
    content = Table(title, ["method", *study.precisions, AVERAGE], caption=caption)
    for method, rows in frame.groupby("method", sort=False):
        cells = map(_accuracy_cell, rows.to_dict("records"))
        content.rows.append([method_label(str(method)), *cells])
        content.facets.append({"method": str(method)})
        if method == ZERO_SHOT:
            content.breaks.append(len(content.rows))
    return content


def grid_table(study: Study, frame: pd.DataFrame) -> Table:
    """Every learning rate: the frame of `grid_frame`."""

    def rate(row: Row) -> Cell:
        if row["method"] in UNTRAINED:
            return Cell(ABSENT)
        return Cell(f"{'→ ' * row['chosen']}{row['lr']:g}", float(row["lr"]))

    columns: dict[str, Column] = {
        **METHOD,
        "precision": "precision",
        "lr": rate,
        "val. %": ("val_mean", ".2f"),
        "test %": ("test_mean", ".2f"),
        **{key: (key, ".0f") for key in ("n", "collapsed", "lacking")},
    }
    caption = [
        "Means over the n finished seeds. → is the chosen learning rate, by validation accuracy alone; "
        "a collapsed run counts as an accuracy of 0."
    ]
    setting = frame["method"] + " " + frame["precision"]
    breaks = list(frame.index[setting.ne(setting.shift())][1:])
    title, more = f"{study.name}: every learning rate", {"caption": caption, "breaks": breaks}
    return Table.of(title, frame.to_dict("records"), columns, names=2, **more)


def ablation_table(study: Study, frame: pd.DataFrame) -> Table:
    """Accuracy of BSZO over k: the frame of `ablation_frame`."""
    ks = sorted(frame["k"].unique())
    title = f"{study.name}: test accuracy (%) of BSZO over k, in the form of Table 5"
    heads = ["part", "setting", "precision", *(f"k = {k}" for k in ks)]
    caption = [
        f"M{MEAN}, at equal numbers of steps; a step makes "
        "k + 1 forward passes. The learning rate is chosen by validation for every cell. Bold: the better of (a) "
        f"and (b), and of (c)'s rows, for each k. {MARKS}",
        *study.lacks(M_IS_K, M_IS_K_PLUS_1, NOISE),
    ]
    content = Table(title, heads, names=3, caption=caption)
    shown = frame.assign(grid_lacking=frame["lacking"])
    for names, rows in shown.groupby(["part", "setting", "precision"], sort=False):
        part, *others = map(str, names)  # type: ignore[misc]
        by_k = {row["k"]: _mean_cell(row) for row in rows.to_dict("records")}
        content.rows.append([f"({part})", *others, *(by_k.get(k, Cell("")) for k in ks)])
    return content


def eps_table(study: Study, frame: pd.DataFrame) -> Table:
    """A larger ε in half precision: the frame of `eps_frame`."""

    def mean(row: Row) -> Cell:
        there = bool(row["lacking"] and row["n"])
        return _mean(row, (f"{row['lacking']} runs of this grid lack",) * there)

    def gain(row: Row) -> Cell:
        cell = Cell("") if pd.isna(row["eps"]) and row["n"] else number(row["gain"], "+.2f")
        if pd.isna(row["low"]):
            return cell
        low, high = (number(row[end], "+.2f").text for end in ("low", "high"))
        return Cell(f"{cell.text} [{low}, {high}]", cell.value)

    columns: dict[str, Column] = {
        **METHOD,
        "precision": "precision",
        "ε": lambda row: "own" if pd.isna(row["eps"]) else f"{row['eps']:g}",
        "lr": ("lr", "g"),
        "test %": mean,
        "last loss": ("last_loss", ".4f"),
        "gain, points [95 %]": gain,
    }
    caption = [
        f"Test accuracy: m{MEAN}, at the learning rate "
        "chosen by validation. Last loss: of validation, nats, mean over the seeds. Gain: over the study's own ε "
        f"in this precision, interval as in claims.md. {ABSENT} no number yet.",
        *study.lacks(EPS),
    ]
    title = f"{study.name}: a larger ε in half precision"
    return Table.of(title, frame.to_dict("records"), columns, names=3, caption=caption)


def _accuracy_cell(row: dict[Any, Any]) -> Cell:
    """A number, or the mark of why there is none, with its notes."""
    if row["precision"] != AVERAGE:
        return _mean_cell(row)
    if pd.isna(row["test_mean"]):
        return Cell(COLLAPSED if row["status"] == "collapsed" else ABSENT)
    left_out = int(row["seeds"] - row["n"])
    notes = (f"without {left_out} that collapsed",) * bool(left_out)
    return number(row["test_mean"], ".2f", notes=notes, bold=bool(row["bold"]))


def _mean_cell(row: dict[Any, Any]) -> Cell:
    """The mean of a setting over its seeds."""
    grid, lacking = int(row["grid"]), int(row["grid_lacking"])
    lack = f"{lacking} of the {grid} runs of this grid lack"
    if row["status"] == "collapsed":
        return Cell(COLLAPSED, notes=(f"all {grid} runs collapsed",), kind="collapsed")
    if row["status"] != "finished":
        return Cell(ABSENT, notes=(lack,) * bool(lacking), kind="missing")
    lost = f"{int(row['collapsed'])} of {int(row['seeds'])} seeds collapsed"
    edge = row["at_edge"] is True and row.get("method") not in UNTRAINED
    notes = [lost] * bool(row["collapsed"])
    notes += [f"chosen among the runs that there are: {lack}"] * bool(lacking) + [EDGE] * edge
    return _mean(row, (*notes, *filter(None, [row.get("remark")])))


def _mean(row: Row, notes: tuple[str, ...]) -> Cell:
    if pd.isna(row["test_mean"]):
        return Cell(ABSENT)
    more = {"runs": row["run_ids"], "bold": bool(row.get("bold")), "notes": notes}
    tail = f" ± {number(row['test_std'], '.2f').text} ({int(row['n'])})"
    return number(row["test_mean"], ".2f", tail=tail, **more)
