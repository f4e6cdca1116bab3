"""A table of the page: cells that sort, rows that filter, values that know the runs behind them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.paper.names import MODELS, TASKS
from analysis.report.page.markup import Markup, code_spans, element, text
from analysis.report.style import LOOKS
from analysis.report.text_table import CLOSE, OPEN, RAISED, TextTable

FILTERS = ("model", "task", "method", "precision")  # what the page filters by
NUMBER = re.compile(r"[-−+]?[\d,]*\.?\d+(?:e[-−+]?\d+)?")
# What may stand in a column of numbers: one with its spread, a sign, nothing; then marks of notes.
NUMERIC = re.compile(rf"(?:{NUMBER.pattern}(?: ± [\d.]+)?|[–*]|)[†{RAISED}]*")
LONG = 48  # characters; a column with longer cells wraps


@dataclass(frozen=True)
class Cell:
    """A table cell.

    Attributes:
        shown: its text.
        sort: what it sorts by; None: after the number in its text, or the text.
        runs: ids of the runs behind it; the page shows where they come from.
        note: a sentence that the page shows on hover and focus.
        kind: `measured`, `paper`, `missing`, `collapsed`, `chosen` or empty: how it looks.
        bold: whether it stands in bold.
    """

    shown: str
    sort: float | str | None = None
    runs: Sequence[str] = ()
    note: str = ""
    kind: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Row:
    """A row and what the page's filters find it by."""

    cells: Sequence[Cell]
    facet: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PageTable:
    """A table.

    Attributes:
        name: its id on the page.
        title: its caption.
        columns: headers; a column of numbers stands to the right.
        rows: the rows; the first cell is a row's header.
        below: sentences below it.
        stack: whether a narrow screen shows each row as a block instead of a line to scroll along.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    below: Sequence[str] = ()
    stack: bool = False


def table_markup(table: PageTable) -> Markup:
    """The table in a region that scrolls by itself, with its notes."""
    looks = _column_looks(table)
    heads = [
        element(
            "th",
            element("button", text(column), type="button", class_="sort"),
            scope="col",
            class_=looks[i] or None,
            aria_sort="none",
        )
        for i, column in enumerate(table.columns)
    ]
    labels = table.columns if table.stack else None
    body = [_row(row, looks, labels) for row in table.rows]
    written = element(
        "table",
        element("caption", text(table.title)),
        element("thead", element("tr", *heads)),
        element("tbody", *body),
        id=table.name,
        class_="stack" if table.stack else None,
    )
    empty = element("p", text("No row matches the filters."), class_="nothing", hidden=True)
    below = [element("p", code_spans(line), class_="below") for line in table.below]
    region = element(
        "div", written, class_="scroll", role="region", aria_label=table.title, tabindex="0"
    )
    return element("div", region, empty, *below, class_="table")


def from_text_table(table: TextTable, name: str) -> PageTable:
    """A table as the md and tex files show it.

    Its rows filter by the labels in their first columns. A name that the page leaves blank because it stands above is
    written out: sorted or filtered, a row stands alone.
    """
    rows = []
    above = [""] * table.names
    for row in table.rows:
        names = row[: table.names]
        if not names[0]:
            names = [own or upper for own, upper in zip(names, above, strict=True)]
        above = names
        cells = [_text_cell(shown) for shown in [*names, *row[table.names :]]]
        rows.append(Row(cells, _facet(names)))
    below = [_plain(line) for line in table.below()]
    return PageTable(name, table.title, list(map(_plain, table.columns)), rows, below)


def bar(done: int, other: int, total: int, label: str) -> Markup:
    """How much of something is there, as a bar; its words are its label."""
    share = [100 * done / total, 100 * other / total] if total else [0.0, 0.0]
    return element(
        "span",
        element("span", class_="done", style=f"width:{share[0]:.2f}%"),
        element("span", class_="other", style=f"width:{share[1]:.2f}%"),
        class_="bar",
        role="img",
        aria_label=label,
    )


def sort_key(cell: Cell) -> str:
    """What a cell sorts by, as text: a number where it is one."""
    if cell.sort is not None:
        return str(cell.sort)
    found = NUMBER.match(cell.shown)
    return found[0].replace("−", "-").replace(",", "") if found else cell.shown.lower()


def _facet(names: Sequence[str]) -> dict[str, str]:
    """What the labels of a row name."""
    known = [
        *(("model", key, label) for key, label in MODELS.items()),
        *(("task", key, label) for key, label in TASKS.items()),
        *(("method", key, style.label) for key, style in LOOKS.items()),
    ]
    return {filter_: key for filter_, key, label in known if label in names or key in names}


def _text_cell(shown: str) -> Cell:
    """A cell of text, with bold where the text has it."""
    return Cell(_plain(shown), bold=OPEN in shown)


def _plain(shown: str) -> str:
    return shown.replace(OPEN, "").replace(CLOSE, "")


def _column_looks(table: PageTable) -> list[str]:
    """A class per column: of numbers, of long text, or none."""
    looks = []
    for i in range(len(table.columns)):
        shown = [row.cells[i].shown for row in table.rows]
        if any(map(str.strip, shown)) and all(NUMERIC.fullmatch(cell) for cell in shown):
            looks.append("number")
        else:
            looks.append("long" if max(map(len, shown), default=0) > LONG else "")
    return looks


def _row(row: Row, looks: Sequence[str], labels: Sequence[str] | None) -> Markup:
    data = {f"data_{key}": row.facet[key] for key in FILTERS if row.facet.get(key)}
    cells = [
        _cell(cell, looks[i], labels[i] if labels else None, i == 0)
        for i, cell in enumerate(row.cells)
    ]
    return element("tr", *cells, **data)


def _cell(cell: Cell, look: str, label: str | None, header: bool) -> Markup:
    content = text(cell.shown)
    if cell.bold:
        content = element("strong", content)
    if cell.runs or cell.note:
        content = element(
            "button",
            content,
            type="button",
            class_="tip",
            data_runs=" ".join(cell.runs) or None,
            data_note=cell.note or None,
        )
    key = sort_key(cell)
    attributes = {
        "class_": " ".join(c for c in (look, cell.kind) if c) or None,
        "data_sort": key if key != cell.shown else None,
        "data_label": label,
    }
    if header:
        return element("th", content, scope="row", **attributes)
    return element("td", content, **attributes)
