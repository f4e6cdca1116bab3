"""The layouts of Tables 1, 3, 4, 5, 11 and 12: each printed number, the measured one below it, and their difference."""

from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.paper.names import method_label, model_label, task_label
from analysis.paper.printed_numbers import KEYS, METHODS, digits
from analysis.report.table import ABSENT, COLLAPSED, Cell, Table, number
from analysis.select.cell_runs import EDGE

DESCRIBED: dict[int, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "paper" / "tables.yaml").read_text(encoding="utf-8")
)
TITLES = {number_: str(table["title"]) for number_, table in DESCRIBED.items()}
COMMON = (
    "paper: as printed, bold as printed. here: from the runs, bold by the same rule once all cells that it compares "
    "are measured. difference: here − paper. * every run collapsed. – not measured, see the notes."
)
PROTOCOL = (
    "Learning rate: the one of best validation accuracy, of equal ones the smaller; test accuracy: at the step of best "
    "validation accuracy."
)
QUANTITIES = {"memory_gb": "GB", "step_ms": "ms"}
LABELS: dict[str, Any] = {
    "method": method_label,
    "model": model_label,
    "task": task_label,
    "quantity": QUANTITIES.get,
    "run": "Run {}".format,
}
Selector = dict[str, str]


def layouts(number_: int, frame: pd.DataFrame, shortfalls: dict[str, str]) -> list[Table]:
    """The table of this number, or its parts.

    Args:
        number_: of the paper's table.
        frame: see `analysis.select.paper_cells`.
        shortfalls: sweep -> the sentence that says which of its runs lack.
    """
    layout = _Layout(frame[frame["table"] == number_], shortfalls)
    about = DESCRIBED[number_]
    caption = [COMMON, *([PROTOCOL] if number_ != 4 else []), *filter(None, [about.get("caption")])]
    title = f"Table {number_}. {about['title']}"
    return [layout.grid(title, list(caption), **grid) for grid in about["grids"]]


class _Layout:
    """Finds the cells of one table by what they belong to."""

    def __init__(self, rows: pd.DataFrame, shortfalls: dict[str, str]) -> None:
        self.rows, self.shortfalls = rows, shortfalls
        records = rows.to_dict("records")
        self.cells: dict[Any, Any] = {tuple(row[key] for key in KEYS): row for row in records}

    def grid(
        self,
        title: str,
        caption: list[str],
        rows: list[str],
        columns: list[str] | dict[str, Selector],
        base: Selector | None = None,
        name: str = "",
    ) -> Table:
        """A table of two or three lines per row: paper, here, and the difference where there is one."""
        across = (
            [([head], keys) for head, keys in columns.items()]
            if isinstance(columns, dict)
            else self._axis(columns)
        )
        heads = [*([name] if name else rows), "", *(" ".join(words) for words, _ in across)]
        content = Table(title, heads, names=len(rows) + 1, caption=caption)
        for labels, selector in self._axis(rows):
            cells = [self._find((base or {}) | selector | more) for _, more in across]
            if not any(cells):
                continue
            content.breaks.append(len(content.rows))
            lines: dict[str, list[Cell]] = {"paper": [self._printed(cell) for cell in cells]}
            lines["here"] = [self._here(cell) for cell in cells]
            if any(cell and pd.notna(cell["difference"]) for cell in cells):
                lines["difference"] = [_difference(cell) for cell in cells]
            facet: Selector = {k: selector[k] for k in ("model", "task", "method") if k in selector}
            for line, shown in lines.items():
                names = labels if line == "paper" else [""] * len(labels)
                content.rows.append([*names, line, *shown])
                content.facets.append(facet)
        return content

    def _axis(self, keys: list[str]) -> list[tuple[list[str], Selector]]:
        """Every combination of the keys' values, methods in the order of the tables: its words and its keys."""
        values = []
        for key in keys:
            there = [value for value in self.rows[key].unique() if value]
            ordered = [m for m in METHODS if m in there] if key == "method" else there
            values.append([(LABELS.get(key, str)(value), value) for value in ordered])
        return [
            ([words for words, _ in one], dict(zip(keys, (value for _, value in one), strict=True)))
            for one in product(*values)
        ]

    def _find(self, selector: Selector) -> dict[str, Any] | None:
        return self.cells.get(tuple(selector.get(key, "") for key in KEYS))

    def _spread(self, cell: dict[str, Any]) -> dict[str, Any] | None:
        """The standard deviation that belongs to a mean."""
        if cell["quantity"] != "mean":
            return None
        return self._find({key: cell[key] for key in KEYS} | {"quantity": "std"})

    def _printed(self, cell: dict[str, Any] | None) -> Cell:
        if cell is None:
            return Cell("")
        spread = self._spread(cell)
        value = None if pd.isna(cell["value"]) else float(cell["value"])
        tail = f" (±{spread['printed']})" if spread else ""
        bold, tail_bold = bool(cell["bold"]), bool(spread and spread["bold"])
        return Cell(cell["printed"], value, tail, bold=bold, tail_bold=tail_bold)

    def _here(self, cell: dict[str, Any] | None) -> Cell:
        """A measured number, or the mark of why there is none, with its notes."""
        if cell is None:
            return Cell("")
        if cell["here"] == "nowhere":
            return Cell(ABSENT, notes=("the paper has no such row, and no sweep asks for it",))
        lack = self.shortfalls.get(cell["sweep"], f"runs of {cell['sweep']} lack")
        if pd.isna(cell["measured"]):
            if cell["here"] == "collapsed":
                return Cell(COLLAPSED, notes=(lack,) if cell["lacking"] else (), kind="collapsed")
            return Cell(ABSENT, notes=(lack,), kind="missing")
        spread, n = self._spread(cell), int(cell["n"])
        tail = f" ({n})" if cell["quantity"] == "mean" else ""
        if spread is not None:
            known = pd.notna(spread["measured"])
            std = f"{spread['measured']:.{_places(spread)}f}" if known else ABSENT
            tail = f" (±{std}; {n})"
        notes = [cell["remark"]] if cell["remark"] else []
        notes += [f"chosen among the runs that there are: {lack}"] if cell["lacking"] else []
        notes += [EDGE] if cell.get("at_edge") is True else []
        more = {"tail": tail, "notes": tuple(notes), "runs": cell["run_ids"], "kind": "measured"}
        more |= {"bold": bool(cell["here_bold"])}
        more |= {"tail_bold": bool(spread and spread["here_bold"])}
        return number(cell["measured"], f".{_places(cell)}f", **more)


def _places(cell: dict[str, Any]) -> int:
    """As many digits as the paper prints."""
    return digits(cell["printed"]) if cell["status"] == "printed" else 2


def _difference(cell: dict[str, Any] | None) -> Cell:
    if cell is None or pd.isna(cell["difference"]):
        return Cell("")
    return number(cell["difference"], f"+.{digits(cell['printed'])}f")
