"""Prompts as tokens: templates filled, candidates behind them or a mask within, what a long one loses, what is said."""

import io
from dataclasses import replace

import pandas as pd
import pytest

from tests.support.tiny_models import tokenizer
from zo.tasks import Example, TaskConfig, encode, encode_masked
from zo.tasks.checks import check_tokens
from zo.tasks.predictions import table
from zo.tasks.templates import fill

MASKING = tokenizer(mask="<mask>")
TASK = TaskConfig(
    name="made_up",
    prompt="{a} It was",
    candidates=[" terrible", " great"],
    masked_prompt="{a} ? <mask> , {b}",
    label_words=[" was", " the"],
    max_length=64,
)
EXAMPLES = [
    Example({"a": "the film was great .", "b": "the plot"}, 1),
    Example({"a": "a <mask> !", "b": "it was <mask> , <mask>"}, 0),
    Example({"a": "", "b": "good"}, 0),
]


def encoded(examples=EXAMPLES, how=encode, tokens=None, **changes):
    return how(replace(TASK, **changes), tokens or tokenizer(), examples)


def masked(examples=EXAMPLES, tokens=MASKING, **changes):
    return encoded(examples, encode_masked, tokens, **changes)


def test_functions_of_columns_where_the_papers_tasks_have_no_such_text():
    """Data are text whatever they look like, and double braces are braces."""
    for template, text, expected in (
        ("<{x:unfinished}>", "The man fell. ", "<The man fell>"),
        ("<{x:unfinished}>", "He fell..", "<He fell.>"),
        ("<{x:continued}>", "It is Ann's.", "<it is Ann's.>"),
        ("<{x:continued}>", "", "<>"),
        ("<{x:asked}>", "is it?", "<Is it?>"),
        ("<{x:connective}>", "effect", "<so>"),
        ("{{{x}}} {x}", "{x}", "{{x}} {x}"),
    ):
        assert fill(template, {"x": text}, "prompt") == expected


@pytest.mark.parametrize("mask", ["<mask>", "[MASK]"])
def test_the_mask_is_the_templates_whatever_the_data_hold_and_the_tokenizer_calls_it(mask):
    tokens = tokenizer(mask=mask)
    for found, example in zip(masked(tokens=tokens), EXAMPLES, strict=True):
        assert found.prompt_ids[found.mask_at] == tokens.mask_token_id
        before = tokens.decode(found.prompt_ids[1 : found.mask_at])
        after = tokens.decode(found.prompt_ids[found.mask_at + 1 : -1])
        expected = [example.fields[column].replace(f" {mask}", mask) for column in "ab"]
        assert [before, after] == [f"{expected[0]} ?", f" , {expected[1]}"]
        assert (found.label, found.length) == (example.label, len(found.prompt_ids))
        ends = tokens.convert_ids_to_tokens([found.prompt_ids[0], found.prompt_ids[-1]])
        assert ends == ["<s>", "</s>"]


@pytest.mark.parametrize("bos", ["</s>", None])
def test_a_long_prompt_loses_its_beginning_never_the_candidate_nor_the_bos_token(bos):
    how = {"tokens": tokenizer(bos=bos), "candidates": [" no", " terrible ! forget it"]}
    whole, front = encoded(**how)[0], 1 if bos else 0
    longest = len(whole.candidate_ids[1])
    cut = encoded(**how, max_length=longest + 5)[0]
    assert cut.candidate_ids == whole.candidate_ids
    assert cut.prompt_ids == whole.prompt_ids[:front] + whole.prompt_ids[front - 5 :]
    assert encoded(**how, max_length=longest + len(whole.prompt_ids))[0] == whole


def test_special_tokens_that_a_tokenizer_puts_behind_a_text_are_not_between_prompt_and_answer():
    """Nor does a long prompt keep them, nor count them as its own."""
    ends = MASKING.convert_tokens_to_ids("</s>")
    for changes in ({}, {"kind": "completion", "completion": " great", "candidates": None}):
        for cut in ({}, {"max_length": 6}):
            found, plain = (
                encoded(tokens=tokens, **changes, **cut)[0] for tokens in (MASKING, tokenizer())
            )
            texts = [MASKING.decode(found.prompt_ids[1:]), tokenizer().decode(plain.prompt_ids[1:])]
            assert texts[0] == texts[1]
            assert ends not in found.prompt_ids
            assert len(found.candidate_ids[0]) == len(plain.candidate_ids[0])


@pytest.mark.parametrize("longer", ["a", "b"])
def test_a_long_masked_prompt_loses_the_beginning_of_its_longest_column_and_nothing_else(longer):
    words = " ".join(f"{w} was" for w in ("film", "plot", "story", "end"))
    examples = [Example({"a": "see it", "b": "see it"} | {longer: words}, 1)]
    whole = masked(examples)[0]
    for lost in (1, 3, 7):
        limit = len(whole.prompt_ids) - lost
        cut = masked(examples, max_length=limit)[0]
        assert len(cut.prompt_ids) == limit
        assert cut.prompt_ids[cut.mask_at] == MASKING.mask_token_id
        before, after = MASKING.decode(cut.prompt_ids[1:-1]).split(" ?<mask> ,")
        other, kept = (after, before) if longer == "a" else (before, after)
        assert other.strip() == "see it"
        assert words.endswith(kept.strip())
        assert 0 < len(kept.strip()) < len(words)


def test_what_is_said_of_examples_as_tokens():
    """Cut texts and equal candidates are counted with the first row, and one class is said."""
    words = ("great", "bad", "good", "the worst of all the films")
    films = [Example({"a": word}, i % 2, 10 + i) for i, word in enumerate(words)]

    def notes(examples=films, **changes):
        found = {"train": encoded(examples, **changes)}
        return check_tokens(replace(TASK, **changes), {"train": examples}, found)

    longest = max(len(e.prompt_ids) + len(e.candidate_ids[0]) for e in encoded(films)) - 1
    (note,) = notes(max_length=longest)
    assert note.startswith(f"task.max_length={longest}: 1 of 4 train texts are longer")
    assert "row 13" in note
    assert notes(films[::2]) == ["task.label: all 2 train examples are ' terrible'"]
    (note,) = notes(candidates=[" {a}", " great"])
    assert "the same in 1 of 4 train examples (the first in the file is row 10" in note
    twice = encoded(films, prompt="</s>" + str(TASK.prompt))
    (note,) = check_tokens(TASK, {"train": films}, {"train": twice}, 2)
    assert note.startswith("task.prompt: 4 of 4 train prompts begin with the first token of the to")


@pytest.mark.parametrize("text", ["one\rtwo", "one\r\ntwo", 'one\n"two', "one, two\r"])
def test_a_row_of_predictions_is_one_row_to_a_reader_whatever_its_texts_have(text):
    examples = [Example({"a": text, "b": "c"}, 0), Example({"a": "d", "b": text}, 1)]
    read = pd.read_csv(io.StringIO(table(TASK, examples, {"predicted": [text, "e"]})), dtype=str)
    assert read["predicted"].tolist() == [text, "e"]
    assert read["a"].tolist() == [text, "d"]
