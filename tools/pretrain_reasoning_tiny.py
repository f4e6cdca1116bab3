"""Pretrain ``reasoning-tiny``, the language model that rewards are tried on.

What: a Llama decoder of 1.1 M parameters, from nothing, on problems that the pip package ``reasoning-gym`` generates:
sums, products, greatest common divisors, and words spelled backward, each a question, a line break and its answer. Its
tokens are characters, but the wording that all questions of a task share is one token, so that a problem takes about
15 tokens. Training ends early: the model answers a quarter of the problems, and rewards have something to improve.

How long: 19 minutes on a busy CPU core. Expected result: 20 to 40 % exact answers to questions that it has not read.

    python -m tools.pretrain_reasoning_tiny --out src/zo/assets/reasoning-tiny

The same seed and thread count on the same machine give the same bytes: every draw comes from a generator made here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import reasoning_gym
import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tools import pretraining
from tools.pretraining import build_model, option, pad_right, run, save

PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
MAX_POSITIONS = 256
SEED = 1_000_000
"""Item i of a task comes from the seed SEED + i: far from the seeds that runs take."""

TASKS: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "basic_arithmetic": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "spell_backward": {"min_word_len": 3, "max_word_len": 7},
    "gcd": {"min_value": 1, "max_value": 20},
}
"""Tasks of reasoning-gym, and their options."""

WEIGHTS = {"chain_sum": 8, "basic_arithmetic": 3, "products": 2, "spell_backward": 2, "gcd": 1}
"""How often a task is read beside the others: the harder it is, the oftener."""

WORDINGS = (
    "State the final answer to the following arithmetic problem: ",
    "Calculate ",
    "Solve the following multiplication: ",
    ". Give only the result as your final answer.",
    "Spell this word backward (example: sun -> nus): ",
    "Find the Greatest Common Divisor (GCD) of these numbers: ",
    ". Give only the GCD as your final answer.",
)
"""What questions of a task share: one token each."""

Problem = tuple[str, str]  # question, answer


@dataclass(frozen=True)
class Recipe(pretraining.Recipe):
    """All that decides the weights, beside the machine and its thread count."""

    steps: int = option(1_100, "optimizer steps")
    layers: int = option(5, "decoder layers")
    problems: int = option(20_000, "generated per task")
    heldout: float = option(0.1, "share of the questions that are never read")
    asked: int = option(200, "held-out questions per task, at most, for the accuracy at the end")


def problems(task: str, count: int) -> list[Problem]:
    """Generate problems of a task."""
    made = reasoning_gym.create_dataset(task, size=count, seed=SEED, **TASKS[task])
    return [(made[i]["question"], made[i]["answer"]) for i in range(count)]


def is_held_out(question: str, share: float) -> bool:
    """Whether a question is never read: by its own hash, so that its repetitions are not, either."""
    return hashlib.sha256(question.encode()).digest()[0] < 256 * share


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token for every printable ASCII character and for every wording; a text begins with ``<s>``."""
    characters = ["\n", *map(chr, range(32, 127))]
    tokens = [PAD, BOS, EOS, UNKNOWN, *characters]
    single = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, UNKNOWN))
    single.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    single.decoder = decoders.Fuse()
    single.add_tokens([AddedToken(text, normalized=False) for text in WORDINGS])
    single.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokens.index(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=single,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNKNOWN,
        model_max_length=MAX_POSITIONS,
    )


def encode(tokenizer: PreTrainedTokenizerFast, problem: Problem) -> tuple[list[int], list[int]]:
    """Ids of the question with its line break, and of the answer with ``</s>``."""
    question, answer = (tokenizer(text)["input_ids"] for text in (f"{problem[0]}\n", problem[1]))
    return question, [*answer[1:], tokenizer.eos_token_id]


def batches(
    tasks: Sequence[Sequence[tuple[list[int], list[int]]]],
    size: int,
    rng: np.random.Generator,
    pool: int = 32,
) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Endless mini-batches of problems, tasks by `WEIGHTS`; those of a batch are about as long."""
    odds = np.array(list(WEIGHTS.values())) / sum(WEIGHTS.values())
    while True:
        chosen = rng.choice(len(tasks), size=pool * size, p=odds)
        rows = [tasks[t][int(rng.integers(len(tasks[t])))] for t in chosen]
        rows.sort(key=lambda row: len(row[0]) + len(row[1]))
        for b in rng.permutation(pool):
            yield rows[b * size : (b + 1) * size]


def train(
    model: LlamaForCausalLM,
    tasks: Sequence[Sequence[tuple[list[int], list[int]]]],
    pad: int,
    recipe: Recipe,
) -> None:
    """Train in place on the answers' tokens."""
    made = batches(tasks, recipe.batch_size, np.random.default_rng(recipe.seed))

    def measure() -> tuple[torch.Tensor, float]:
        rows = next(made)
        ids, lengths = pad_right([[*question, *answer] for question, answer in rows], pad)
        begins = torch.tensor([len(question) for question, _ in rows])
        place = torch.arange(1, ids.shape[1])[None]
        answered = (place >= begins[:, None]) & (place < lengths[:, None])
        # Attention is causal and the padding is on the right, so no mask is needed.
        hidden = model.model(input_ids=ids[:, :-1]).last_hidden_state  # (batch, time - 1, width)
        loss = F.cross_entropy(model.lm_head(hidden[answered]), ids[:, 1:][answered])
        return loss, loss.item()

    pretraining.train(model, recipe, measure)


@torch.no_grad()
def exact(model: LlamaForCausalLM, rows: Sequence[tuple[list[int], list[int]]]) -> float:
    """Share of questions whose greedy completion is the answer."""
    by_length: dict[int, list[tuple[list[int], list[int]]]] = {}
    for row in rows:
        by_length.setdefault(len(row[0]), []).append(row)
    longest, right, end = max(len(answer) for _, answer in rows), 0, model.config.eos_token_id
    for length, group in by_length.items():
        ids = torch.tensor([question for question, _ in group])
        mask = torch.ones_like(ids)
        made = model.generate(ids, attention_mask=mask, max_new_tokens=longest, do_sample=False)
        for text, (_, answer) in zip(made[:, length:].tolist(), group, strict=True):
            written = text[: text.index(end) + 1] if end in text else text
            right += written == answer
    return right / len(rows)


def pretrain(recipe: Recipe, out: Path) -> list[str]:
    """Run the recipe and write the model; returns the accuracies on held-out questions."""
    tokenizer = make_tokenizer()
    sizes = {"intermediate_size": 3 * recipe.width, "tie_word_embeddings": True}
    model = build_model(LlamaForCausalLM, recipe, tokenizer, **sizes)
    read, asked = [], {}
    for task in TASKS:
        made = problems(task, recipe.problems)
        read.append([encode(tokenizer, p) for p in made if not is_held_out(p[0], recipe.heldout)])
        kept = dict(p for p in made if is_held_out(p[0], recipe.heldout))
        asked[task] = [encode(tokenizer, p) for p in list(kept.items())[: recipe.asked]]
    train(model, read, tokenizer.pad_token_id, recipe)
    save(model, tokenizer, out)
    found = {task: exact(model, rows) for task, rows in asked.items()}
    lines = [f"{task}: {share:.1%} of {len(asked[task])}" for task, share in found.items()]
    mean = sum(found.values()) / len(found)
    return ["exact answers to held-out questions:", *lines, f"mean over the tasks: {mean:.1%}"]


if __name__ == "__main__":
    run("tools.pretrain_reasoning_tiny", Recipe, pretrain)
