"""A few examples as a model sees them: zo show task=rte model=reviews-tiny [n=3].

Use it first when an accuracy is at chance. The overrides are those of `zo train`. Only data and tokenizer are loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from zo import config
from zo.config import ConfigError, RunConfig, command_line
from zo.extras import alias
from zo.lm.config import ModelError
from zo.lm.source import load_tokenizer
from zo.tasks import Encoded, TaskError, load_splits, tokenize
from zo.tasks.checks import check_splits, check_tokens, visible
from zo.tasks.data import complete

BORDER, MASK = "dim", "black on yellow"
TRUE, OTHER = "black on green", "black on red"


def main(argv: Sequence[str]) -> int:
    """Prints the examples; returns the exit status, 2 if they cannot be shown."""
    if {"-h", "--help"} & set(argv):
        print(__doc__.strip())
        return 0
    numbers = [a.removeprefix("n=") for a in argv if a.startswith("n=")]
    if wrong := [n for n in numbers if not n.isdecimal()]:
        print(f"n={wrong[0]}: must be a number of examples", file=sys.stderr)
        return 2
    overrides = [a for a in argv if not a.startswith("n=")]
    given = {a.partition("=")[0] for a in overrides}
    if "optimizer" not in given:
        overrides.append("optimizer=zero_shot")  # needs no learning rate
    if "batch_size" not in given:
        overrides.append("batch_size=1")  # fits every training split
    config.register()
    try:
        n = int(numbers[-1]) if numbers else 3
        for run in command_line.runs(overrides):
            _show(run, n, Console(highlight=False, soft_wrap=True))
    except (ConfigError, TaskError, ModelError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _show(run: RunConfig, n: int, console: Console) -> None:
    task, found = complete(run.task)
    splits = load_splits(task)
    tokenizer = load_tokenizer(run.model)
    train = tokenize(task, tokenizer, splits.train, run.model.kind)
    notes = [
        *found,
        *(check_splits(task, splits) if found else ()),
        *check_tokens(task, {"train": splits.train}, {"train": train}, tokenizer.bos_token_id),
    ]
    sizes = ", ".join(f"{len(of)} {name}" for name, of in vars(splits).items())
    console.print(f"{task.name} for {run.model.name}, a {run.model.kind} model: {sizes}")
    if task.kind == "classification" and task.choices is None:
        words = task.label_words if run.model.kind == "masked" else task.words
        counts = [sum(e.label == label for e in train) for label in range(len(task.words))]
        shares = [f"{word!r} {count}" for word, count in zip(words or (), counts, strict=True)]
        console.print(f"true in the training split: {', '.join(shares)}", markup=False)
    lengths = sorted(e.length for e in train)
    middle, most = lengths[len(lengths) // 2], lengths[-1]
    counted = f"median {middle}, most {most}; task.max_length {task.max_length}"
    console.print(f"tokens per training example, {counted}")
    for note in notes:
        console.print(note, markup=False)
    for i, example in enumerate(train[:n]):
        console.print()
        for line in _lines(i, example, tokenizer):
            console.print(line)


def _lines(i: int, example: Encoded, tokenizer: Any) -> list[Text]:
    """One example: its prompt's tokens, then each candidate's."""
    n, counts = len(example.prompt_ids), [len(ids) for ids in example.candidate_ids]
    head = f"example {i}: label {example.label}, {n} prompt tokens, {counts} candidate tokens"
    if example.mask_at is not None:
        head += f", mask at {example.mask_at}"
    prompt = Text()
    for place, token in enumerate(example.prompt_ids):
        if place:
            prompt.append("|", style=BORDER)
        if place == example.mask_at:
            prompt.append(f"[{visible(tokenizer, token)}]", style=MASK)
        else:
            prompt.append(visible(tokenizer, token))
    lines = [Text(head, style="bold"), prompt]
    for c, ids in enumerate(example.candidate_ids):
        true = c == example.label
        line = Text(f"  {c} {'true ' if true else 'other'} ")
        for token, scored in zip(ids, example.trained or [True] * len(ids), strict=True):
            text = visible(tokenizer, token)
            line.append(f"[{text}]" if scored else text, style=TRUE if true and scored else OTHER)
        line.append("  " + " ".join(map(str, ids)), style="dim")
        lines.append(line)
    return lines


if __name__ == "__main__":
    sys.exit(alias("show", lambda: main(sys.argv[1:])))
