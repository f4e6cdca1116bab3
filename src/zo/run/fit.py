"""Memory and time of a run from its configuration alone: no weights are loaded and nothing is measured.

Memory is that of a step with `restore=subtract noise=torch`; `noise=philox` needs less. Times are those of an H200.
"""

import sys
from collections.abc import Iterable

import torch

from zo.config import RunConfig
from zo.lm.adapters.config import PeftAdapter
from zo.lm.config import ModelError
from zo.lm.load import random_weights
from zo.optim import MethodConfig
from zo.run.estimate import shown
from zo.weights.constraints import RESTORE_POLICIES

STORED = {"int8": 1.0, "int4": 0.5, "nf4": 0.5}
"""Bytes of a quantised weight."""

MS_PER_GB, WITH_STATE, TIMED_GB = 10.6, 1.37, 1.0
"""Of a forward pass, per GB of weights; times that with state or low rank; from so many GB on, measured at 5 to 26."""


def sizes(cfg: RunConfig) -> tuple[int, int]:
    """Returns how many weights the model has, and its largest tensor."""
    model = random_weights(cfg.model, torch.float32, torch.device("meta")).model
    counts = [p.numel() for p in model.parameters()]
    return sum(counts), max(counts)


def step_gb(method: MethodConfig, size: int, counts: tuple[int, int]) -> dict[str, float]:
    """Returns GB of `weights`, `state` and `scratch`, for weights of `size` bytes and the numbers of `sizes`."""
    total, largest = counts
    each = 4 if getattr(method, "state_dtype", "param") == "float32" else size
    state = method.state_tensors * each
    scratch = (4 if size == 4 else 8) + 8 * bool(method.state_tensors)
    if not method.replays:  # a gradient, and Adam's moments
        state, scratch = size * (3 if method.name == "adam" else 1), 0
    parts = {"weights": total * size, "state": total * state, "scratch": largest * scratch}
    return {name: count / 1e9 for name, count in parts.items()}


def step_ms(method: MethodConfig, weights_gb: float) -> float:
    """Returns the time of a step on an H200."""
    slower = WITH_STATE if method.state_tensors or method.low_rank else 1.0
    return MS_PER_GB * weights_gb * method.passes_per_step * slower


def estimate(cfg: RunConfig) -> str:
    """Returns a run's memory and time in one line."""
    (total, largest), size = sizes(cfg), getattr(torch, cfg.precision.dtype).itemsize
    parts = step_gb(cfg.optimizer, size, (total, largest))
    each = step_ms(cfg.optimizer, parts["weights"]) / 1000
    timed = parts["weights"] >= TIMED_GB and not (cfg.model.quantization or cfg.model.offload)
    if RESTORE_POLICIES[cfg.precision.restore].copies:
        parts["copy"] = parts["weights"]
    if isinstance(cfg.adapter, PeftAdapter):
        parts = {"weights": parts["weights"]}
    if (form := cfg.model.quantization) is not None:
        parts["weights"] = ((total - largest) * STORED[form] + largest * size) / 1e9
    if cfg.model.offload is not None:
        parts["weights"] = 2 * largest * size / 1e9
    said = ", ".join(f"{name} {gb:.3g}" for name, gb in parts.items() if gb)
    memory = f"about {sum(parts.values()):.3g} GB ({said}) and the activations of {cfg.eval_tokens:,} tokens"
    time = f"{shown(cfg.steps * each)}: {cfg.steps:,} steps of {shown(each)}, without evaluations"
    return f"{memory}; on an H200 {time}" if timed else f"{memory}; no time is known"


def show(runs: Iterable[RunConfig]) -> int:
    """Prints the estimate of each model, precision and method; returns the exit status."""
    named = {(r.model.name, r.precision.name, r.adapter.name, r.optimizer.name): r for r in runs}
    try:
        for names, run in named.items():
            print(f"{' '.join(names).replace(' none ', ' ')}: {estimate(run)}")
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    return 0
