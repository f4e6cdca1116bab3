"""One table of text, written as markdown, as LaTeX and to the terminal.

Cells are text in the notation of the page: a minus sign, an en dash for what is not there, raised
letters for the notes. Each writer turns that into its own language.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

ABSENT = "–"
RAISED = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ"
PLAIN = "abcdefghijklmnoprstuvwxyz"
LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    **{
        raised: rf"\textsuperscript{{{plain}}}" for raised, plain in zip(RAISED, PLAIN, strict=True)
    },
}


@dataclass
class TextTable:
    """A table with its notes.

    Attributes:
        title: one line.
        columns: headers.
        rows: cells; the first column is a name, the others stand to the right.
        notes: footnotes in the order of their marks.
        caption: sentences that every reader needs.
    """

    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    caption: list[str] = field(default_factory=list)

    def note(self, text: str) -> str:
        """Add a footnote, once, and return its mark."""
        if text not in self.notes:
            self.notes.append(text)
        return _mark(self.notes.index(text))

    def below(self) -> list[str]:
        """The lines below the table: footnotes with their marks, then the caption."""
        marked = [f"{_mark(i)} {text}" for i, text in enumerate(self.notes)]
        return marked + self.caption


def markdown(table: TextTable) -> str:
    """GitHub's markdown."""
    rule = ["---" if i < 1 else "---:" for i in range(len(table.columns))]
    rows = [table.columns, rule, *table.rows]
    lines = ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]
    below = [f"{_escaped(line)}\n" for line in table.below()]
    return "\n".join([f"### {table.title}\n", *lines, "", *below])


def latex(table: TextTable) -> str:
    """A tabular to be put into a table environment; needs the package booktabs."""
    header, *rows = [
        " & ".join(map(_latex_text, row)) + r" \\" for row in [table.columns, *table.rows]
    ]
    return "\n".join(
        [
            f"% {table.title}. Needs \\usepackage{{booktabs}}.",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            header,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {_latex_text(line)}" for line in table.below()),
            "",
        ]
    )


def show(table: TextTable, console: Console) -> None:
    """Print the table."""
    grid = Table(
        title=table.title, box=SIMPLE_HEAD, title_justify="left", padding=0, show_edge=False
    )
    for i, column in enumerate(table.columns):
        width = max(map(len, [*column.split(), *(row[i] for row in table.rows)]))
        header = Text("\n".join(wrap(column, width)))  # no wider than the cells below it
        grid.add_column(header, justify="left" if i < 1 else "right", no_wrap=True)
    for row in table.rows:
        grid.add_row(*(Text(cell) for cell in row))
    console.print()
    console.print(grid)
    for line in table.below():
        console.print(Text(line), style="dim")


def _mark(i: int) -> str:
    """The mark of the i-th note: a to z without q, then aa, bb, ..."""
    return RAISED[i % len(RAISED)] * (1 + i // len(RAISED))


def _latex_text(text: str) -> str:
    """Text as LaTeX; what stands between backticks is code."""
    parts = ["".join(LATEX.get(character, character) for character in p) for p in text.split("`")]
    return "".join(rf"\texttt{{{p}}}" if i % 2 else p for i, p in enumerate(parts))


def _escaped(text: str) -> str:
    """Markdown's own signs as text; `*` marks a collapsed run here, never emphasis."""
    return text.replace("|", r"\|").replace("*", r"\*")
