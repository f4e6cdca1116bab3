"""Tables 1 to 12 of the paper, rebuilt from runs and from conf/, each number beside the printed one.

Tables 1, 3, 4, 5, 11 and 12 come from the runs of conf/sweep, Table 2 from what runs logged of their optimizer's
state, Tables 6 to 10 from conf/. A csv has a row per number, unrounded;
md and tex have the page; all.tex is a document of all tables.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text

from analysis.paper.printed_numbers import TABLES, Paper
from analysis.report import paper_settings
from analysis.report.markdown import csv, table_texts, write_texts
from analysis.report.paper_layout import TITLES, Result, layouts
from analysis.report.table import console, latex_text, show
from analysis.select.cells import shortfall
from analysis.select.paper_cells import BEHIND, FAILED, SWEEPS, beside, wanted
from analysis.select.provenance import foot

DOCUMENT = r"""\documentclass{article}
\usepackage[a3paper,margin=15mm]{geometry}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


def build(
    numbers: Iterable[int], paper: Paper, runs: pd.DataFrame, filled: pd.DataFrame
) -> Iterable[Result]:
    """The tables; `filled`: the cells of the sweeps behind them, and maybe of others."""
    sizes, filled = wanted(paper), filled[filled["sweep"].isin(BEHIND)]
    frame = beside(paper, filled)
    for number in numbers:
        if number in SWEEPS:
            yield _from_runs(number, frame, filled, runs, {s: sizes[s] for s in SWEEPS[number]})
        elif number == 2:
            yield paper_settings.state(paper, runs)
        elif number == 6:
            yield paper_settings.splits(paper)
        else:
            yield paper_settings.hyperparameters(number, paper)


def write(results: Sequence[Result], directory: Path) -> list[Path]:
    """Write csv, md and tex of each table, and all.tex; two paths that stand for them."""
    texts: dict[str, str] = {}
    for result in results:
        texts |= table_texts(f"table{result.number}", csv(result.frame), result.pages)
    inputs = [
        f"\\section*{{Table {number}. {latex_text(TITLES[number])}}}\n\\noindent\\input{{table{number}.tex}}\\clearpage"
        for number in TABLES
        if f"table{number}.tex" in texts or (directory / f"table{number}.tex").exists()
    ]
    texts["all.tex"] = DOCUMENT % "\n".join(inputs)
    write_texts(directory, texts)
    return [directory / "table*.{csv,md,tex}", directory / "all.tex"]


def show_results(results: Sequence[Result], full: bool) -> None:
    """Print a line per table and what is missing; the tables themselves if they were asked for."""
    terminal = console(150)
    for result in results:
        for page in result.pages if full else []:
            show(page, terminal)
    terminal.print()
    for result in results:
        words = f"Table {result.number:2d}  {result.summary}  ({TITLES[result.number]})"
        terminal.print(Text(words))
    for line in dict.fromkeys(line for result in results for line in result.lacks):
        terminal.print(Text(f"  {line}", style="dim"))


def _from_runs(
    number: int,
    frame: pd.DataFrame,
    filled: pd.DataFrame,
    runs: pd.DataFrame,
    sizes: dict[str, int],
) -> Result:
    """A table of runs; `sizes`: sweep -> how many the paper made."""
    mine: Any = filled[filled["sweep"].isin(list(sizes)) & (filled["changed"] == "")]
    ended = mine.loc[mine["status"].isin(FAILED), "run_id"]
    there = runs[runs["run_id"].isin(ended)]
    lacks = {s: shortfall(mine[mine["sweep"] == s], {s: n}) for s, n in sizes.items()}
    pages = layouts(number, frame, {sweep: " ".join(said) for sweep, said in lacks.items()})
    for page in pages:
        page.caption += [foot(f"{len(there)} runs", there)] if len(there) else []
    rows: Any = frame[(frame["table"] == number) & (frame["here"] != "nowhere")]
    measured = int(rows["here"].isin(FAILED).sum())
    summary = f"{measured} of {len(rows)} numbers from {len(ended)} of {sum(sizes.values())} runs"
    said = [sentence for sentences in lacks.values() for sentence in sentences]
    return Result(number, pages, frame[frame["table"] == number], summary, said)
