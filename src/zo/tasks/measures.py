"""Measures that evaluations report: accuracy, perplexity, or a measure of generated text; and their order."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measure:
    """A measure of an evaluation."""

    name: str  # Part of the logged keys, as in ``eval/val_accuracy``
    fraction: bool = True  # Whether it is a fraction, shown in percent
    lower: bool = False  # Whether a smaller value is better

    def better(self, value: float, best: float) -> bool:
        """Returns whether a value is better than the best so far."""
        return value < best if self.lower else value > best

    def shown(self, value: float) -> str:
        """Returns a value as text."""
        return f"{value:.1%}" if self.fraction else f"{self.name} {value:.4g}"


NAMED = {
    "accuracy": Measure("accuracy"),
    "perplexity": Measure("perplexity", fraction=False, lower=True),
    "exact_match": Measure("exact_match"),
    "f1": Measure("f1"),
    "rouge_l": Measure("rouge_l"),
    "reward": Measure("reward", fraction=False),
    "measure": Measure("measure", fraction=False),  # the user's own
}

LOSS = "eval/val_loss"
CHOOSING = {
    "macro_f1": Measure("macro_f1", fraction=False),
    "loss": Measure("loss", fraction=False, lower=True),
}
"""What chooses a run's best step if it is not the reported measure, see `TaskConfig.select_by`."""


def in_row(row: Mapping[str, Any]) -> Measure | None:
    """Returns the measure of a row's evaluation; None if it has no evaluation."""
    return next((m for name, m in NAMED.items() if f"eval/val_{name}" in row), None)


def in_summary(summary: Mapping[str, Any]) -> Measure:
    """Returns the measure that a run's summary reports."""
    return next(m for name, m in NAMED.items() if f"best/val_{name}" in summary)


def chosen_by(summary: Mapping[str, Any]) -> Measure:
    """Returns what chose the best step of a run's summary."""
    found = (m for name, m in CHOOSING.items() if f"best/val_{name}" in summary)
    return next(found, in_summary(summary))


UNSPACED = "\u3040-\u30ff\u3400-\u9fff"
"""Characters of scripts that put no blanks between words, as a regular expression's range."""


def normalised(text: str) -> str:
    """Returns an answer as SQuAD compares it: lower case, without punctuation, articles and repeated blanks.

    An answer that is nothing else keeps them: `A` and `>` are no empty texts.
    """
    text = text.lower()
    text = "".join(c for c in text if c not in string.punctuation).strip() or text
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split() or text.split())


def exact_match(text: str, reference: str) -> float:
    """Returns 1 if two answers are equal after `normalised`, else 0."""
    return float(normalised(text) == normalised(reference))


def f1(text: str, reference: str) -> float:
    """Returns the harmonic mean of precision and recall of an answer's words, as SQuAD computes it."""
    words, right = normalised(text).split(), normalised(reference).split()
    if not words or not right:
        return float(words == right)
    common = sum((Counter(words) & Counter(right)).values())
    return 2 * common / (len(words) + len(right))


def rouge_l(text: str, reference: str) -> float:
    """Returns ROUGE-L's F-measure, with Porter's stemmer; of any alphabet, and of Chinese and Japanese by character."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], tokenizer=_Words())
    return float(scorer.score(reference, text)["rougeL"].fmeasure)


class _Words:
    """rouge-score's own tokenizer, which knows ASCII alone, for letters of every alphabet."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self._stemmer = PorterStemmer()

    def tokenize(self, text: str) -> list[str]:
        """Returns the stems of a text's words; those of up to three letters stay."""
        words = re.findall(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+", text.lower())
        return [self._stemmer.stem(word) if len(word) > 3 else word for word in words]


OF_TEXT: dict[str, Callable[[str, str], float]] = {
    "exact_match": exact_match,
    "f1": f1,
    "rouge_l": rouge_l,
}


def best_of(name: str, text: str, references: Sequence[str]) -> float:
    """Returns the best value of a measure of generated text over the references."""
    return max(OF_TEXT[name](text, reference) for reference in references)
