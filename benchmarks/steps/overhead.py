"""What a step costs beside its forward passes, on a model of many small tensors.

    python -m benchmarks.steps.overhead [BLOCKS]

A Llama of 30 blocks of width 32, one thread. Each method is timed under each restore policy with Philox noise, in turn
with the forward pass of a model that no optimizer has changed; all forward passes are in inference mode. On a GPU the
processor waits for the same work.
"""

from __future__ import annotations

import copy
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from zo.library.methods import METHODS

CASES = [("mezo", policy) for policy in ("merged", "subtract", "snapshot", "streamed")]
CASES += [("bszo", "merged"), ("bszo", "streamed"), ("mezo_adam", "merged"), ("hizoo", "merged")]
CASES += [(m, "merged") for m in ("zo_sign", "zo_momentum", "conmezo", "tezo", "zo_muon")]
CASES += [("lozo", policy) for policy in ("merged", "streamed", "factors")]
TIMES = 15
"""Steps of a case; the table has medians."""


def milliseconds(work: Callable[[], object]) -> float:
    """Returns the time of one call."""
    begin = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begin)


def main(blocks: int = 30) -> None:
    """Measures all cases and prints the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=blocks, **shape, **heads)).eval()
    ids, tensors = torch.randint(64, (2, 8)), len([*model.parameters()])
    table = Table(
        "method", "restore", "forward ms", "step ms", "x its forwards", "µs a tensor and forward"
    )

    def loss(of: LlamaForCausalLM = model) -> torch.Tensor:
        found: torch.Tensor = of(input_ids=ids, labels=ids).loss
        return found

    untouched = copy.deepcopy(model)
    alone = torch.inference_mode()(lambda: loss(untouched))
    for seed, (name, policy) in enumerate(CASES):
        more: dict[str, Any] = {
            "restore": policy,
            "noise": "philox",
            "seed": seed,
            "check_closure": False,
        }
        with METHODS[name](model, lr=1e-7, **more) as optimizer:
            for _ in range(3):
                optimizer.step(loss)
            pairs = [
                (milliseconds(alone), milliseconds(lambda: optimizer.step(loss)))
                for _ in range(TIMES)
            ]
            assert optimizer.info is not None
            forward, step = (median(of) for of in zip(*pairs, strict=True))
            forwards = optimizer.info.forwards * forward
            beside = 1e3 * (step - forwards) / tensors / optimizer.info.forwards
        numbers = f"{forward:.1f}", f"{step:.1f}", f"{step / forwards:.2f}", f"{beside:.0f}"
        table.add_row(name, policy, *numbers)
    Console(width=100).print(f"{tensors} tensors", table)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*map(int, sys.argv[1:]))
