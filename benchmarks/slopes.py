"""What a slope is made of in half precision, and how much of it is rounding: python -m benchmarks.slopes [--help].

A zeroth-order method knows the loss along a direction z by a difference of losses over ε. Here such slopes are
computed in float32 and again with one rounding more each time: θ ± εz rounded to the dtype (probe), the forward pass in
the dtype (forward), log-softmax and cross entropy in the dtype (loss). Every slope has a direction and a mini-batch of
its own; θ are the pretrained weights, rounded to the dtype. Nothing is trained.

Written: slopes.csv, slopes.md and a figure. A row has root mean squares: `slope` of the slopes in float32; `probe`,
`forward`, `loss` of the error that each rounding adds; `error` of all three together. `right_sign` is the share of
slopes whose sign survives; one that has become 0 has none. `sides` is 1 for (L(θ + εz) − L(θ)) / ε, as BSZO measures,
and 2 for (L(θ + εz) − L(θ − εz)) / 2ε, as MeZO does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.progress import Progress

from analysis.paper.names import model_label
from analysis.report.figures.drawing import Figure, Panel, Series, write
from analysis.report.style import look, named
from analysis.report.table import Table, markdown
from zo.config import RunConfig, command_line, register
from zo.lm.config import ModelError
from zo.lm.load import load
from zo.lm.scoring import CandidateScorer
from zo.noise import PERTURBATION, NoiseKey
from zo.run.provenance import provenance
from zo.tasks import Encoded, TaskError, encode, load_splits
from zo.tasks.batches import BatchOrder
from zo.weights.directions import Gaussian
from zo.weights.space import ParameterSpace
from zo.weights.updates import add_

ROOT = Path(__file__).resolve().parents[1]
SHORT = {"bfloat16": "bf16", "float16": "fp16"}
SIDES = {1: "one-sided", 2: "two-sided"}
EPS = (1e-4, 1e-3, 1e-2)
BATCH_SIZE = 16
PLACES = (0, 1, -1)
"""Where losses are measured, in units of ε z from θ."""

KEY = ["model", "task", "dtype", "eps", "sides"]
MADE_BY = ["device", "revision", "torch", "date"]
SERIES = {
    "slope": named("reference", "slope itself, float32"),
    "probe": named("lozo", "error by rounding θ ± εz"),
    "forward": named("mezo", "by the forward pass"),
    "loss": named("bszo", "by the loss in the dtype"),
}
Row: TypeAlias = dict[str, Any]


def measure(
    model: str,
    task: str,
    dtype: str,
    eps: Sequence[float],
    directions: int,
    seed: int = 0,
    done: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Returns two rows per ε, one- and two-sided, at the pretrained weights rounded to `dtype`.

    Raises:
        ModelError, TaskError: If weights or data cannot be had.
    """
    overrides = [f"model={model}", f"task={task}", "optimizer=mezo", "lr=1e-6"]
    (cfg,) = command_line.runs(overrides)
    bench = _Bench(cfg, getattr(torch, dtype), seed)
    found = []
    for j in range(directions):
        found.append(bench.losses(j, eps))
        done()
    losses = np.array(found)  # (directions, ε, levels, places)
    return [
        dict(zip(KEY, (model, task, dtype, e, sides), strict=True))
        | _summary(slopes(losses[:, i], e, sides))
        for i, e in enumerate(eps)
        for sides in SIDES
    ]


def slopes(losses: np.ndarray, eps: float, sides: int) -> np.ndarray:
    """Returns the slopes of losses (..., 3), at PLACES, as (...)."""
    if sides == 1:
        return (losses[..., 1] - losses[..., 0]) / eps
    return (losses[..., 1] - losses[..., 2]) / (2 * eps)


def _summary(found: np.ndarray) -> Row:
    """Sums up slopes, (directions, levels)."""
    exact, last = found[:, 0], found[:, -1]
    parts = np.column_stack([exact, np.diff(found, axis=1), last - exact])
    names = (*SERIES, "error")
    return {
        "directions": len(found),
        **dict(zip(names, np.sqrt((parts**2).mean(axis=0)).tolist(), strict=True)),
        "right_sign": float((np.sign(last) == np.sign(exact)).mean()),
    }


class _Bench:
    """A model twice, in half precision and in float32, at the same θ."""

    def __init__(self, cfg: RunConfig, dtype: torch.dtype, seed: int):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        half, full = (load(cfg.model, d, device) for d in (dtype, torch.float32))
        self._half, self._full = (ParameterSpace.of(m.model, noise="philox") for m in (half, full))
        for wide, narrow in zip(self._full.tensors, self._half.tensors, strict=True):
            wide.copy_(narrow)
        self._theta = [p.clone() for p in self._full.tensors]
        pad = full.tokenizer.pad_token_id
        self._exact = CandidateScorer(full.model, pad)
        self._rounded = [CandidateScorer(half.model, pad, loss) for loss in ("float32", "model")]
        self._examples = encode(cfg.task, full.tokenizer, load_splits(cfg.task).train)
        self._order = BatchOrder(len(self._examples), BATCH_SIZE, seed)
        self._seed = seed

    def losses(self, j: int, eps: Sequence[float]) -> np.ndarray:
        """Returns the losses along direction j, float64 (ε, levels, places)."""
        batch = [self._examples[i] for i in self._order.indices(j)]
        z = Gaussian(NoiseKey(self._seed, PERTURBATION, j, 0), self._full.engine)
        middle = self._at(z, 0.0, batch)
        places = [[self._at(z, c * e, batch) if c else middle for c in PLACES] for e in eps]
        return np.array(places).swapaxes(1, 2)

    def _at(self, z: Gaussian, c: float, batch: list[Encoded]) -> list[float]:
        """Returns the loss at θ + c z: exact, then with probe, forward and loss rounded, each with all before it."""
        for i, (out, theta) in enumerate(zip(self._full.tensors, self._theta, strict=True)):
            add_(out, theta, i, [(c, z)] if c else [])
        exact = self._exact.loss(self._exact.collate(batch))
        for wide, narrow in zip(self._full.tensors, self._half.tensors, strict=True):
            wide.copy_(narrow.copy_(wide))
        scorers = [self._exact, *self._rounded]
        return [exact, *(scorer.loss(scorer.collate(batch)) for scorer in scorers)]


