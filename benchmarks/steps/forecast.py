"""The floor of steps on a device that is not at hand, from its ceilings: python -m benchmarks.steps.forecast [--help].

Counted as `benchmarks.steps.floor` says, on models without weights. Nothing is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from benchmarks.steps.cases import METHODS, Case, cases, split
from benchmarks.steps.floor import Ceilings, Workload, floor
from benchmarks.steps.shapes import SHAPES, batches
from benchmarks.steps.tables import TARGETS_MS, label
from zo.config import RunConfig, register
from zo.optim import OPTIMIZERS
from zo.weights.constraints import RESTORE_POLICIES
from zo.weights.space import ParameterSpace


def without_weights(cfg: RunConfig) -> Any:
    """Returns the configured model's shapes."""
    kind = AutoModelForMaskedLM if cfg.model.kind == "masked" else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(AutoConfig.for_model(**cfg.model.architecture))
    model.tie_weights()
    return model


def lines(accepted: dict[Case, RunConfig], ceilings: Ceilings) -> Iterator[list[str]]:
    """Yields per shape and method: names, target, and for every restore policy forward + weights = step, ms."""
    models: dict[str, Any] = {}
    for case, cfg in accepted.items():
        if case.method in METHODS and case.restore == "subtract":
            model = models.setdefault(case.shape, None) or without_weights(cfg)
            models[case.shape] = model
            (batch,) = batches(SHAPES[case.shape], case.examples, case.batch_size, 1)
            work = Workload.of(model, cfg.model.kind, batch)
            least = [_least(case, other, cfg, work, ceilings) for other in RESTORE_POLICIES]
            target = TARGETS_MS.get(case.method) if case.shape == "opt-13b" else None
            yield [case.shape, case.dtype, label(case.method), *least, str(target or "")]


def _least(case: Case, restore: str, cfg: RunConfig, work: Workload, ceilings: Ceilings) -> str:
    if restore == "factors" and case.method != "lozo":
        return ""
    cfg.precision.restore = restore
    size = getattr(torch, case.dtype).itemsize
    tiny = ParameterSpace([("p", torch.zeros(2))])
    optimizer = OPTIMIZERS[case.method].optimizer(tiny, cfg.optimizer, lr=1.0, seed=0)
    found = floor(cfg, work, ceilings, optimizer.forwards_per_step, size, size)
    return f"{1e3 * found.forward:.0f} + {1e3 * found.weights:.0f} = {1e3 * found.step:.0f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps.forecast",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=["opt-13b"])
    parser.add_argument("--bandwidth", type=float, required=True, help="bytes per second")
    parser.add_argument("--matrix", type=float, required=True, help="operations per second")
    parser.add_argument("--normals", type=float, required=True, help="per second")
    args = parser.parse_args(argv)
    register()
    common = {"batch_size": 16, "batches": 1, "device": "cpu", "threads": 1}
    wanted = cases(args.shapes, None, ["sst2"], None, [("subtract", "torch")], **common)
    accepted, _ = split(wanted)
    heading = ["shape", "dtype", "step", *RESTORE_POLICIES, "target"]
    rows = [heading, ["---"] * len(heading)]
    rows += lines(accepted, Ceilings(args.bandwidth, args.matrix, args.normals))
    print("\n".join("| " + " | ".join(row) + " |" for row in rows))


if __name__ == "__main__":
    main()
