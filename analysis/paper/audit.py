"""Whether the paper's printed numbers agree with each other; every inconsistency is listed, however small.

`python -m analysis audit` reads results/paper/, writes audit.md and audit.csv there and prints the counts. The checks
are functions of the printed numbers alone (`analysis.paper.arithmetic`). The paper's statements in words (who is best,
what grows, what is fast) were held against its tables once: statements.csv has those that the tables contradict, and
what a reader should know. notes.csv has what was only read, not computed.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from analysis.paper import arithmetic
from analysis.paper.arithmetic import Outcome
from analysis.paper.printed_numbers import Paper, load, text_table

CHECKS: dict[str, Callable[[Paper], Iterator[Outcome]]] = {
    "Table 1 from the runs of Table 11": arithmetic.means_and_stds,
    "average columns": arithmetic.averages,
    "accuracies as multiples of one test example": arithmetic.test_set_multiples,
    "bold cells": arithmetic.bold_cells,
    "numbers printed twice": arithmetic.printed_twice,
    "numbers quoted in the text": arithmetic.quoted_numbers,
    "learning-rate grids": arithmetic.grids,
}
COLUMNS = ["kind", "group", "location", "what", "printed", "recomputed", "difference", "remark"]
STATEMENTS = "statements of the text"
OBSERVATION = "observation"
KINDS = {
    "number": "A printed number that does not follow from the printed numbers it is made of.",
    "last digit": "The same, by no more than one unit of its last digit.",
    "bold": "A cell that is bold and is not among the best, or the other way round.",
    "claim": "A statement of the text that the paper's tables contradict.",
    "basis": "Right arithmetic on numbers that cannot be compared, or beside the number that matters.",
    OBSERVATION: "No contradiction; what a reader of the number should know.",
}


def audit(paper: Paper) -> pd.DataFrame:
    """Every check's outcome, in the order of the checks: a row with `group` and the attributes of `Outcome`."""
    return pd.DataFrame(
        [{"group": g} | one._asdict() for g, check in CHECKS.items() for one in check(paper)]
    )


def write(directory: Path) -> list[Path]:
    """Write audit.md and audit.csv beside the printed numbers, and print the counts; the paths."""
    paper = load(directory)
    outcomes = audit(paper)
    statements = text_table(directory / "statements.csv", tuple(COLUMNS[2:]))
    found = pd.concat([outcomes[~outcomes["ok"]], statements.assign(group=STATEMENTS)])
    found = found.sort_values("kind", key=lambda kind: kind.map(list(KINDS).index), kind="stable")
    groups = outcomes.groupby("group", sort=False)["ok"]
    counts = [(str(group), len(ok), int((~ok).sum())) for group, ok in groups]
    text = _page(
        counted=_counted(counts, found),
        counts=counts,
        kinds=KINDS,
        found=[
            (k, r[COLUMNS[2:]].to_numpy().tolist()) for k, r in found.groupby("kind", sort=False)
        ],
        notes=paper.notes[["location", "kind", "note"]].to_numpy().tolist(),
    )
    paths = [directory / "audit.md", directory / "audit.csv"]
    paths[0].write_text(text, encoding="utf-8", newline="\n")
    found.to_csv(paths[1], index=False, columns=COLUMNS, lineterminator="\n")
    for group, made, failed in counts:
        print(f"{made:5d} checks, {failed:3d} findings: {group}")
    print(f"{_counted(counts, found)}; {len(paper.notes)} remarks by reading")
    return paths


def _counted(counts: list[tuple[str, int, int]], found: pd.DataFrame) -> str:
    """How many findings there are, by what they rest on; observations are none."""
    checks, failed = sum(row[1] for row in counts), sum(row[2] for row in counts)
    observations = int((found["kind"] == OBSERVATION).sum())
    stated = len(found) - failed - observations
    return (
        f"{checks} checks with {failed} findings; {stated} findings and {observations} observations "
        f"on {STATEMENTS}"
    )


def _page(**values: Any) -> str:
    """audit_page.md, filled in."""
    there = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=there, trim_blocks=True, keep_trailing_newline=True)
    # `*` marks a collapse in a table, never emphasis
    environment.filters["cell"] = lambda c: str(c).replace("|", r"\|").replace("*", r"\*")
    return environment.get_template("audit_page.md").render(**values)
