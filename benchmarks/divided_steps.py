"""Times a step on one process and on two, with one thread each: forward passes, the exchange of losses, waiting.

    torchrun --standalone --nproc-per-node 2 -m benchmarks.divided_steps [--steps 5] [--layers 12]
    make bench-distributed BENCH="--out results/measured/benchmarks"

The model has the shape of OPT-125M and random weights. Two processes make steps in turns: the first one alone, then
both together, so that other load meets both. It takes about three minutes on two quiet cores. divided_steps.md has
the table and its provenance: medians over the steps, in seconds. Processor time depends little on what else the machine
does.

**exchange** is the time in the collective of the process that comes last: nobody keeps it waiting. **waiting** is what
the other one spends there beyond that. **unequal work** is the processor time that process 1 had used in the step when
it came, less that of process 0: near 0 if their work is equal, whatever else the machine does.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from transformers import OPTConfig, OPTForCausalLM

from zo.distributed.loss import DividedLoss
from zo.distributed.processes import Processes, join
from zo.optim import OPTIMIZERS
from zo.optim.base import ZOOptimizer
from zo.run.provenance import provenance
from zo.weights.space import ParameterSpace

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "BSZO, k = 3": ("bszo", {"k": 3}),
    "n-SPSA, n = 4": ("mezo", {"n": 4}),
}
EXAMPLES, TOKENS = 4, 32


class Times(NamedTuple):
    """Seconds of a step, of the busiest process.

    Attributes:
        step: All of it.
        busy: Processor time of it.
        forward: Processor time of its forward passes.
        exchange: In the collective, of the process that came last.
        waiting: In the collective beyond that, of the process that came first.
        unequal: Processor time that process 1 had used before it, less that of process 0.
    """

    step: float
    busy: float
    forward: float
    exchange: float = 0.0
    waiting: float = 0.0
    unequal: float = 0.0


class Arrivals(Processes):
    """Notes the processor time at which this process comes to an exchange of losses."""

    arrived = 0.0

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """As `Processes.gather`."""
        self.arrived = time.process_time()
        return super().gather(values)


class Bench:
    """Steps of one model on this process and on all that torchrun started with it.

    Args:
        layers: Of the model.
        processes: All of them.
    """

    def __init__(self, layers: int, processes: Arrivals):
        torch.manual_seed(0)
        self._processes = processes
        config = OPTConfig(hidden_size=768, ffn_dim=3072, num_hidden_layers=layers)
        self._model = OPTForCausalLM(config).eval()
        self._ids = torch.randint(3, 50_000, (EXAMPLES, TOKENS))
        self._forward = 0.0

    @torch.inference_mode()
    def _loss(self) -> float:
        start = time.process_time()
        found = self._model(input_ids=self._ids, labels=self._ids).loss.item()
        self._forward += time.process_time() - start
        return float(found)

    def pairs(self, case: str, steps: int) -> list[tuple[Times, Times]]:
        """Returns pairs of steps: one of process 0 alone, and one that all processes divided."""
        name, settings = CASES[case]
        params = ParameterSpace.of(self._model, "merged", "philox")
        method = OPTIMIZERS[name]
        optimizer = method.optimizer(params, method.config(**settings), lr=1e-6, seed=0)
        found = []
        for _ in range(steps + 1):
            alone = self._timed(optimizer, Processes())[0]
            *work, spent, before = zip(*self._timed(optimizer, self._processes), strict=True)
            parts = min(spent), max(spent) - min(spent), before[1] - before[0]
            found.append((Times(*alone[:3]), Times(*map(max, work), *parts)))
        return found[1:]  # the first one allocates and compiles

    def _timed(self, optimizer: ZOOptimizer, by: Processes) -> list[list[float]]:
        """Makes a step; returns what each process measured.

        These are: time, processor time, that of the forward passes, time in the collective, processor time before it.
        """
        every = self._processes
        every.exchange(None)
        self._forward, waited = 0.0, every.seconds
        start, busy = time.perf_counter(), time.process_time()
        if by.world > 1 or every.leads:
            optimizer.step(DividedLoss(lambda _: self._loss, [1], by))
        mine = [time.perf_counter() - start, time.process_time() - busy, self._forward]
        return every.exchange([*mine, every.seconds - waited, every.arrived - busy])


def table(layers: int, steps: int, processes: Arrivals) -> Iterator[str]:
    """Yields the lines of the table as they are measured, and their provenance."""
    bench = Bench(layers, processes)
    yield (
        "| method | processes | step | processor | forward, processor | exchange | exchange, of a step | waiting"
        " | unequal work |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for case in CASES:
        pairs = bench.pairs(case, steps)
        one, two = (Times(*map(statistics.median, zip(*of))) for of in zip(*pairs))  # noqa: B905
        ratios = [statistics.median(a[i] / b[i] for a, b in pairs) for i in range(3)]
        seconds = " | ".join(f"{value:.3f}" for value in one[:3])
        yield f"| {case} | 1 | {seconds} | | | | |"
        seconds = " | ".join(f"{value:.3f}" for value in two[:3])
        share = two.exchange / two.step
        yield (
            f"| {case} | 2 | {seconds} | {two.exchange:.4f} | {share:.2%} | {two.waiting:.3f} | {two.unequal:.3f} |"
        )
        yield f"| {case} | times faster | {' | '.join(f'{of:.2f}' for of in ratios)} | | | | |"
        model = [of / (of - one.forward / 2) for of in one[:2]]
        yield f"| {case} | times faster, by the model | {model[0]:.2f} | {model[1]:.2f} | 2.00 | | | | |"
    made = provenance(torch.device("cpu"))
    versions = ", ".join(f"{name} {made['versions'][name]}" for name in ("torch", "transformers"))
    yield ""
    yield (
        f"{made['device']}, one thread per process; OPT of {layers} layers and width 768, float32, {EXAMPLES}"
        f" examples of {TOKENS} tokens; `merged`, `philox`; seconds, medians of {steps} steps and of their ratios;"
        f" {versions}; commit {made['git_revision'][:12]}{'+' * made['git_dirty']}; {made['started'][:10]}."
    )


def main() -> None:
    """Measures; prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("results/local/benchmarks"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    if join(300).world != 2:
        parser.error("start it by torchrun --nproc-per-node 2, as make bench-distributed does")
    processes = Arrivals(dist.group.WORLD)
    lines = []
    for line in table(args.layers, args.steps, processes):
        if processes.leads:
            print(line, flush=True)
        lines.append(f"{line}\n")
    if not processes.leads:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "divided_steps.md").write_text("".join(lines))


if __name__ == "__main__":
    main()
