"""What results/paper says about the paper itself: inconsistencies, and statistics of its numbers."""

import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis.report.page.content import Section, csv_table
from analysis.report.page.markup import Markup, code_spans, element, join
from analysis.report.page.tables import table_markup

AUDIT = {
    "kind": "kind",
    "location": "where",
    "what": "what",
    "printed": "printed",
    "recomputed": "recomputed",
    "difference": "difference",
    "remark": "remark",
}
TESTS = {
    "family": "cells of",
    "first": "method",
    "second": "against",
    "cells": "cells",
    "wins": "won",
    "ties": "tied",
    "losses": "lost",
    "mean_difference": "mean, points",
    "wilcoxon_holm": "Wilcoxon p, Holm",
    "sign_holm": "sign p, Holm",
    "within_noise": "within test noise",
}
QUOTED = re.compile(r"^> (.+)$", re.MULTILINE)


def sections(directory: Path, ranks: Markup) -> Iterator[Section]:
    """A section for each of the two that there is."""
    audit, tests = directory / "audit.csv", directory / "tests.csv"
    if tests.is_file():
        said = directory / "statistics.md"
        sentences = QUOTED.findall(said.read_text(encoding="utf-8")) if said.is_file() else []
        lead = ["Per task, with intervals: `results/paper/statistics.md` and `differences.csv`."]
        table = csv_table(_columns(tests, TESTS), "tests-table", "Pairs of methods over cells")
        quotes = [element("blockquote", code_spans(sentence)) for sentence in sentences]
        said_markup = element("div", *quotes, class_="said")
        content = join([said_markup, ranks, table_markup(table)])
        yield Section("statistics", "What the paper's numbers can say", lead, content)
    if audit.is_file():
        frame = _columns(audit, AUDIT)
        table = csv_table(frame, "audit-table", f"{len(frame)} findings")
        lead = [
            "The paper checked against itself: numbers that do not follow from its own other numbers, however "
            "small the gap. `results/paper/audit.md` explains each kind."
        ]
        notes = directory / "notes.csv"
        found = [table_markup(table)]
        if notes.is_file():
            read = csv_table(pd.read_csv(notes, dtype=str), "notes-table", "Noticed by reading")
            found.append(table_markup(read))
        yield Section("audit", "Inconsistencies in the paper", lead, join(found))


def _columns(path: Path, names: dict[str, str]) -> pd.DataFrame:
    """The named columns of a csv file that are there, under the names of the page."""
    frame = pd.read_csv(path, dtype=str)
    present = [name for name in names if name in frame]
    return frame[present].rename(columns=names)
