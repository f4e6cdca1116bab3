"""What is said of examples as tokens: cut texts, one class, candidates that are the same."""

import dataclasses

import pytest

from tests.support.tiny_models import tokenizer
from zo.tasks import Example, TaskConfig, TaskError, encode
from zo.tasks.checks import check_tokens

TASK = TaskConfig(
    name="made_up", prompt="{text} It was", candidates=[" was", " the"], max_length=64
)
EXAMPLES = [
    Example({"text": f"the film was {word}", "a": word}, i % 2, 10 + i)
    for i, word in enumerate(("great", "bad", "good", "the worst of all the films"))
]


def notes(examples=EXAMPLES, **changes):
    task = dataclasses.replace(TASK, **changes)
    return check_tokens(task, {"train": examples}, {"train": encode(task, tokenizer(), examples)})


def test_cut_texts_are_counted_with_the_first_row():
    longest = max(len(e.prompt_ids) for e in encode(TASK, tokenizer(), EXAMPLES))
    (note,) = notes(max_length=longest)
    assert note.startswith(f"task.max_length={longest}: 1 of 4 train texts are longer")
    assert "row 13" in note


def test_texts_of_which_nothing_is_left_are_refused():
    prompt = len(tokenizer()(" It was")["input_ids"])
    with pytest.raises(TaskError, match=r"task\.max_length=\d+: nothing of the texts is left"):
        notes(max_length=prompt + 1)


def test_one_class_in_a_split_is_said():
    (note,) = notes(EXAMPLES[::2])
    assert note == "task.label: all 2 train examples are ' was'"


def test_candidates_that_are_the_same_in_some_rows_are_counted_and_in_all_refused():
    (note,) = notes(candidates=[" {a}", " great"])
    assert "the same in 1 of 4 train examples (the first in the file is row 10" in note
    with pytest.raises(TaskError, match=r"task\.candidates: two of them have the same tokens"):
        notes(candidates=[" {a}", " {a:strip}"])
