"""The page of the audit: every inconsistency between the paper's printed numbers is listed, however small.

The checks are functions of the printed numbers alone (`checks`). The paper's statements in words (who is
best, what grows, what is fast) were held against its tables once: statements.csv has those that the tables contradict,
and what a reader should know. notes.csv has what was only read, not computed.
"""

from pathlib import Path

import pandas as pd

from analysis.paper.printed_numbers import load, text_table
from analysis.report.markdown import csv, page, write_texts
from tools.audit_paper.checks import audit

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


def write(directory: Path) -> list[Path]:
    """Write audit.md and audit.csv beside the printed numbers, and print the counts; the paths."""
    paper = load(directory)
    outcomes = audit(paper)
    statements = text_table(directory / "statements.csv", tuple(COLUMNS[2:]))
    found = pd.concat([outcomes[~outcomes["ok"]], statements.assign(group=STATEMENTS)])
    found = found.sort_values("kind", key=lambda kind: kind.map(list(KINDS).index), kind="stable")
    groups = outcomes.groupby("group", sort=False)["ok"]
    counts = [(group, len(ok), int((~ok).sum())) for group, ok in groups]
    observations = int((found["kind"] == OBSERVATION).sum())
    failed = int((~outcomes["ok"]).sum())
    counted = (
        f"{len(outcomes)} checks with {failed} findings; {len(statements) - observations} findings and "
        f"{observations} observations on {STATEMENTS}"
    )
    text = page(
        "audit",
        Path(__file__).parent,
        counted=counted,
        counts=counts,
        kinds=KINDS,
        found=[
            (k, r[COLUMNS[2:]].to_numpy().tolist()) for k, r in found.groupby("kind", sort=False)
        ],
        notes=paper.notes[["location", "kind", "note"]].to_numpy().tolist(),
    )
    for group, made, wrong in counts:
        print(f"{made:5d} checks, {wrong:3d} findings: {group}")
    print(f"{counted}; {len(paper.notes)} remarks by reading")
    return write_texts(directory, {"audit.md": text, "audit.csv": csv(found[COLUMNS])})
