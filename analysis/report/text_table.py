"""One table of text, written as markdown, as LaTeX and to the terminal.

Cells are text in the notation of the page: a minus sign, an en dash for what is not there, raised
letters for the notes, `bold(text)` for what stands out. Each writer turns that into its own language.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

ABSENT = "–"
COLLAPSED = "*"
WIDEST = 1000  # columns that a table may need
OPEN, CLOSE = "⟦", "⟧"  # around bold text, until a writer replaces them
BOLD = re.compile(f"{OPEN}(.*?){CLOSE}")
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
    "±": r"$\pm$",
    "²": r"$^2$",
    "⁹": r"$^9$",
    "→": r"$\to$",
    "ε": r"$\varepsilon$",
    "σ": r"$\sigma$",
    "θ": r"$\theta$",
    OPEN: r"\textbf{",
    CLOSE: "}",
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
        rows: cells; the first `names` columns are names, the others stand to the right.
        notes: footnotes in the order of their marks.
        caption: sentences that every reader needs.
        names: number of columns that stand to the left.
        breaks: indices of rows that begin a new group.
    """

    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    caption: list[str] = field(default_factory=list)
    names: int = 1
    breaks: list[int] = field(default_factory=list)

    def note(self, text: str) -> str:
        """Add a footnote, once, and return its mark."""
        if text not in self.notes:
            self.notes.append(text)
        return _mark(self.notes.index(text))

    def below(self) -> list[str]:
        """The lines below the table: footnotes with their marks, then the caption."""
        marked = [f"{_mark(i)} {text}" for i, text in enumerate(self.notes)]
        return marked + self.caption


def bold(text: str) -> str:
    """Text that stands out."""
    return f"{OPEN}{text}{CLOSE}"


def markdown(table: TextTable) -> str:
    """GitHub's markdown."""
    rule = ["---" if i < table.names else "---:" for i in range(len(table.columns))]
    rows = [table.columns, rule, *table.rows]
    lines = ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]
    below = [f"{_escaped(line)}\n" for line in table.below()]
    return "\n".join([f"### {table.title}\n", *lines, "", *below])


def latex(table: TextTable) -> str:
    """A tabular to be put into a table environment; needs the package booktabs."""
    header, *rows = [
        " & ".join(map(latex_text, row)) + r" \\" for row in [table.columns, *table.rows]
    ]
    rows = [
        (r"\addlinespace " if i in table.breaks and i else "") + row for i, row in enumerate(rows)
    ]
    return "\n".join(
        [
            f"% {table.title}. Needs \\usepackage{{booktabs}}.",
            rf"\begin{{tabular}}{{{'l' * table.names}{'r' * (len(table.columns) - table.names)}}}",
            r"\toprule",
            header,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {latex_text(line)}" for line in table.below()),
            "",
        ]
    )


def show(table: TextTable, console: Console) -> None:
    """Print the table."""
    grid = Table(
        title=table.title, box=SIMPLE_HEAD, title_justify="left", padding=0, show_edge=False
    )
    for i, column in enumerate(table.columns):
        width = max(map(len, [*column.split(), *(BOLD.sub(r"\1", row[i]) for row in table.rows)]))
        header = Text("\n".join(wrap(column, width)))  # no wider than the cells below it
        grid.add_column(header, justify="left" if i < table.names else "right", no_wrap=True)
    for i, row in enumerate(table.rows):
        if i in table.breaks and i:
            grid.add_section()
        grid.add_row(*map(_terminal_text, row))
    console.print()
    console.print(grid)
    needed = console.measure(grid, options=console.options.update(max_width=WIDEST)).maximum
    if needed > console.width:
        console.print(f"Cut: this table needs {needed} columns.", style="bold")
    for line in table.below():
        console.print(Text(line), style="dim")


def _terminal_text(cell: str) -> Text:
    """A cell with its bold parts."""
    text = Text()
    for i, part in enumerate(BOLD.split(cell)):
        text.append(part, style="bold" if i % 2 else "")
    return text


def _mark(i: int) -> str:
    """The mark of the i-th note: a to z without q, then aa, bb, ..."""
    return RAISED[i % len(RAISED)] * (1 + i // len(RAISED))


def latex_text(text: str) -> str:
    """Text as LaTeX; what stands between backticks is code."""
    parts = ["".join(LATEX.get(character, character) for character in p) for p in text.split("`")]
    return "".join(rf"\texttt{{{p}}}" if i % 2 else p for i, p in enumerate(parts))


def _escaped(text: str) -> str:
    """Markdown's own signs as text; `*` marks a collapsed run here, never emphasis."""
    escaped = text.replace("|", r"\|").replace("*", r"\*")
    return escaped.replace(OPEN, "**").replace(CLOSE, "**")
