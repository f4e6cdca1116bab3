"""Time and memory of a step, beside the released code's way.

    python -m benchmarks.steps                                     this machine's defaults
    python -m benchmarks.steps --dry-run                           what that would be
    python -m benchmarks.steps --device cuda                       the paper's Table 4
    python -m benchmarks.steps --device cuda --shapes opt-13b --dtypes bfloat16
    python -m benchmarks.steps --methods bszo --restores subtract --noises torch --examples trec

Defaults: on a CPU a 12-layer OPT of width 768 in float32, on a GPU the paper's models in the paper's dtypes; all
methods; every restore policy with the newest noise, and the paper's pair, subtract with torch. Cases of one method are
timed in turns, together with the plain rendering of the released code's step (decoders in float32). Memory is PyTorch's
peak on a GPU, and on a CPU the peak resident memory of a fresh process for every case.

A case whose row is in the csv, made on this machine by this very code, is not measured again. Written: steps.csv,
steps.md, and a figure with the numbers behind it. docs/benchmarks.md explains the columns.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from analysis.report.table import markdown, show
from benchmarks.steps.cases import METHODS, PRECISIONS, Case, cases, split, ways
from benchmarks.steps.measure import ReleasedStepper, in_turns, loaded
from benchmarks.steps.released import METHODS as RELEASED
from benchmarks.steps.rows import Records, code_hash, draw, row, tables
from benchmarks.steps.shapes import EXAMPLES, SHAPES
from zo.config import register
from zo.config.precision import NOISES
from zo.run import atomic
from zo.run.provenance import device_name
from zo.weights.constraints import RESTORE_POLICIES

ON_CPU = ("opt-125m",)
ON_GPU = ("opt-1.3b", "mistral-7b", "opt-13b")
ROUNDS = {"cpu": 3, "cuda": 10}
ROOT = Path(__file__).resolve().parents[2]
CHOICES = {
    "shapes": tuple(SHAPES),
    "dtypes": tuple(PRECISIONS),
    "examples": tuple(EXAMPLES),
    "methods": METHODS,
    "restores": RESTORE_POLICIES,
    "noises": tuple(NOISES),
}


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser("python -m benchmarks.steps", None, __doc__, formatter_class=raw)
    made.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:N (a GPU if there is one)"
    )
    made.add_argument("--threads", type=int, help="of the CPU (torch's own choice)")
    for name, options in CHOICES.items():
        words = ", ".join(options)
        made.add_argument(f"--{name}", nargs="+", choices=options, metavar="NAME", help=words)
    plain = {"nargs": "*", "choices": RELEASED, "default": RELEASED, "metavar": "NAME"}
    words = "methods also timed in the released code's way (all); no name: none"
    made.add_argument("--plain", help=words, **plain)
    made.add_argument("--batch-size", type=int, default=16, help="examples per mini-batch (16)")
    made.add_argument("--batches", type=int, default=1, help="mini-batches per measurement (1)")
    made.add_argument("--rounds", type=int, help="measurements of a case (3 on a CPU, 10 on a GPU)")
    made.add_argument(
        "--out", type=Path, default=ROOT / "results" / "local" / "benchmarks", help="directory"
    )
    made.add_argument("--again", action="store_true", help="measure also what the csv has")
    made.add_argument("--dry-run", action="store_true", help="say what would be measured, and stop")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    args = parser().parse_args(argv)
    register()
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(automatic if args.device == "auto" else args.device)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    rounds = args.rounds or ROUNDS[device.type]
    wanted = cases(
        args.shapes or (ON_GPU if device.type == "cuda" else ON_CPU),
        args.dtypes,
        args.examples,
        args.methods,
        ways(args.restores, args.noises),
        batch_size=args.batch_size,
        batches=args.batches,
        device=str(device),
        threads=torch.get_num_threads(),
    )
    accepted, refused = split(dict.fromkeys(wanted))
    records, machine, code = Records(args.out / "steps.csv"), device_name(device), code_hash()
    there = {c for c in accepted if not args.again and records.has(machine, c, rounds, code)}
    pending = [case for case in accepted if case not in there]
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(f"{len(pending)} to measure, {len(there)} in the csv, {len(refused)} refused")
    if args.dry_run:
        for case in accepted:
            console.print(f"  {case}{' (in the csv)' * (case in there)}", highlight=False)
        _say(console, refused)
        return 0
    failed = measure(pending, rounds, args.plain, records)
    for table in tables(records.of(machine, accepted)):
        show(table, console)
    _say(console, refused | failed)
    if len(records.rows):
        atomic.replace(args.out / "steps.md", "\n".join(map(markdown, tables(records.rows))))
        draw(records.rows, args.out)
    return 1 if failed else 0


def measure(
    pending: Sequence[Case], rounds: int, plain: Sequence[str], records: Records
) -> dict[Case, str]:
    """Measures cases, those of one group in turns, and keeps each chunk's rows at once; why others failed."""
    failed: dict[Case, str] = {}
    groups = [list(group) for _, group in groupby(pending, key=lambda case: case.group)]
    console = Console(stderr=True)
    for group in track(groups, "measuring", console=console, transient=True):
        for chunk in loaded(group, failed):
            steppers: list[Any] = [stepper for stepper, _ in chunk]
            first = steppers[0].case
            too = first.method in plain and first.can_be_released
            times = in_turns([*steppers, *([ReleasedStepper(first)] if too else [])], rounds)
            released = times[-1] if too else None
            pairs = zip(chunk, times, strict=False)
            records.add([row(*one, measured, released, rounds) for one, measured in pairs])
            chunk.clear()  # before the next ones are loaded
            del steppers
    return failed


def _say(console: Console, reasons: Mapping[Case, str]) -> None:
    for case, reason in reasons.items():
        console.print(f"not measured: {case}: {reason}", highlight=False)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    raise SystemExit(main())
