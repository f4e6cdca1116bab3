"""Slopes of the loss along random directions, computed in float32 and, rounding by rounding, as half precision does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from zo.config import RunConfig, command_line
from zo.lm.load import load
from zo.lm.scoring import CandidateScorer
from zo.noise import PERTURBATION, NoiseKey
from zo.tasks import Encoded, encode, load_splits
from zo.tasks.batches import BatchOrder
from zo.weights.directions import Gaussian
from zo.weights.space import ParameterSpace
from zo.weights.updates import add_

LEVELS = ("exact", "probe", "forward", "loss")
"""What is rounded, each level with all before it: nothing; θ + εz; the activations; logits' softmax and the loss."""

PLACES = (0, 1, -1)
"""Where losses are measured, in units of ε z from θ."""


@dataclass(frozen=True)
class Row:
    """Slopes of one model, dtype and ε.

    Attributes:
        model: Its name.
        task: Where the mini-batches come from.
        dtype: Half precision in question.
        eps: ε.
        sides: 1: (L(θ + εz) − L(θ)) / ε, as BSZO measures; 2: (L(θ + εz) − L(θ − εz)) / 2ε, as MeZO does.
        directions: Slopes, each along a direction and on a mini-batch of its own.
        slope: Root mean square of the slopes in float32.
        probe: Root mean square of the error that rounding θ ± εz adds.
        forward: The same of rounding activations and logits.
        loss: The same of computing log-softmax and cross entropy in the dtype.
        error: The same of all three together.
        right_sign: Share of the slopes whose sign survives all three; one that has become 0 has none.
    """

    model: str
    task: str
    dtype: str
    eps: float
    sides: int
    directions: int
    slope: float
    probe: float
    forward: float
    loss: float
    error: float
    right_sign: float


def measure(
    model: str,
    task: str,
    dtype: str,
    eps: Sequence[float],
    directions: int,
    seed: int = 0,
    batch_size: int = 16,
    made: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Measures slopes at θ, the pretrained weights rounded to `dtype`.

    Args:
        model: A decoder of conf/model.
        task: Of conf/task.
        dtype: bfloat16 or float16.
        eps: Values of ε, all along the same directions.
        directions: At least 1.
        seed: Of directions and mini-batches.
        batch_size: Examples per mini-batch.
        made: Called after every direction.

    Returns:
        Two rows, one- and two-sided, per ε.

    Raises:
        ModelError, TaskError: If weights or data cannot be had.
    """
    overrides = [f"model={model}", f"task={task}", "optimizer=mezo", "lr=1e-6"]
    (cfg,) = command_line.runs(overrides)
    bench = _Bench(cfg, getattr(torch, dtype), seed, batch_size)
    found: dict[float, list[np.ndarray]] = {e: [] for e in eps}
    for j in range(directions):
        losses = bench.losses(j, eps)
        for e in eps:
            found[e].append(losses[e])
        made()
    return [
        _row((model, task, dtype), e, sides, np.stack(found[e])) for e in eps for sides in (1, 2)
    ]


def slopes(losses: np.ndarray, eps: float, sides: int) -> np.ndarray:
    """Returns the slopes of losses (..., 3), at PLACES, as (...)."""
    if sides == 1:
        return (losses[..., 1] - losses[..., 0]) / eps
    return (losses[..., 1] - losses[..., 2]) / (2 * eps)


def _row(of: tuple[str, str, str], eps: float, sides: int, losses: np.ndarray) -> Row:
    """Sums up losses, (directions, levels, places)."""
    found = slopes(losses, eps, sides)  # (directions, levels)
    exact, last = found[:, 0], found[:, -1]
    added = np.sqrt((np.diff(found, axis=1) ** 2).mean(axis=0))
    return Row(
        *(*of, eps, sides, len(found)),
        _rms(exact),
        *map(float, added),
        error=_rms(last - exact),
        right_sign=float((np.sign(last) == np.sign(exact)).mean()),
    )


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).mean()))


class _Bench:
    """A model twice, in half precision and in float32, at the same θ.

    Args:
        cfg: Model and task.
        dtype: Half precision.
        seed: Of directions and mini-batches.
        batch_size: Examples per mini-batch.
    """

    def __init__(self, cfg: RunConfig, dtype: torch.dtype, seed: int, batch_size: int):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        half, full = (load(cfg.model, d, device) for d in (dtype, torch.float32))
        self._half, self._full = (ParameterSpace.of(m.model, noise="philox") for m in (half, full))
        for wide, narrow in zip(self._full.tensors, self._half.tensors, strict=True):
            wide.copy_(narrow)
        self._theta = [p.clone() for p in self._full.tensors]
        pad = full.tokenizer.pad_token_id
        self._exact = CandidateScorer(full.model, pad)
        self._forward = CandidateScorer(half.model, pad)
        self._loss = CandidateScorer(half.model, pad, "model")
        examples = load_splits(cfg.task).train
        self._examples = encode(cfg.task, full.tokenizer, examples)
        self._order = BatchOrder(len(self._examples), batch_size, seed)
        self._seed = seed

    def losses(self, j: int, eps: Sequence[float]) -> dict[float, np.ndarray]:
        """Returns, per ε, the losses along direction j, float64 (levels, places)."""
        batch = [self._examples[i] for i in self._order.indices(j)]
        z = Gaussian(NoiseKey(self._seed, PERTURBATION, j, 0), self._full.engine)
        middle = self._at(z, 0.0, batch)
        return {
            e: np.array(
                [middle if place == 0 else self._at(z, place * e, batch) for place in PLACES]
            ).T
            for e in eps
        }

    def _at(self, z: Gaussian, c: float, batch: list[Encoded]) -> list[float]:
        """Returns the loss at θ + c z of each of LEVELS."""
        for i, (out, theta) in enumerate(zip(self._full.tensors, self._theta, strict=True)):
            add_(out, theta, i, [(c, z)] if c else [])
        exact = self._of(self._exact, batch)
        for wide, narrow in zip(self._full.tensors, self._half.tensors, strict=True):
            wide.copy_(narrow.copy_(wide))
        probe = self._of(self._exact, batch) if c else exact  # θ itself is rounded already
        return [exact, probe, self._of(self._forward, batch), self._of(self._loss, batch)]

    @staticmethod
    def _of(scorer: CandidateScorer, batch: list[Encoded]) -> float:
        return scorer.loss(scorer.collate(batch))
