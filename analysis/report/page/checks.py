"""What results/paper says about the paper itself: statistics of its numbers, and inconsistencies."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.report.table import of_frame

if TYPE_CHECKING:
    from analysis.report.page.build import Page

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
AUDIT = ("kind", "location", "what", "printed", "recomputed", "difference", "remark")
QUOTED = re.compile(r"^> (.+)$", re.MULTILINE)


def sections(page: "Page") -> Iterator[dict[str, Any]]:
    """A section for each of the two that there is, folded up."""
    from analysis.report.page.build import folded, ranks, table, words

    directory = page.material.checked
    tests, audit, notes, said = (
        directory / name for name in ("tests.csv", "audit.csv", "notes.csv", "statistics.md")
    )
    blocks = []
    if tests.is_file():
        frame = pd.read_csv(tests)
        frame = frame[[name for name in TESTS if name in frame]].rename(columns=TESTS)
        quoted = QUOTED.findall(said.read_text(encoding="utf-8")) if said.is_file() else []
        pairs = table(of_frame(frame, "Pairs of methods over cells", "tests-table"))
        where = words(
            "Per task, with intervals: `results/paper/statistics.md` and `differences.csv`."
        )
        content = [{"kind": "quotes", "quotes": quoted}, *ranks(page), pairs, where]
        blocks.append(
            folded("What the paper's numbers can say", f"{len(frame)} comparisons", content)
        )
    if audit.is_file():
        frame = pd.read_csv(audit, dtype=str)
        shown = of_frame(
            frame[[name for name in AUDIT if name in frame]],
            f"{len(frame)} findings",
            "audit-table",
        )
        content = [
            words("The paper checked against itself; `results/paper/audit.md` explains each kind."),
            table(shown),
        ]
        if notes.is_file():
            content.append(
                table(of_frame(pd.read_csv(notes, dtype=str), "Noticed by reading", "notes-table"))
            )
        blocks.append(folded("Inconsistencies in the paper", f"{len(frame)} findings", content))
    yield {"id": "checks", "title": "The paper against itself", "blocks": blocks}