def page(frame: pd.DataFrame) -> str:
    """Returns a table of all rows, with where they come from."""
    columns = {
        "model": lambda row: model_label(row["model"]),
        "dtype": lambda row: SHORT[row["dtype"]],
        "ε": lambda row: f"{row['eps']:g}",
        "slope of": lambda row: SIDES[row["sides"]],
        **{name: (name, ".3g") for name in SERIES},
        "all": ("error", ".3g"),
        "sign %": ("right_sign", ".0f", 100),
    }
    caption = [
        "Root mean square of slopes in float32, and of the error that each rounding adds; all: their sum's;"
        " sign: slopes whose sign is right with all three (0 has none)."
    ]
    records, title = frame.to_dict("records"), "Slopes in half precision"
    table = Table.of(title, records, columns, caption=caption, names=4)  # type: ignore[arg-type]
    counts = frame.groupby("model")["directions"].min().items()
    lines = [", ".join(f"{model_label(model)}: {n} directions" for model, n in counts) + "."]
    for (device, version, revision), date in (
        frame.groupby(["device", "torch", "revision"])["date"].max().items()
    ):
        lines.append(f"{device}; torch {version}; revision {revision}; {date}")
    return "\n\n".join([markdown(table).rstrip(), *lines]) + "\n"


def draw(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Writes slope_errors.png and .pdf and the numbers behind them; returns the paths."""
    values = frame[list(SERIES)].to_numpy()
    ends = {"xlog": True, "ylog": True, "ylim": (values[values > 0].min() / 2, values.max() * 2)}
    panels = []
    for (model, dtype), own in frame.groupby(["model", "dtype"]):
        series = [
            Series(
                *(method, rows["eps"], rows[name], f"{look(method).label}, {SIDES[sides]}"),
                hollow=sides == 2,
            )
            for sides, rows in own.sort_values("eps").groupby("sides")
            for name, method in SERIES.items()
        ]
        title = f"{model_label(model)}, {SHORT[dtype]}"
        panels.append(Panel(title, "ε", "slope or error (nats per ε)", series, **ends))
    notes = (
        "Root mean squares over random directions, each on a mini-batch of its own, at the pretrained weights: of the"
        " slope of the loss along a direction, and of the errors in it. Where an error is above the grey line, a slope"
        " says more about rounding than about the loss. Hollow: two-sided slopes.",
    )
    more = {"columns": 2, "hollow": "two-sided", "data": frame.drop(columns=MADE_BY)}
    title = "What a slope is made of in half precision"
    return write(Figure("slope_errors", title, panels, notes, **more), directory)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    layout = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(
        "python -m benchmarks.slopes", None, __doc__, formatter_class=layout
    )
    made.add_argument("--models", nargs="+", default=["reviews-tiny"], metavar="NAME")
    made.add_argument("--task", default="rotten_tomatoes", metavar="NAME")
    made.add_argument("--dtypes", nargs="+", choices=SHORT, default=list(SHORT), metavar="NAME")
    made.add_argument("--eps", nargs="+", type=float, default=EPS, metavar="ε", help=f"{EPS}")
    made.add_argument("--directions", type=int, default=100, help="slopes of each kind (100)")
    made.add_argument("--seed", type=int, default=0, help="of directions and mini-batches (0)")
    made.add_argument("--threads", type=int, help="of the CPU (torch's own choice)")
    made.add_argument("--results", type=Path, default=ROOT / "results" / "local" / "half_precision")
    args = made.parse_args(argv)
    if args.directions < 1 or any(not e > 0 for e in args.eps):
        made.error("--directions must be at least 1, and every --eps above 0")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    register()
    rows: list[Row] = []
    kinds = [(model, args.task, dtype) for model in args.models for dtype in args.dtypes]
    try:
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("slopes", total=len(kinds) * args.directions)
            for kind in kinds:
                bar.update(task, description=" ".join(kind))
                own = (*kind, args.eps, args.directions, args.seed, lambda: bar.advance(task))
                rows += measure(*own)
    except (ModelError, TaskError) as error:
        print(error, file=sys.stderr)
        return 2
    for path in _write(rows, args.results):
        print(path)
    return 0


def _write(rows: Sequence[Row], directory: Path) -> list[Path]:
    """Writes the rows, with those of other models, dtypes or ε that are there already."""
    directory.mkdir(parents=True, exist_ok=True)
    csv, md = directory / "slopes.csv", directory / "slopes.md"
    made = provenance(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    revision = made["git_revision"] + "+" * made["git_dirty"]
    where = (made["device"], revision, made["versions"]["torch"], made["started"])
    frame = pd.DataFrame(rows).assign(**dict(zip(MADE_BY, where, strict=True)))
    if csv.is_file():
        frame = pd.concat([pd.read_csv(csv), frame]).drop_duplicates(KEY, keep="last")
    frame = frame.sort_values(KEY)
    frame.to_csv(csv, index=False, lineterminator="\n", float_format="%.6g")
    frame = pd.read_csv(csv)
    md.write_text(page(frame), encoding="utf-8")
    return [csv, md, *draw(frame, directory)]


if __name__ == "__main__":
    sys.exit(main())
