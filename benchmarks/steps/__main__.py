"""Time and memory of a step, beside the released code's restore policy and noise.

    python -m benchmarks.steps                                     this machine's defaults
    python -m benchmarks.steps --dry-run                           what that would be
    python -m benchmarks.steps --device cuda                       the paper's Table 4
    python -m benchmarks.steps --device cuda --shapes opt-13b --dtypes bfloat16
    python -m benchmarks.steps --methods bszo --restores subtract --noises torch --examples trec

Defaults: on a CPU a 12-layer OPT of width 768 in float32, on a GPU the paper's models in the paper's dtypes; all
methods; every restore policy with the newest noise, and the released code's pair, subtract with torch, which "× faster"
compares with. Cases of one method are interleaved. Memory is PyTorch's peak on a GPU, and on a CPU the peak resident
memory of a fresh process for every case.

A case whose row is in the csv, made on this machine by this very code, is not measured again. Written: steps.csv,
steps.md and step_times.png. docs/benchmarks.md explains the columns.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from analysis.report.table import console, markdown, show
from benchmarks.steps.cases import ANSWERS, METHODS, PRECISIONS, SHAPES, Case, cases, split, ways
from benchmarks.steps.measure import interleaved, loaded
from benchmarks.steps.rows import add, code_hash, draw, of_cases, read, row, tables
from zo.config import register
from zo.config.precision import NOISES
from zo.run import memory
from zo.run.assembly import DeviceError, find_device
from zo.run.provenance import device_name
from zo.run.store import atomic
from zo.weights.constraints import RESTORE_POLICIES

SHAPES_ON = {"cpu": ["opt-125m"], "cuda": ["opt-1.3b", "mistral-7b", "opt-13b"]}
ROUNDS = {"cpu": 3, "cuda": 10}
OUT = Path(__file__).resolve().parents[2] / "results" / "local" / "benchmarks"
CHOICES = {
    "shapes": tuple(SHAPES),
    "dtypes": tuple(PRECISIONS),
    "examples": tuple(ANSWERS),
    "methods": METHODS,
    "restores": RESTORE_POLICIES,
    "noises": tuple(NOISES),
}


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser("python -m benchmarks.steps", None, __doc__, formatter_class=raw)
    made.add_argument("--device", default="auto", help="cpu, cuda or cuda:N (auto)")
    made.add_argument("--threads", type=int, help="of the CPU (torch's own choice)")
    for name, options in CHOICES.items():
        words = ", ".join(options)
        made.add_argument(f"--{name}", nargs="+", choices=options, metavar="NAME", help=words)
    made.add_argument("--batch-size", type=int, default=16, help="examples per mini-batch (16)")
    made.add_argument("--batches", type=int, default=1, help="mini-batches per measurement (1)")
    made.add_argument("--rounds", type=int, help="measurements of a case (3 on a CPU, 10 on a GPU)")
    made.add_argument("--out", type=Path, default=OUT, help="directory")
    made.add_argument("--dry-run", action="store_true", help="say what would be measured, and stop")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser()
    args = made.parse_args(argv)
    register()
    try:
        device = find_device(args.device)
    except DeviceError as error:
        made.error(str(error))
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    rounds = args.rounds or ROUNDS[device.type]
    wanted = cases(
        args.shapes or SHAPES_ON[device.type],
        args.dtypes,
        args.examples,
        args.methods,
        ways(args.restores, args.noises),
        batch_size=args.batch_size,
        batches=args.batches,
        device=str(device),
        threads=torch.get_num_threads(),
    )
    accepted, refused = split(wanted)
    path, machine, terminal = args.out / "steps.csv", device_name(device), console(200)
    rows = read(path)
    fresh = rows[(rows["code"] == code_hash()) & (rows["rounds"] >= rounds)]
    pending = [case for case in accepted if of_cases(fresh, machine, [case]).empty]
    there = len(accepted) - len(pending)
    terminal.print(f"{len(pending)} to measure, {there} in the csv, {len(refused)} refused")
    if args.dry_run:
        for case in accepted:
            terminal.print(f"  {case}{' (in the csv)' * (case not in pending)}")
        failed = {}
    else:
        failed = measure(pending, rounds, path)
        rows = read(path)
        for table in tables(of_cases(rows, machine, accepted)):
            show(table, terminal)
        if len(rows):
            atomic.replace(args.out / "steps.md", "\n".join(map(markdown, tables(rows))))
            draw(rows, args.out / "step_times.png")
    for case, reason in (refused | failed).items():
        terminal.print(f"not measured: {case}: {reason}")
    return 1 if failed else 0


def measure(pending: Sequence[Case], rounds: int, path: Path) -> dict[Case, str]:
    """Measures cases, those of one group interleaved, and keeps each chunk's rows at once; why others failed."""
    failed: dict[Case, str] = {}
    groups = [list(group) for _, group in groupby(pending, key=lambda case: case.group)]
    for group in track(groups, "measuring", console=Console(stderr=True), transient=True):
        for chunk in loaded(group, failed):
            steppers = [stepper for stepper, _ in chunk]
            times = interleaved(steppers, rounds)
            add(path, [row(*one, t, rounds) for one, t in zip(chunk, times, strict=True)])
            chunk.clear()
            del steppers
            memory.release()  # before the next ones are loaded
    return failed


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    raise SystemExit(main())
