"""The layouts of Tables 1, 3, 4, 5, 11 and 12: each printed number, the measured one below it, and their difference."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from analysis.paper import names
from analysis.paper.printed_numbers import digits
from analysis.report.table import ABSENT, COLLAPSED, Cell, Row, Table, number
from analysis.select.cells import EDGE
from analysis.select.paper_cells import with_spread

DESCRIBED: dict[int, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "paper" / "tables.yaml").read_text(encoding="utf-8")
)
TITLES = {number_: str(table["title"]) for number_, table in DESCRIBED.items()}
COMMON = (
    "paper: as printed, means bold as printed. here: from the runs, bold by the same rule once all cells that it "
    "compares are measured. difference: here − paper. * every run collapsed. – not measured, see the notes."
)
PROTOCOL = (
    "Learning rate: the one of best validation accuracy, of equal ones the smaller; test accuracy: at the step of best "
    "validation accuracy."
)
QUANTITIES = {"memory_gb": "GB", "step_ms": "ms"}
LABELS: dict[str, Any] = {
    **names.LABELS,
    "quantity": QUANTITIES.get,
    "run": "Run {}".format,
    "part": "({})".format,
}


class Result(NamedTuple):
    """One of the paper's tables."""

    number: int
    pages: list[Table]  # its parts
    frame: pd.DataFrame  # its numbers
    summary: str  # how much of it there is
    lacks: Sequence[str] = ()  # sentences that say what lacks


def layouts(number_: int, frame: pd.DataFrame, shortfalls: dict[str, str]) -> list[Table]:
    """The table of this number, or its parts.

    Args:
        number_: of the paper's table.
        frame: see `analysis.select.paper_cells`.
        shortfalls: sweep -> the sentence that says which of its runs lack.
    """
    cells = with_spread(frame[frame["table"] == number_])
    about = DESCRIBED[number_]
    caption = [COMMON, *([PROTOCOL] if number_ != 4 else []), *filter(None, [about.get("caption")])]
    title = f"Table {number_}. {about['title']}"
    return [_grid(cells, shortfalls, title, caption, grid) for grid in about["grids"]]


def _over(cells: pd.DataFrame, method: str) -> pd.DataFrame:
    """The cells divided by those of one method, model by model."""
    keys, numbers = ["model", "quantity"], ["value", "measured"]
    base = cells[keys].merge(cells[cells["method"] == method], "left", keys)[numbers]
    ratios = cells[numbers] / base.set_index(cells.index)
    difference = ratios["measured"] - ratios["value"]
    printed = ratios["value"].map("{:.2f}".format)
    return cells.assign(**ratios, difference=difference, printed=printed)


def _grid(
    cells: pd.DataFrame, lacks: dict[str, str], title: str, caption: list[str], grid: dict[str, Any]
) -> Table:
    """A table of two or three lines per row: paper, here, and the difference where there is one."""
    rows, columns, base = grid["rows"], grid["columns"], grid.get("base", {})
    cells = cells[(cells[list(base)] == pd.Series(base)).all(axis=1)]
    if "over" in grid:
        cells = _over(cells, grid["over"])
        title += f", over {names.method_label(grid['over'])}'s"
    if isinstance(columns, dict):
        parts = [cells[(cells[list(c)] == pd.Series(c)).all(axis=1)] for c in columns.values()]
        cells = pd.concat([p.assign(head=h) for h, p in zip(columns, parts, strict=True)])
    else:
        words = [cells[key].map(LABELS.get(key, str)) for key in columns]
        cells = cells.assign(head=[" ".join(one) for one in zip(*words, strict=True)])
    heads = list(cells["head"].unique())
    named = [grid["name"]] if "name" in grid else rows
    content = Table(title, [*named, "", *heads], names=len(rows) + 1, caption=list(caption))
    for values, of_row in cells.groupby(rows, sort=False):
        selector = dict(zip(rows, values, strict=True))
        labels = [LABELS.get(key, str)(value) for key, value in selector.items()]
        found = {cell["head"]: cell for cell in of_row.to_dict("records")}
        content.breaks.append(len(content.rows))
        facet = {k: v for k, v in selector.items() if k in ("model", "task", "method")}
        for line, made in (("paper", _printed), ("here", _here), ("difference", _difference)):
            if line == "difference" and not of_row["difference"].notna().any():
                continue
            said = labels if line == "paper" else [""] * len(labels)
            shown = [made(found[head], lacks) if head in found else "" for head in heads]
            content.rows.append([*said, line, *shown])
            content.facets.append(facet)
    return content


def _printed(cell: Row, _: Any) -> Cell:
    value: float | None = None if pd.isna(cell["value"]) else float(cell["value"])
    tail: str = "" if pd.isna(cell["printed_std"]) else f" (±{cell['printed_std']})"
    return Cell(cell["printed"], value, tail, bold=cell["bold"])


def _here(cell: Row, shortfalls: dict[str, str]) -> Cell:
    """A measured number, or the mark of why there is none, with its notes."""
    if cell["here"] == "nowhere":
        return Cell(ABSENT, notes=("the paper has no such row, and no sweep asks for it",))
    lack = shortfalls.get(cell["sweep"], f"runs of {cell['sweep']} lack")
    if pd.isna(cell["measured"]):
        if cell["here"] == "collapsed":
            return Cell(COLLAPSED, notes=(lack,) if cell["lacking"] else (), kind="collapsed")
        return Cell(ABSENT, notes=(lack,), kind="missing")
    n = int(cell["n"])
    tail: str = f" ({n})" if cell["quantity"] == "mean" else ""
    if pd.notna(cell["printed_std"]):
        spread = number(cell["measured_std"], f".{digits(cell['printed_std'])}f").text
        tail = f" (±{spread}; {n})"
    notes = [cell["remark"]] if cell["remark"] else []
    notes += [f"chosen among the runs that there are: {lack}"] if cell["lacking"] else []
    notes += [EDGE] if cell["at_edge"] is True else []
    more = {"tail": tail, "notes": tuple(notes), "runs": cell["run_ids"], "kind": "measured"}
    more["bold"] = cell["here_bold"]
    places = digits(cell["printed"]) if cell["status"] == "printed" else 2
    return number(cell["measured"], f".{places}f", **more)


def _difference(cell: Row, _: Any) -> Cell:
    if pd.isna(cell["difference"]):
        return Cell("")
    return number(cell["difference"], f"+.{digits(cell['printed'])}f")
