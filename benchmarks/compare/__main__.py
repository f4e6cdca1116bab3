"""Which zeroth-order method is best at an equal number of forward passes: python -m benchmarks.compare [--help].

    make compare                                    25 minutes of runs, then table and picture; the same command goes on
    python -m benchmarks.compare --minutes 120      may be started twice: two processes share the runs
    python -m benchmarks.compare --minutes 0        makes no run, shows what there is

docs/comparison.md has the protocol. Written: comparison.csv, comparison.md and a picture.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import torch

from analysis.report.table import console, show
from benchmarks.compare.protocol import BEFORE, PARTS, Cell, first_of, role_of, seeds_of
from benchmarks.compare.results import BASE, save, table
from benchmarks.compare.runs import Found, config_of, find, from_csv, standing
from zo import config
from zo.run import runner
from zo.run.lock import LockedError

ROOT = Path(__file__).resolve().parents[2]


def missing(parts: Sequence[str], out: str, known: dict[Cell, Found]) -> list[Cell]:
    """Returns the next runs of every entry, the most informative first.

    In each part all methods search their learning rates first. The other seeds follow, one after another, in each the
    best method of the first seed first. Questions come last.
    """
    order = []
    for turn, part in enumerate(parts):
        plan, before = PARTS[part], Cell(part, BEFORE, 0, 0)
        if not find(before, out, known):
            order.append(((turn, False, -1, 0.0, 0, 0), before))
        for place, name in enumerate(plan.names):
            losses, cells = standing(part, name, out, known)
            best = min(first_of(plan, losses).values(), default=0.0)
            for i, cell in enumerate(cells):
                seed = plan.seeds.index(cell.seed)
                rank = (seed, best if seed else 0.0, place, i)
                order.append(((turn, role_of(name) == "question", *rank), cell))
    return [cell for _, cell in sorted(order)]


def make_runs(parts: Sequence[str], out: str, deadline: float, known: dict[Cell, Found]) -> None:
    """Makes runs until a deadline, by `time.monotonic()`, or until other processes make the rest."""
    while time.monotonic() < deadline:
        for cell in missing(parts, out, known):
            start = time.monotonic()
            try:
                with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                    runner.run(config_of(cell, out))
            except LockedError:
                continue
            line = f"{cell.part} {cell.entry} lr={cell.lr:g} seed={cell.seed}"
            print(f"{line}: {time.monotonic() - start:.0f} s", flush=True)
            break
        else:
            return


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
    args = made.parse_args(argv)
    config.register()
    known: dict[Cell, Found] = {}
    if args.go_on_from:
        paths = sorted(args.go_on_from.glob("comparison_*.csv"))
        if not paths:
            made.error(f"--go-on-from: no comparison_*.csv in {args.go_on_from}")
        for path in paths:
            known |= from_csv(path, args.out)
    on_gpu = [part for part in args.parts if "device=cuda" in PARTS[part].overrides]
    left = [] if torch.cuda.is_available() else on_gpu
    here = [part for part in args.parts if part not in left]
    make_runs(here, args.out, time.monotonic() + 60 * args.minutes, known)
    if left:
        print(f"{' and '.join(left)}: a GPU is needed")
    for part in args.parts:
        names = PARTS[part].names
        standings = {name: standing(part, name, args.out, known)[0] for name in names}
        find(Cell(part, BEFORE, 0, 0), args.out, known)
        if seeds_of(PARTS[part], standings[BASE]):
            frame = table(part, standings, known)
            show(save(frame, known, part, args.results), console(200))
    return 0


if __name__ == "__main__":
    sys.exit(main())
