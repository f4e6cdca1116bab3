"""Writes a study's tables, claims and figures, and makes what the page shows of them."""

from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text

from analysis.report.figures.drawing import Figure
from analysis.report.figures.drawing import write as write_figure
from analysis.report.figures.study import curves_figure, roundings_figure
from analysis.report.markdown import csv, write_texts
from analysis.report.study.claims_page import claims_markdown, claims_tables, summary
from analysis.report.study.roundings_page import roundings_markdown, summaries
from analysis.report.study.tables import ablation_table, accuracy_table, eps_table, grid_table
from analysis.report.table import Table, console, latex, markdown, show
from analysis.select.contrast_rows import HIDDEN
from analysis.select.provenance import runs_json
from analysis.select.study_claims import CLAIMS, claims_frame
from analysis.select.study_frames import ablation_frame, accuracy_frame, eps_frame, grid_frame
from analysis.select.study_roundings import roundings_frame
from analysis.select.study_runs import Study


def write_study(study: Study, directory: Path) -> list[Path]:
    """Write all files of a study and print its accuracies and what they say; the paths."""
    accuracy, claims, roundings = accuracy_frame(study), claims_frame(study), roundings_frame(study)
    table = accuracy_table(study, accuracy)
    tables = {
        "accuracy": (accuracy, table),
        "grid": (grid := grid_frame(study), grid_table(study, grid)),
        "ablation": (ablation := ablation_frame(study), ablation_table(study, ablation)),
    }
    eps = eps_frame(study)
    if not eps.empty:
        tables["eps"] = eps, eps_table(study, eps)
    texts = {"accuracy.tex": latex(table)}
    for name, (frame, shown) in tables.items():
        texts |= {f"{name}.csv": _csv(frame), f"{name}.md": markdown(shown)}
    texts |= {
        "claims.csv": _csv(claims.drop(columns=HIDDEN)),
        "claims.md": claims_markdown(study, claims),
        "roundings.md": roundings_markdown(study, roundings),
        "provenance.json": provenance(study),
    }
    figures = study_figures(study, roundings)
    if all(figure.name != "roundings" for figure in figures):
        texts["roundings.csv"] = _csv(roundings)
    paths = write_texts(directory, texts)
    for figure in figures:
        paths += write_figure(figure, directory)
    terminal = console()
    show(table, terminal)
    terminal.print()
    for sentence in study_sentences(study, claims, roundings)[: len(CLAIMS)]:
        terminal.print(Text(sentence))
    return paths


def study_page_tables(study: Study, claims: pd.DataFrame) -> list[Table]:
    """The tables that the page shows, the accuracies first."""
    tables = [
        accuracy_table(study, accuracy_frame(study)),
        ablation_table(study, ablation_frame(study)),
    ]
    return [table for table in [*tables, *claims_tables(claims)] if table.rows]


def study_sentences(study: Study, claims: pd.DataFrame, roundings: pd.DataFrame) -> list[str]:
    """What the numbers say about each claim, then about the roundings."""
    said = [f"({claim}) {words}. {summary(claims, claim)}" for claim, words in CLAIMS.items()]
    return [*said, *summaries(roundings)]


def study_figures(study: Study, roundings: pd.DataFrame) -> list[Figure]:
    """The study's own figures that can be drawn."""
    made = [curves_figure(study), roundings_figure(study, roundings)]
    return [figure for figure in made if figure is not None]


def provenance(study: Study) -> str:
    """The content of provenance.json: every run of the study, and whether a table shows it as the chosen one."""
    there = study.filled[study.filled["run_id"].isin(study.frames.runs["run_id"])]
    first = {"method": "optimizer", "precision": "precision", "seed": "seed", "lr": "lr"}
    cells = there.groupby("run_id", sort=False, as_index=False).agg(
        sweeps=("sweep", list),
        **{key: (column, "first") for key, column in (first | {"status": "status"}).items()},
        chosen=("chosen", "any"),
    )
    runs = study.frames.runs
    rows: Any = cells.to_dict("records")
    return runs_json({"study": study.name}, rows, runs[runs["run_id"].isin(there["run_id"])])


def _csv(frame: pd.DataFrame) -> str:
    return csv(frame, "%.9g")
