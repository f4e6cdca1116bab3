"""Times the texts of a population of ES: in one batch, member by member, and a plain batch of as many rows.

    python -m benchmarks.population [--device cuda] [--members 16 64] [--rank 1] [--tokens 16] [--rounds 3]
        [--threads 1] [--out DIR]

The model has SmolLM2-135M's shape and random weights in float32; each member writes behind 4 prompts. The three ways
are interleaved. On a CPU with one thread the times are processor seconds, which depend little on what else the machine
does; memory that others keep busy makes all of them slower, member by member the most. Otherwise they are seconds,
which a quiet machine alone makes comparable. The times are medians. One batch and member by member include the
displacements of a step's probes, not its update. The plain batch is of the model as it is.

Written: population.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from analysis.report.table import Column, Table, console, markdown, show
from zo.lm.scoring.generation import Generator
from zo.optim.config_evolution import ESConfig
from zo.optim.es import ES
from zo.run.provenance import provenance
from zo.tasks import Encoded
from zo.weights.space import ParameterSpace

PROMPTS = 4
SHAPE: dict[str, Any] = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
SHAPE |= {"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152}
WAYS = {"plain": "plain batch", "factors": "one batch", "snapshot": "member by member"}

COLUMNS: dict[str, Column] = {
    "members": "members",
    **{f"{name}, s": (way, ".2f") for way, name in WAYS.items()},
    "one batch, tokens/s": ("tokens per second", ",.0f"),
    "one batch over plain": ("over plain", ".2f"),
    "times faster than member by member": ("faster", ".2f"),
    "equal texts": "equal",
}


class Numbers:
    """Stands for a tokenizer: a text is its tokens' numbers, and no token ends it."""

    pad_token_id = 0
    eos_token_id = None

    def batch_decode(self, ids: torch.Tensor, skip_special_tokens: bool = True) -> list[str]:
        """Returns the texts of rows of tokens."""
        return [" ".join(map(str, row)) for row in ids.tolist()]


class Texts:
    """A loss of generated texts, which it keeps: the mean of their last tokens' numbers."""

    def __init__(self, write: Generator, examples: list[Encoded]):
        self._write, self._examples = write, examples
        self.written: list[str] = []

    def __call__(self) -> float:
        """Returns the loss."""
        return self.branches(1)[0]

    def branches(self, n: int) -> list[float]:
        """Returns the losses of n members that write together."""
        texts = [written.text for written in self._write.write(self._examples * n, parts=n)]
        self.written += texts
        numbers = [float(text.rpartition(" ")[2]) for text in texts]
        return [sum(numbers[i : i + PROMPTS]) for i in range(0, len(texts), PROMPTS)]


def measured(args: argparse.Namespace, members: int) -> dict[str, Any]:
    """Returns a row of the table."""
    generator = torch.Generator().manual_seed(1)
    lengths = [max(1, args.prompt - i) for i in range(PROMPTS)]
    ids = [torch.randint(5, 49_000, (n,), generator=generator).tolist() for n in lengths]
    examples = [Encoded(of, [], 0) for of in ids]
    calls: dict[str, Callable[[], list[str]]] = {}
    for way in WAYS:
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True))
        model.eval().to(args.device)
        write = Generator(model, Numbers(), args.tokens, None)
        if way == "plain":
            calls[way] = lambda write=write: write(examples * members)  # type: ignore[misc]
            continue
        config = ESConfig(n=members, directions="low_rank", rank=args.rank, eps=1e-2)
        optimizer = ES(ParameterSpace.of(model, way, "philox"), config, lr=1e-3, seed=0)

        def probe(optimizer: Any = optimizer, write: Generator = write) -> list[str]:
            loss = Texts(write, examples)
            optimizer.estimate(loss)
            return loss.written

        calls[way] = probe
    clock = time.process_time if _of_the_processor(args) else time.perf_counter
    found: list[dict[str, float]] = []
    texts: dict[str, list[str]] = {}
    for _ in range(args.rounds + 1):
        row: dict[str, float] = {}
        for way, call in calls.items():
            start = clock()
            texts[way] = call()
            row[way] = clock() - start
        found.append(row)
        print(members, {way: round(s, 2) for way, s in row.items()}, flush=True)
    medians = pd.DataFrame(found[1:]).median()  # the first round allocates and compiles
    pairs = zip(texts["factors"], texts["snapshot"], strict=True)
    return {
        "members": members,
        **medians,
        "tokens per second": members * PROMPTS * args.tokens / medians["factors"],
        "over plain": medians["factors"] / medians["plain"],
        "faster": medians["snapshot"] / medians["factors"],
        "equal": f"{sum(a == b for a, b in pairs)} of {members * PROMPTS}",
    }


def _of_the_processor(args: argparse.Namespace) -> bool:
    return args.device == "cpu" and args.threads == 1


def main(argv: Sequence[str] | None = None) -> None:
    """Measures; prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--members", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=8, help="tokens of the longest prompt")
    parser.add_argument("--tokens", type=int, default=16, help="tokens that are written")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="several: seconds, not processor's")
    parser.add_argument("--out", type=Path, default=Path("results/local/benchmarks"))
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    found = [measured(args, members) for members in args.members]
    made = provenance(torch.device(args.device))
    seconds = "processor seconds" if _of_the_processor(args) else "seconds"
    caption = (
        f"{made['device']}, threads: {args.threads}; SmolLM2-135M's shape, float32, rank {args.rank}, {PROMPTS} prompts"
        f" of at most {args.prompt} tokens, {args.tokens} tokens each; {seconds}, medians of {args.rounds} rounds,"
        f" interleaved; torch {made['versions']['torch']}, transformers {made['versions']['transformers']}; commit"
        f" {made['git_revision'][:12]}{'+' * made['git_dirty']}; {made['started'][:10]}."
    )
    table = Table.of("A population's texts", found, COLUMNS, names=1, caption=[caption])
    show(table, console())
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "population.md").write_text(markdown(table), encoding="utf-8")


if __name__ == "__main__":
    main()
