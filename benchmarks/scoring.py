"""How much faster scoring is than the released code's way: python -m benchmarks.scoring [--help].

One process, one OPT with random weights, the same examples. Both ways are timed in turns, so that a machine whose
speed changes treats them alike, and medians are compared. The plain way is that of tests/support/plain_scoring.py:

- a training step makes a row of every candidate with its prompt, pads all rows to the longest and computes the
  logits of every position; a MeZO step draws its noise from one sequential stream in every pass;
- evaluation computes one sequence per candidate, one after the other.

Examples are made of random tokens. Their lengths are like the data's: SST-2's training phrases (median 9 tokens, a
few above 40, two answers of one token), TREC's questions (8 to 20 tokens, six answers of one or two tokens).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import OPTConfig, OPTForCausalLM

from benchmarks.steps.shapes import sst2_like, trec_like
from tests.support.plain_methods import mezo_step
from tests.support.plain_scoring import plain_scores, released_loss
from zo.lm.scoring import CandidateScorer
from zo.optim.config import MeZOConfig
from zo.optim.mezo import MeZO
from zo.tasks import Encoded
from zo.weights.space import ParameterSpace

PAD = 1
LR, EPS = 1e-7, 1e-3


def model_of(layers: int, width: int) -> OPTForCausalLM:
    """An OPT with a vocabulary of 50,272 and random weights in float32."""
    config = OPTConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        word_embed_proj_dim=width,
        ffn_dim=4 * width,
        num_attention_heads=width // 64,
        vocab_size=50_272,
    )
    return OPTForCausalLM(config).eval()


def in_turns(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each way, after one call that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for r in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if r:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def plain_step(model: OPTForCausalLM, examples: list[Encoded], seed: int) -> None:
    """One MeZO step of the plain rendering, its noise drawn again in every pass."""
    generator = torch.Generator()

    def draw(direction: int, j: int, shape: torch.Size) -> Tensor:
        if j == 0:
            generator.manual_seed(seed)
        return torch.randn(shape, generator=generator)

    theta = [p.detach() for p in model.parameters()]
    mezo_step(theta, lambda: released_loss(model, examples, PAD), draw, lr=LR, eps=EPS)


def measure(
    model: OPTForCausalLM, make: Callable[[int, int], list[Encoded]], args: argparse.Namespace
) -> Iterator[tuple[str, float, float]]:
    """Yields what was measured, a loss, a step or an evaluation, with its median seconds, plain and ours."""
    scorer = CandidateScorer(model, PAD)
    optimizer = MeZO(ParameterSpace.of(model), MeZOConfig(name="mezo", eps=EPS), lr=LR, seed=0)
    batches = [make(args.batch_size, seed) for seed in range(args.batches)]
    split = make(args.examples, 1000)

    def losses() -> list[float]:
        return [scorer.loss(scorer.collate(batch)) for batch in batches]

    def steps() -> None:
        for batch in batches:
            collated = scorer.collate(batch)
            optimizer.step(lambda collated=collated: scorer.loss(collated))

    expected = [released_loss(model, batch, PAD) for batch in batches]
    assert np.allclose(losses(), expected, rtol=0, atol=1e-4), "the two ways disagree"
    ways = {
        "loss": (lambda: [released_loss(model, batch, PAD) for batch in batches], losses),
        "step": (lambda: [plain_step(model, batch, 0) for batch in batches], steps),
        "evaluation": (
            lambda: plain_scores(model, split),
            lambda: scorer.evaluate(split, args.eval_tokens),
        ),
    }
    for what, (plain, ours) in ways.items():
        found = in_turns({"plain": plain, "ours": ours}, args.rounds)
        yield what, found["plain"], found["ours"]


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scoring",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--layers", type=int, default=12, help="of the OPT (12)")
    parser.add_argument("--width", type=int, default=768, help="of the OPT, a multiple of 64 (768)")
    parser.add_argument("--batch-size", type=int, default=16, help="examples per mini-batch (16)")
    parser.add_argument("--batches", type=int, default=2, help="mini-batches per measurement (2)")
    parser.add_argument("--examples", type=int, default=100, help="examples of an evaluation (100)")
    parser.add_argument("--eval-tokens", type=int, default=16_384, help="as in a run (16384)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each way (3)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (1)")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    model = model_of(args.layers, args.width)
    table = Table(
        title=f"OPT, {args.layers} layers of width {args.width}, fp32, CPU, {args.threads} threads"
    )
    for column in ("examples", "what", "plain, s", "ours, s", "times faster"):
        table.add_column(column, justify="left" if column in ("examples", "what") else "right")
    for name, make in (("SST-2-like", sst2_like), ("TREC-like", trec_like)):
        for what, plain, ours in measure(model, make, args):
            row = (name, what, f"{plain:.2f}", f"{ours:.2f}", f"{plain / ours:.1f}")
            print(*row, file=sys.stderr)
            table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
