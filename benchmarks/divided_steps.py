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
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from transformers import OPTConfig, OPTForCausalLM

from analysis.report.table import Table, console, markdown, show
from zo.distributed.loss import DividedLoss
from zo.distributed.processes import Processes, join
from zo.optim import OPTIMIZERS
from zo.run.provenance import provenance
from zo.weights.space import ParameterSpace

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "BSZO, k = 3": ("bszo", {"k": 3}),
    "n-SPSA, n = 4": ("mezo", {"n": 4}),
}
EXAMPLES, TOKENS = 4, 32
WORK = ["step", "processor", "forward, processor"]
TIMES = [*WORK, "exchange", "waiting", "unequal work"]
SHARE = "exchange, of a step"
COLUMNS = {
    "method": "method",
    "processes": "processes",
    **{name: (name, ".4g") for name in [*TIMES[:4], SHARE, *TIMES[4:]]},
}


class Arrivals(Processes):
    """Notes the processor time at which this process comes to an exchange of losses."""

    arrived = 0.0

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """As `Processes.gather`."""
        self.arrived = time.process_time()
        return super().gather(values)


def measured(
    model: OPTForCausalLM, case: str, steps: int, processes: Arrivals
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns seconds of steps of process 0 alone, and of steps that all processes divided, of the busiest one."""
    method, settings = CASES[case]
    params = ParameterSpace.of(model, "merged", "philox")
    config = OPTIMIZERS[method].config(**settings)
    optimizer = OPTIMIZERS[method].optimizer(params, config, lr=1e-6, seed=0)
    ids = torch.randint(3, 50_000, (EXAMPLES, TOKENS), generator=torch.Generator().manual_seed(0))
    forward = 0.0

    @torch.inference_mode()
    def loss() -> float:
        nonlocal forward
        start = time.process_time()
        found = float(model(input_ids=ids, labels=ids).loss)
        forward += time.process_time() - start
        return found

    def timed(by: Processes) -> np.ndarray:
        """Returns per process WORK of a step, its time in the collective, and its processor time on arrival."""
        nonlocal forward
        processes.exchange(None)
        forward, waited = 0.0, processes.seconds
        start, busy = time.perf_counter(), time.process_time()
        if by.world > 1 or processes.leads:
            optimizer.step(DividedLoss(lambda _: loss, [1], by))
        mine = [time.perf_counter() - start, time.process_time() - busy, forward]
        mine += [processes.seconds - waited, processes.arrived - busy]
        return np.array(processes.exchange(mine))

    one, two = [], []
    for _ in range(steps + 1):
        one.append(timed(Processes())[0, :3])
        both = timed(processes)
        spent, unequal = both[:, 3], both[1, 4] - both[0, 4]
        two.append([*both[:, :3].max(axis=0), spent.min(), np.ptp(spent), unequal])
    # the first step allocates and compiles
    return pd.DataFrame(one[1:], columns=WORK), pd.DataFrame(two[1:], columns=TIMES)


def lines(case: str, one: pd.DataFrame, two: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yields the lines of a case in the table: medians over steps, and of the ratios of steps."""
    alone, both = one.median(), two.median()
    model = alone / (alone - alone["forward, processor"] / 2)
    yield {"processes": "1", **alone}
    yield {"processes": "2", **both, SHARE: both["exchange"] / both["step"]}
    yield {"processes": "times faster", **(one / two[WORK]).median()}
    yield {"processes": "times faster, by the model", **model, "forward, processor": 2.0}


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
    torch.manual_seed(0)
    shape = OPTConfig(hidden_size=768, ffn_dim=3072, num_hidden_layers=args.layers)
    model = OPTForCausalLM(shape).eval()
    found = {case: measured(model, case, args.steps, processes) for case in CASES}
    if not processes.leads:
        return
    made = provenance(torch.device("cpu"))
    versions = ", ".join(f"{name} {made['versions'][name]}" for name in ("torch", "transformers"))
    caption = (
        f"{made['device']}, one thread per process; OPT of {args.layers} layers and width 768, float32, {EXAMPLES}"
        f" examples of {TOKENS} tokens; `merged`, `philox`; seconds, medians of {args.steps} steps and of their ratios;"
        f" {versions}; commit {made['git_revision'][:12]}{'+' * made['git_dirty']}; {made['started'][:10]}."
    )
    records = [{"method": case, **of} for case in CASES for of in lines(case, *found[case])]
    table = Table.of("One process and two", records, COLUMNS, names=2, caption=[caption])
    show(table, console())
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "divided_steps.md").write_text(markdown(table))


if __name__ == "__main__":
    main()
