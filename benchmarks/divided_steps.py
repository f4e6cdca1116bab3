"""Times a step on one process and on two, with one thread each: forward passes, the exchange of losses, waiting.

    torchrun --standalone --nproc-per-node 2 -m benchmarks.divided_steps [--steps 5] [--layers 12]
    make bench-distributed BENCH="--out results/measured/benchmarks"

The model has the shape of OPT-125M and random weights. Two processes make steps in turns: the first one alone, then
both together, so that other load meets both. It takes about three minutes on two quiet cores. divided_steps.md has
the table and its provenance: medians over the steps, in seconds. Processor time depends little on what else the machine
does.

**exchange** is the time in the collective of the process that comes last: nobody keeps it waiting. **waiting** is what
the other one spends there beyond that.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import OPTConfig, OPTForCausalLM

from analysis.report.table import Column, Table, console, markdown, show
from zo.distributed.loss import DividedLoss
from zo.distributed.processes import Processes, join
from zo.optim import OPTIMIZERS
from zo.run.provenance import provenance, sentence
from zo.weights.space import ParameterSpace

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "BSZO, k = 3": ("bszo", {"k": 3}),
    "n-SPSA, n = 4": ("mezo", {"n": 4}),
}
EXAMPLES, TOKENS = 4, 32
WORK = ["step", "processor", "forward, processor"]
TIMES = [*WORK, "exchange", "waiting"]
SHARE = "exchange, of a step"
COLUMNS: dict[str, Column] = {
    "method": "method",
    "processes": "processes",
    **{name: (name, ".4g") for name in [*WORK, "exchange", SHARE, "waiting"]},
}


def measured(
    model: OPTForCausalLM, case: str, steps: int, processes: Processes
) -> Iterator[dict[str, Any]]:
    """Yields the lines of a case in the table: medians over steps, and of the ratios of steps.

    A step of two processes takes the time of the busier one.
    """
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
        """Returns per process WORK of a step, and its time in the collective."""
        nonlocal forward
        processes.exchange(None)
        forward, waited = 0.0, processes.seconds
        start, busy = time.perf_counter(), time.process_time()
        if by.world > 1 or processes.leads:
            optimizer.step(DividedLoss(lambda _: loss, [1], by))
        mine = time.perf_counter() - start, time.process_time() - busy, forward
        return np.array(processes.exchange([*mine, processes.seconds - waited]))

    singly, together = [], []
    for _ in range(steps + 1):
        singly.append(timed(Processes())[0, :3])
        *work, spent = timed(processes).T
        together.append([*np.max(work, axis=1), spent.min(), np.ptp(spent)])
    # the first step allocates and compiles
    one = pd.DataFrame(singly[1:], columns=WORK)
    two = pd.DataFrame(together[1:], columns=TIMES)
    alone, both = one.median(), two.median()
    model_s = alone / (alone - alone["forward, processor"] / 2)
    yield {"processes": "1", **alone}
    yield {"processes": "2", **both, SHARE: both["exchange"] / both["step"]}
    yield {"processes": "times faster", **(one / two[WORK]).median()}
    yield {"processes": "times faster, by the model", **model_s, "forward, processor": 2.0}


def main() -> None:
    """Measures; prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("results/local/benchmarks"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    processes = join(300)
    if processes.world != 2:
        parser.error("start it by torchrun --nproc-per-node 2, as make bench-distributed does")
    torch.manual_seed(0)
    shape = OPTConfig(hidden_size=768, ffn_dim=3072, num_hidden_layers=args.layers)
    model = OPTForCausalLM(shape).eval()
    found = [
        {"method": case, **line}
        for case in CASES
        for line in measured(model, case, args.steps, processes)
    ]
    if not processes.leads:
        return
    made = provenance(torch.device("cpu"))
    caption = (
        f"{made['device']}, one thread per process; OPT of {args.layers} layers and width 768, float32, {EXAMPLES}"
        f" examples of {TOKENS} tokens; `merged`, `philox`; seconds, medians of {args.steps} steps and of their ratios;"
        f" {sentence(made)}"
    )
    table = Table.of("One process and two", found, COLUMNS, names=2, caption=[caption])
    show(table, console())
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "divided_steps.md").write_text(markdown(table), encoding="utf-8")


if __name__ == "__main__":
    main()
