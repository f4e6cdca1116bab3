"""Whether the paper's printed numbers agree with each other; every inconsistency is listed, however small.

    python -m analysis.paper.audit

reads results/paper/, writes audit.md and audit.csv there and prints a summary. The checks are functions of the
printed numbers alone (`audit_arithmetic`, `audit_claims`, `audit_plausibility`); what was only read, not computed, is
results/paper/notes.csv. The exit code says whether the audit could be made, not whether it found something.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from analysis.paper.audit import arithmetic, plausibility, statements
from analysis.paper.audit.outcome import KINDS, OBSERVATION, Outcome
from analysis.paper.printed_numbers import DIRECTORY, Paper, PaperError, load

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
PIPE_WIDTH = 120  # characters, where there is no terminal to ask


def audit(paper: Paper) -> list[Outcome]:
    """Every check's outcome, in the order of the checks."""
    return [outcome for check in CHECKS for outcome in check(paper)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.paper.audit",
        description="Check the paper's printed numbers against each other.",
    )
    parser.add_argument(
        "--paper",
        type=Path,
        default=DIRECTORY,
        metavar="DIR",
        help="directory of the printed numbers, where audit.md and audit.csv go (default: results/paper)",
    )
    directory = parser.parse_args(argv).paper
    try:
        write(directory)
    except PaperError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def write(directory: Path) -> None:
    """Write audit.md and audit.csv beside the printed numbers, and print what they say.

    Raises:
        PaperError: see `analysis.paper.printed_numbers.load`.
    """
    paper = load(directory)
    outcomes = audit(paper)
    (directory / "audit.md").write_text(_markdown(outcomes, paper), encoding="utf-8", newline="\n")
    _frame(outcomes).to_csv(directory / "audit.csv", index=False, lineterminator="\n")
    _show(outcomes, paper)
    print(f"{directory / 'audit.md'}\n{directory / 'audit.csv'}")


def findings(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The checks that failed, by kind and then in the order of the checks; observations are none."""
    order = list(KINDS)
    failed = (o for o in outcomes if not o.ok and o.kind != OBSERVATION)
    return sorted(failed, key=lambda o: order.index(o.kind))


def observations(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """What a reader should know and contradicts nothing: no check, since it cannot fail."""
    return [o for o in outcomes if not o.ok and o.kind == OBSERVATION]


def _frame(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """All findings as a table, in numbers as far as they are numbers."""
    rows = [
        {
            "kind": o.kind,
            "group": o.group,
            "location": o.location,
            "what": o.what,
            "printed": o.printed,
            "recomputed": o.recomputed,
            "difference": o.difference,
            "remark": o.remark,
        }
        for o in [*findings(outcomes), *observations(outcomes)]
    ]
    columns = ["kind", "group", "location", "what", "printed", "recomputed", "difference", "remark"]
    return pd.DataFrame(rows, columns=columns)


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
    found = [*findings(outcomes), *observations(outcomes)]
    lines = [
        "# The paper against itself",
        "",
        f"The printed numbers: {counted(outcomes)}; made by `make audit`. "
        "Printed numbers: see [README.md](README.md).",
        "",
        "| checked | checks | findings | observations |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {group} | {made} | {count} | {seen} |"
            for group, made, count, seen in summary(outcomes)
        ),
    ]
    for kind, meaning in KINDS.items():
        of_kind = [o for o in found if o.kind == kind]
        if not of_kind:
            continue
        lines += ["", f"## {kind.capitalize()} ({len(of_kind)})", "", f"{meaning}", ""]
        lines += [
            "| where | what | printed | recomputed | difference | remark |",
            "| --- | --- | ---: | ---: | ---: | --- |",
        ]
        for o in of_kind:
            cells = (o.location, o.what, o.printed, o.recomputed, o.difference, o.remark)
            lines.append("| " + " | ".join(_escaped(cell) for cell in cells) + " |")
    lines += ["", f"## Read, not computed ({len(paper.notes)})", ""]
    lines += [
        "Contradictions in formulas and wording, noticed by reading; no check can fail on them.",
        "",
        "| where | about | note |",
        "| --- | --- | --- |",
    ]
    notes = paper.notes[["location", "kind", "note"]].itertuples(index=False)
    lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in notes]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*")


def _show(outcomes: Sequence[Outcome], paper: Paper) -> None:
    """One line per finding, and the counts."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    found = [*findings(outcomes), *observations(outcomes)]
    for kind in KINDS:
        of_kind = [o for o in found if o.kind == kind]
        if of_kind:
            console.print(Text(f"\n{kind} ({len(of_kind)}): {KINDS[kind]}", style="bold"))
        for o in of_kind:
            console.print(Text(f"  {o.sentence()}"))
    console.print()
    for group, made, count, seen in summary(outcomes):
        console.print(f"{made:5d} checks, {count:3d} findings, {seen:2d} observations: {group}")
    console.print(
        f"{counted(outcomes)} in all; {len(paper.notes)} more remarks by reading are in audit.md"
    )
