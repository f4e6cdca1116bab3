"""A study: the paper's comparisons made whole at a small scale, and which of its claims hold there.

A study is a sweep `study_NAME` and those beside it that have its name and one of the endings of
`analysis.select.study_runs.PARTS`. What is written is listed in docs/analysis.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text

from analysis.paper.names import UNTRAINED, method_label, model_label, task_label
from analysis.report.claims_page import claims_markdown, claims_tables, summary
from analysis.report.markdown import csv, write_texts
from analysis.report.table import (
    ABSENT,
    COLLAPSED,
    Cell,
    Row,
    Table,
    console,
    latex,
    markdown,
    number,
    show,
)
from analysis.select.cell_runs import EDGE
from analysis.select.contrast_rows import HIDDEN
from analysis.select.study_claims import CLAIMS, claims_frame
from analysis.select.study_frames import ablation_frame, accuracy_frame
from analysis.select.study_runs import M_IS_K, M_IS_K_PLUS_1, MAIN, NOISE, Study

CAPTION = (
    "Mean ± sample standard deviation over the seeds (their number). The learning rate of each cell is chosen by "
    "validation accuracy over all seeds; the test accuracy is that of the best evaluation on validation. Bold: the {}, "
    f"once all its runs have ended. {COLLAPSED} every run collapsed, {ABSENT} no number yet."
)


def write_study(study: Study, directory: Path) -> list[Path]:
    """Write accuracies, ablation and claims, and print the accuracies and what they say; the paths."""
    accuracy, ablation, claims = accuracy_frame(study), ablation_frame(study), claims_frame(study)
    table = accuracy_table(study, accuracy)
    texts = {
        "accuracy.csv": csv(accuracy, "%.9g"),
        "accuracy.md": markdown(table),
        "accuracy.tex": latex(table),
        "claims.csv": csv(claims.drop(columns=HIDDEN), "%.9g"),
        "claims.md": claims_markdown(study, claims),
    }
    if len(ablation):
        texts["ablation.csv"] = csv(ablation, "%.9g")
        texts["ablation.md"] = markdown(ablation_table(study, ablation))
    terminal = console()
    show(table, terminal)
    terminal.print()
    for sentence in study_sentences(claims):
        terminal.print(Text(sentence))
    return write_texts(directory, texts)


def study_page_tables(study: Study, claims: pd.DataFrame) -> list[Table]:
    """The tables that the page shows, the accuracies first."""
    ablation = ablation_frame(study)
    tables = [accuracy_table(study, accuracy_frame(study))]
    tables += [ablation_table(study, ablation)] if len(ablation) else []
    return [*tables, *claims_tables(claims)]


def study_sentences(claims: pd.DataFrame) -> list[str]:
    """What the numbers say about each claim."""
    return [f"({claim}) {words}. {summary(claims, claim)}" for claim, words in CLAIMS.items()]


def accuracy_table(study: Study, frame: pd.DataFrame) -> Table:
    """Test accuracy by method and precision: the frame of `accuracy_frame`."""
    first = study.part(MAIN).iloc[0]
    title = f"{study.name}: test accuracy (%), {model_label(first['model'])} on {task_label(first['task'])}"
    caption = [CAPTION.format("two best trained methods of a column"), *study.lacks(MAIN)]
    content = Table(title, ["method", *study.precisions], caption=caption)
    precisions = {name: name for name in study.precisions}
    for method, rows in frame.groupby("optimizer", sort=False):
        content.rows.append([method_label(str(method)), *_cells(rows, "precision", precisions)])
        content.facets.append({"method": str(method)})
    return content


def ablation_table(study: Study, frame: pd.DataFrame) -> Table:
    """Accuracy of BSZO over k: the frame of `ablation_frame`."""
    ks = {k: f"k = {k:g}" for k in sorted(frame["k"].unique())}
    title = f"{study.name}: test accuracy (%) of BSZO over k, in the form of Table 5"
    caption = [
        CAPTION.format("better of (a) and (b), and of (c)'s rows, for each k"),
        "At equal numbers of steps; a step makes k + 1 forward passes.",
        *study.lacks(M_IS_K, M_IS_K_PLUS_1, NOISE),
    ]
    names = ["part", "setting", "precision"]
    content = Table(title, [*names, *ks.values()], names=3, caption=caption)
    for values, rows in frame.groupby(names, sort=False):
        part, *others = map(str, values)  # type: ignore[misc]
        content.rows.append([f"({part})", *others, *_cells(rows, "k", ks)])
    return content


def _cells(rows: pd.DataFrame, key: str, columns: Mapping[Any, str]) -> list[Cell]:
    """The cells of one row of a table, in the order of its columns."""
    found = {row[key]: _cell(row) for row in rows.to_dict("records")}
    return [found.get(column, Cell("")) for column in columns]


def _cell(row: Row) -> Cell:
    """The mean of a setting over its seeds, or the mark of why there is none."""
    lack = f"{row['lacking']} of the {row['grid']} runs of this grid lack"
    if row["status"] == "collapsed":
        return Cell(COLLAPSED, notes=(f"all {row['grid']} runs collapsed",), kind="collapsed")
    if row["status"] != "finished":
        return Cell(ABSENT, notes=(lack,), kind="missing")
    edge = row["at_edge"] and row["optimizer"] not in UNTRAINED
    lost = f"{row['collapsed']} of {row['seeds']} seeds collapsed"
    notes = [lost] * bool(row["collapsed"])
    notes += [f"chosen among the runs that there are: {lack}"] * bool(row["lacking"])
    notes += [EDGE] * edge + [row["remark"]] * bool(row["remark"])
    tail = f" ± {number(row['test_std'], '.2f', 100).text} ({row['n']})"
    more = {"tail": tail, "runs": row["run_ids"], "bold": row["bold"], "notes": tuple(notes)}
    return number(row["test_mean"], ".2f", 100, **more)
