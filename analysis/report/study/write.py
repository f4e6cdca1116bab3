"""Writes a study's tables, claims and figures, and makes what the page shows of them."""

from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text

from analysis.report.figures.drawing import write as write_figure
from analysis.report.figures.study import curves_figure
from analysis.report.markdown import csv, write_texts
from analysis.report.study.claims_page import claims_markdown, claims_tables, summary
from analysis.report.study.tables import ablation_table, accuracy_table, eps_table, grid_table
from analysis.report.table import Table, console, latex, markdown, show
from analysis.select.contrast_rows import HIDDEN
from analysis.select.provenance import runs_json
from analysis.select.study_claims import CLAIMS, claims_frame
from analysis.select.study_frames import ablation_frame, accuracy_frame, eps_frame, grid_frame
from analysis.select.study_runs import Study


def write_study(study: Study, directory: Path) -> list[Path]:
    """Write all files of a study and print its accuracies and what they say; the paths."""
    accuracy, claims = accuracy_frame(study), claims_frame(study)
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
        "provenance.json": provenance(study),
    }
    paths = write_texts(directory, texts)
    figure = curves_figure(study)
    paths += write_figure(figure, directory) if figure else []
    terminal = console()
    show(table, terminal)
    terminal.print()
    for sentence in study_sentences(claims):
        terminal.print(Text(sentence))
    return paths


def study_page_tables(study: Study, claims: pd.DataFrame) -> list[Table]:
    """The tables that the page shows, the accuracies first."""
    tables = [
        accuracy_table(study, accuracy_frame(study)),
        ablation_table(study, ablation_frame(study)),
    ]
    return [table for table in [*tables, *claims_tables(claims)] if table.rows]


def study_sentences(claims: pd.DataFrame) -> list[str]:
    """What the numbers say about each claim."""
    return [f"({claim}) {words}. {summary(claims, claim)}" for claim, words in CLAIMS.items()]


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
