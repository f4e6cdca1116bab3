"""Whether the paper's printed numbers agree with each other; every inconsistency is listed, however small.

`python -m analysis audit` reads results/paper/, writes audit.md and audit.csv there and prints the counts. The checks
are functions of the printed numbers alone (`arithmetic`, `statements`, `plausibility`); what was only read, not
computed, is results/paper/notes.csv.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from analysis.paper.audit import arithmetic, plausibility, statements
from analysis.paper.audit.outcome import KINDS, OBSERVATION, Outcome
from analysis.paper.printed_numbers import Paper, load

CHECKS: tuple[Callable[[Paper], Iterator[Outcome]], ...] = (
    arithmetic.means_and_stds,
    arithmetic.averages,
    arithmetic.test_set_multiples,
    arithmetic.bold_cells,
    arithmetic.printed_twice,
    arithmetic.quoted_numbers,
    arithmetic.grids,
    statements.claims,
    plausibility.plausibility,
)
COLUMNS = ["kind", "group", "location", "what", "printed", "recomputed", "difference", "remark"]


def audit(paper: Paper) -> list[Outcome]:
    """Every check's outcome, in the order of the checks."""
    return [outcome for check in CHECKS for outcome in check(paper)]


def write(directory: Path) -> list[Path]:
    """Write audit.md and audit.csv beside the printed numbers, and print the counts; the paths.

    Raises:
        PaperError: see `analysis.paper.printed_numbers.load`.
    """
    paper = load(directory)
    outcomes = audit(paper)
    paths = [directory / "audit.md", directory / "audit.csv"]
    paths[0].write_text(_markdown(outcomes, paper), encoding="utf-8", newline="\n")
    listed = [asdict(o) for o in (*findings(outcomes), *observations(outcomes))]
    frame = pd.DataFrame(listed, columns=COLUMNS)
    frame.to_csv(paths[1], index=False, lineterminator="\n")
    for group, made, count, seen in summary(outcomes):
        print(f"{made:5d} checks, {count:3d} findings, {seen:2d} observations: {group}")
    print(f"{counted(outcomes)} in all; {len(paper.notes)} remarks by reading")
    return paths


def findings(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The checks that failed, by kind and then in the order of the checks; observations are none."""
    order = list(KINDS)
    failed = (o for o in outcomes if not o.ok and o.kind != OBSERVATION)
    return sorted(failed, key=lambda o: order.index(o.kind))


def observations(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """What a reader should know and contradicts nothing: no check, since it cannot fail."""
    return [o for o in outcomes if not o.ok and o.kind == OBSERVATION]


def summary(outcomes: Sequence[Outcome]) -> list[tuple[str, int, int, int]]:
    """Each group, the numbers of its checks, of its findings and of its observations."""
    every = Counter(o.group for o in outcomes)
    found = Counter(o.group for o in findings(outcomes))
    seen = Counter(o.group for o in observations(outcomes))
    return [(group, every[group] - seen[group], found[group], seen[group]) for group in every]


def counted(outcomes: Sequence[Outcome]) -> str:
    """`970 checks, 35 findings, 20 observations`."""
    found, seen = len(findings(outcomes)), len(observations(outcomes))
    return f"{len(outcomes) - seen} checks, {found} findings, {seen} observations"


def _markdown(outcomes: Sequence[Outcome], paper: Paper) -> str:
    lines = [
        "# The paper against itself",
        "",
        f"The printed numbers: {counted(outcomes)}; made by `make audit`. "
        "Printed numbers: see [README.md](README.md).",
        *_table("| checked | checks | findings | observations |", "lrrr", summary(outcomes)),
    ]
    found = [*findings(outcomes), *observations(outcomes)]
    for kind, meaning in KINDS.items():
        of_kind = [[getattr(o, key) for key in COLUMNS[2:]] for o in found if o.kind == kind]
        if of_kind:
            heads = "| where | what | printed | recomputed | difference | remark |"
            lines += ["", f"## {kind.capitalize()} ({len(of_kind)})", "", meaning]
            lines += _table(heads, "llrrrl", of_kind)
    lines += ["", f"## Read, not computed ({len(paper.notes)})", ""]
    lines += [
        "Contradictions in formulas and wording, noticed by reading; no check can fail on them."
    ]
    notes = paper.notes[["location", "kind", "note"]].to_numpy()
    return "\n".join([*lines, *_table("| where | about | note |", "lll", notes)]) + "\n"


def _table(heads: str, sides: str, rows: Iterable[Iterable[object]]) -> list[str]:
    """A table in Markdown behind an empty line; `*` marks a collapse here, never emphasis."""
    rule = " | ".join("---:" if side == "r" else "---" for side in sides)
    shown = ([str(cell).replace("|", r"\|").replace("*", r"\*") for cell in row] for row in rows)
    return ["", heads, f"| {rule} |", *(f"| {' | '.join(row)} |" for row in shown)]
