"""A table, rendered in one place: to the terminal, Markdown, LaTeX and the page.

A `Table` is a data frame of `Cell`s. A cell knows its value, the text that shows it, and what stands behind it, so that
no renderer reads numbers out of text. Footnotes get their letters when a table is rendered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from textwrap import wrap
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

ABSENT, COLLAPSED = "–", "*"
RAISED, PLAIN = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", "abcdefghijklmnoprstuvwxyz"
BREAKS = "\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029"
WIDEST = 1000  # columns of a terminal that a table may need
SIGNS = r"− $-$ – -- × $\times$ ± $\pm$ ² $^2$ ⁹ $^9$ → $\to$ ← $\leftarrow$ ≥ $\geq$ ≤ $\leq$ ε $\varepsilon$"
SIGNS += r" σ $\sigma$ θ $\theta$ < $<$"
LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **dict(zip(SIGNS.split()[::2], SIGNS.split()[1::2], strict=True)),
    **{
        raised: rf"\textsuperscript{{{plain}}}" for raised, plain in zip(RAISED, PLAIN, strict=True)
    },
}


@dataclass(frozen=True)
class Cell:
    """One cell."""

    text: str  # as shown, without the letters of notes
    # the number that is shown; None for words, and for a number that is not there
    value: float | None = None
    tail: str = ""  # what is shown behind it: the spread of a mean
    notes: tuple[str, ...] = ()  # footnotes
    runs: str = ""  # ids of the runs behind it, joined by spaces: the page shows them at the cell
    kind: str = ""  # how the page shows it: `measured`, `missing`, `collapsed` or empty
    bold: bool = False  # whether the text stands in bold; the tail never does


Row = Mapping[Any, Any]
Column = str | tuple[Any, ...] | Callable[[Row], Cell | str]


@dataclass
class Table:
    """A table with its notes."""

    title: str  # one line
    columns: Sequence[str]  # headings
    # cells; a plain text stands for a cell of words
    rows: list[Sequence[Cell | str]] = field(default_factory=list)
    names: int = 1  # number of columns that name a row: they stand to the left
    caption: list[str] = field(default_factory=list)  # sentences that every reader needs
    breaks: list[int] = field(default_factory=list)  # indices of rows that begin a new group
    # row by row what the page filters by; empty without
    facets: list[Mapping[str, str]] = field(default_factory=list)
    name: str = ""  # id on the page; empty for one made of the page's own counting

    @classmethod
    def of(
        cls, title: str, frame: pd.DataFrame, columns: Mapping[str, Column], **more: Any
    ) -> "Table":
        """A table with a row per row of a frame.

        `columns`: heading -> the key of words; key, format and maybe factor of a number (see `number`); or what makes
        the cell of a row.
        """
        rows: list[Sequence[Cell | str]] = [
            [_made(row, column) for column in columns.values()] for row in frame.to_dict("records")
        ]
        return cls(title, list(columns), rows, **more)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The cells."""
        cells = [[_as_cell(cell) for cell in row] for row in self.rows]
        return pd.DataFrame(cells, columns=pd.Index(list(self.columns), dtype=object), dtype=object)

    @cached_property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers, by their values."""
        return [
            i >= self.names and any(row[i].value is not None for row in self.frame.to_numpy())
            for i in range(len(self.columns))
        ]

    @cached_property
    def notes(self) -> list[str]:
        """The footnotes in the order of their letters."""
        cells = self.frame.to_numpy().ravel()
        return list(dict.fromkeys(note for cell in cells for note in cell.notes))

    def shown(
        self, cell: Cell, bold: Callable[[str], str] = str, escape: Callable[[str], str] = str
    ) -> str:
        """A cell's text with the letters of its notes, its bold part and every text treated as said."""
        text = escape(cell.text)
        return (bold(text) if cell.bold else text) + escape(cell.tail + self.letters(cell))

    def letters(self, cell: Cell) -> str:
        """The letters of a cell's notes."""
        return "".join(_letter(self.notes.index(note)) for note in cell.notes)

    @property
    def below(self) -> list[str]:
        """The lines below the table: footnotes, then the caption."""
        notes = (f"{_letter(i)} {note}" for i, note in enumerate(self.notes))
        return [*map(one_line, (*notes, *self.caption))]


def one_line(text: str) -> str:
    """Text with its line breaks written out, as in `task.prompt`: a row of a table is one line."""
    return "".join(repr(sign)[1:-1] if sign in BREAKS else sign for sign in text)


