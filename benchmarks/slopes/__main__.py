"""What a slope is made of in half precision, and how much of it is rounding: python -m benchmarks.slopes [--help].

A zeroth-order method knows the loss along a direction z by a difference of losses over ε. Here such slopes are
computed in float32 and again with one rounding more each time: θ ± εz rounded to the dtype (probe), the forward pass in
the dtype (forward), log-softmax and cross entropy in the dtype (loss). Every slope has a direction and a mini-batch of
its own; θ are the pretrained weights, rounded to the dtype. Nothing is trained.

Written: slopes.csv, slopes.md and a figure.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.slopes.measure import Row, measure
from benchmarks.slopes.page import draw, page
from zo.config import register
from zo.lm.config import ModelError
from zo.run.provenance import provenance
from zo.tasks import TaskError

ROOT = Path(__file__).resolve().parents[2]
HALVES = ("bfloat16", "float16")
EPS = (1e-4, 1e-3, 1e-2)


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    made = argparse.ArgumentParser(
        "python -m benchmarks.slopes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--models", nargs="+", default=["reviews-tiny"], metavar="NAME")
    made.add_argument("--task", default="rotten_tomatoes", metavar="NAME")
    made.add_argument("--dtypes", nargs="+", choices=HALVES, default=HALVES, metavar="NAME")
    made.add_argument("--eps", nargs="+", type=float, default=EPS, metavar="ε", help=f"{EPS}")
    made.add_argument("--directions", type=int, default=100, help="slopes of each kind (100)")
    made.add_argument("--seed", type=int, default=0, help="of directions and mini-batches (0)")
    made.add_argument("--threads", type=int, help="of the CPU (torch's own choice)")
    made.add_argument("--results", type=Path, default=ROOT / "results" / "local" / "half_precision")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser()
    args = made.parse_args(argv)
    if args.directions < 1 or any(not e > 0 for e in args.eps):
        made.error("--directions must be at least 1, and every --eps above 0")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    register()
    rows: list[Row] = []
    kinds = [(model, dtype) for model in args.models for dtype in args.dtypes]
    try:
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("slopes", total=len(kinds) * args.directions)
            for model, dtype in kinds:
                bar.update(task, description=f"{model} {dtype}")
                rows += measure(
                    *(model, args.task, dtype, args.eps, args.directions, args.seed),
                    made=lambda: bar.advance(task),
                )
    except (ModelError, TaskError) as error:
        print(error, file=sys.stderr)
        return 2
    for path in _write(rows, args.results):
        print(path)
    return 0


def _write(rows: Sequence[Row], directory: Path) -> list[Path]:
    """Writes the rows, with those of other models, dtypes or ε that are there already."""
    directory.mkdir(parents=True, exist_ok=True)
    csv = directory / "slopes.csv"
    told = provenance(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    where = {
        "device": told["device"],
        "revision": told["git_revision"] + "+" * told["git_dirty"],
        "torch": told["versions"]["torch"],
        "date": told["started"],
    }
    frame = pd.DataFrame([asdict(row) | where for row in rows])
    if csv.is_file():
        kind = ["model", "task", "dtype", "eps", "sides"]
        frame = pd.concat([pd.read_csv(csv), frame]).drop_duplicates(kind, keep="last")
        frame = frame.sort_values(kind).reset_index(drop=True)
    frame.to_csv(csv, index=False, lineterminator="\n", float_format="%.6g")
    frame = pd.read_csv(csv)
    (directory / "slopes.md").write_text(page(frame), encoding="utf-8")
    return [csv, directory / "slopes.md", *draw(frame, directory)]


if __name__ == "__main__":
    sys.exit(main())
