"""Which zeroth-order method is best at an equal number of forward passes: python -m benchmarks.compare [--help].

    make compare                                    25 minutes of runs, then table and picture; the same command goes on
    python -m benchmarks.compare --minutes 120      may be started twice: two processes share the runs
    python -m benchmarks.compare --shown            makes no run, shows what there is

docs/comparison.md has the protocol. Written: comparison.csv, comparison.md and a picture.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from analysis.report.table import console, show
from benchmarks.compare.page import save
from benchmarks.compare.protocol import PARTS, Cell, seeds_of
from benchmarks.compare.results import BASE, table
from benchmarks.compare.runs import Found, before, config_of, find, from_csv, make, standing
from zo import config
from zo.run.lock import LockedError

ROOT = Path(__file__).resolve().parents[2]


def missing(parts: Sequence[str], out: str, known: dict[Cell, Found]) -> list[Cell]:
    """Returns the next runs of every entry, the most informative first.

    In each part all methods search their learning rates first. The other seeds follow, one after another, in each the
    best method of the first seed first. Questions come last.
    """
    order = []
    for part in parts:
        plan = PARTS[part]
        if not find(before(part), out, known):
            order.append(((parts.index(part), False, -1, 0.0, 0, 0), before(part)))
        for place, entry in enumerate(plan.entries):
            losses, cells = standing(part, entry, out, known)
            best = min((of.get(plan.seeds[0], math.inf) for of in losses.values()), default=0.0)
            for i, cell in enumerate(cells):
                seed = plan.seeds.index(cell.seed)
                rank = (seed, best if seed else 0.0, place, i)
                order.append(((parts.index(part), entry.role == "question", *rank), cell))
    return [cell for _, cell in sorted(order)]


def make_runs(parts: Sequence[str], out: str, deadline: float, known: dict[Cell, Found]) -> bool:
    """Makes runs until a deadline, by `time.monotonic()`; returns whether all are made."""
    while time.monotonic() < deadline:
        cells = missing(parts, out, known)
        if not cells:
            return True
        for cell in cells:
            try:
                start = time.monotonic()
                make(config_of(cell, out))
            except LockedError:
                continue
            took = time.monotonic() - start
            print(
                f"{cell.part} {cell.entry} lr={cell.lr:g} seed={cell.seed}: {took:.0f} s",
                flush=True,
            )
            break
        else:
            return False  # other processes make the rest
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    layout = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(
        "python -m benchmarks.compare", description=__doc__, formatter_class=layout
    )
    made.add_argument("--minutes", type=float, default=25.0, help="time for runs (25)")
    made.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(all)")
    made.add_argument("--out", default="out/compare", help="directory of the runs (out/compare)")
    made.add_argument("--results", type=Path, default=ROOT / "results" / "local" / "comparison")
    made.add_argument(
        "--go-on-from", type=Path, help="directory of csv files whose runs are not made again"
    )
    made.add_argument("--shown", action="store_true", help="make no run, show what there is")
    args = made.parse_args(argv)
    config.register()
    known: dict[Cell, Found] = {}
    if args.go_on_from:
        paths = sorted(args.go_on_from.glob("comparison_*.csv"))
        if not paths:
            made.error(f"--go-on-from: no comparison_*.csv in {args.go_on_from}")
        for path in paths:
            known |= from_csv(path, args.out)
    if not args.shown:
        here = [p for p in args.parts if torch.cuda.is_available() or not PARTS[p].needs_gpu]
        make_runs(here, args.out, time.monotonic() + 60 * args.minutes, known)
        if left := set(args.parts) - set(here):
            print(f"{' and '.join(sorted(left))}: a GPU is needed")
    for part in args.parts:
        entries = PARTS[part].entries
        standings = {entry.name: standing(part, entry, args.out, known)[0] for entry in entries}
        find(before(part), args.out, known)
        if seeds_of(PARTS[part], standings[BASE]):
            frame = table(part, standings, known)
            show(save(frame, known, part, args.results), console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