def _as_cell(made: Cell | str) -> Cell:
    cell = made if isinstance(made, Cell) else Cell(made)
    return replace(cell, text=one_line(cell.text))


def _made(row: Row, column: Column) -> Cell | str:
    """The cell of one row, see `Table.of`."""
    if callable(column):
        return column(row)
    if isinstance(column, str):
        return str(row[column])
    return number(row.get(column[0]), *column[1:])


def number(value: Any, form: str, factor: float = 1.0, **more: Any) -> Cell:
    """A cell with a number as `form` has it, as ".2f", times `factor`, as 100 for per cent; a dash for None and NaN."""
    if value is None or pd.isna(value):
        return Cell(ABSENT, **more)
    shown = factor * float(value)
    return Cell(format(shown, form).replace("-", "−"), shown, **more)


def markdown(table: Table) -> str:
    """GitHub's Markdown."""
    shown = table.frame.map(lambda cell: table.shown(cell, "**{}**".format, escape)).to_numpy()
    rule = ["---:" if i >= table.names else "---" for i in range(len(table.columns))]
    lines = ["| " + " | ".join(row) + " |" for row in (table.columns, rule, *shown)]
    below = [f"{escape(line)}\n" for line in table.below]
    return "\n".join([f"### {table.title}\n", *lines, "", *below])


def latex(table: Table) -> str:
    """A tabular to be put into a table environment; needs the package booktabs."""
    shown = table.frame.map(lambda cell: table.shown(cell, r"\textbf{{{}}}".format, latex_text))
    rows = [" & ".join(row) + r" \\" for row in shown.to_numpy()]
    rows = [r"\addlinespace " * (i > 0 and i in table.breaks) + row for i, row in enumerate(rows)]
    layout = "".join("r" if i >= table.names else "l" for i in range(len(table.columns)))
    lines = [
        f"% {table.title}. Needs \\usepackage{{booktabs}}.",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        " & ".join(map(latex_text, table.columns)) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(
        [*lines, *(rf"\par\footnotesize {latex_text(line)}" for line in table.below), ""]
    )


def show(table: Table, console: Console) -> None:
    """Print the table without the last columns that do not fit."""
    count = len(table.columns)
    widest = console.options.update(max_width=WIDEST)
    while (
        count > table.names + 1
        and console.measure(_grid(table, count), options=widest).maximum > console.width
    ):
        count -= 1
    console.print()
    console.print(_grid(table, count))
    if left_out := ", ".join(table.columns[count:]):
        console.print(Text(f"No room for: {left_out}. The files have them."), style="bold")
    for line in table.below:
        console.print(Text(line), style="dim")


def _grid(table: Table, count: int) -> Grid:
    """The first columns of a table, for the terminal."""
    grid = Grid(
        title=table.title, box=SIMPLE_HEAD, title_justify="left", padding=0, show_edge=False
    )
    texts = [
        [Text(table.shown(cell), style="bold" if cell.bold else "") for cell in row[:count]]
        for row in table.frame.to_numpy()
    ]
    for i, column in enumerate(table.columns[:count]):
        width = max(map(len, [*column.split(), *(row[i].plain for row in texts)]), default=1)
        header = Text("\n".join(wrap(column, width)))  # no wider than the cells below it
        grid.add_column(header, justify="right" if i >= table.names else "left", no_wrap=True)
    for i, row in enumerate(texts):
        if i in table.breaks and i:
            grid.add_section()
        grid.add_row(*row)
    return grid


def console(width: int = 120) -> Console:
    """The terminal; where there is none, so many columns."""
    there = Console(highlight=False)
    return there if there.is_terminal else Console(highlight=False, width=width)


def latex_text(text: str) -> str:
    """Text as LaTeX; what stands between backticks is code."""
    parts = [
        "".join(LATEX.get(character, character) for character in part) for part in text.split("`")
    ]
    return "".join(rf"\texttt{{{part}}}" if i % 2 else part for i, part in enumerate(parts))


def escape(text: str) -> str:
    """Markdown's own signs as text; `*` marks a collapsed run here, never emphasis."""
    return text.replace("|", r"\|").replace("*", r"\*")


def _letter(i: int) -> str:
    """The mark of the i-th note: a to z without q, then aa, bb, ..."""
    return RAISED[i % len(RAISED)] * (1 + i // len(RAISED))
