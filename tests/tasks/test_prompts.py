"""Prompts as tokens: templates filled, candidates behind them or a mask within, what a long one loses, what is said."""

import dataclasses

import pytest

from tests.support.tiny_models import tokenizer
from zo.tasks import Encoded, Example, TaskConfig, TaskError, encode, encode_masked
from zo.tasks.checks import check_tokens
from zo.tasks.templates import fill

TOKENIZER, MASKING = tokenizer(), tokenizer(mask="<mask>")
TASK = TaskConfig(
    name="made_up", prompt="{text} It was", candidates=[" terrible", " great"], max_length=64
)
MASKED_TASK = TaskConfig(
    name="made_up",
    prompt="{a} {b}",
    candidates=["Yes", "No"],
    masked_prompt="{a} ? <mask> , {b}",
    label_words=[" was", " the"],
    max_length=64,
)
EXAMPLES = [Example({"text": "the film was great ."}, 1), Example({"text": "a {plot} !"}, 0)]
MASKED_EXAMPLES = [
    Example({"a": "the film was great .", "b": "the plot"}, 1),
    Example({"a": "a <mask> !", "b": "it was <mask> , <mask>"}, 0),
    Example({"a": "", "b": "good"}, 0),
]


def encoded(examples=EXAMPLES, tokens=TOKENIZER, **changes):
    return encode(dataclasses.replace(TASK, **changes), tokens, examples)


def masked(examples=MASKED_EXAMPLES, tokens=MASKING, **changes):
    return encode_masked(dataclasses.replace(MASKED_TASK, **changes), tokens, examples)


@pytest.mark.parametrize(
    ("function", "text", "expected"),
    [
        ("unfinished", "The man fell. ", "The man fell"),
        ("unfinished", "Did he fall?", "Did he fall?"),
        ("unfinished", "He fell..", "He fell."),
        ("continued", "It is Ann's.", "it is Ann's."),
        ("continued", "", ""),
        ("connective", "effect", "so"),
        ("asked", "is it?", "Is it?"),
        ("asked", "", "?"),
    ],
)
def test_a_function_of_a_column(function, text, expected):
    """Where the paper's tasks have no such text."""
    assert fill(f"<{{x:{function}}}>", {"x": text}, "prompt") == f"<{expected}>"


def test_data_are_text_whatever_they_look_like_and_double_braces_are_braces():
    assert fill("{{{a}}} {b} {a}", {"a": "{b}", "b": 3}, "prompt") == "{{b}} 3 {b}"


def test_every_accepted_candidate_is_right():
    example = Encoded([2], [[3], [4], [5]], 1)
    assert [example.is_right(i) for i in range(3)] == [False, True, False]
    example = dataclasses.replace(example, accepted=(1, 2))
    assert [example.is_right(i) for i in range(3)] == [False, True, True]


def test_the_tokens_are_the_text_with_what_the_tokenizer_puts_in_front():
    for found, example in zip(encoded(), EXAMPLES, strict=True):
        assert found.prompt_ids[0] == TOKENIZER.bos_token_id
        assert TOKENIZER.decode(found.prompt_ids[1:]) == example.fields["text"] + " It was"
        assert [TOKENIZER.decode(ids) for ids in found.candidate_ids] == [" terrible", " great"]
        assert found.label == example.label


@pytest.mark.parametrize("mask", ["<mask>", "[MASK]"])
def test_the_mask_is_the_templates_whatever_the_data_hold_and_the_tokenizer_calls_it(mask):
    tokens = tokenizer(mask=mask)
    for found, example in zip(masked(tokens=tokens), MASKED_EXAMPLES, strict=True):
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
    whole = encoded(**how)[0]
    longest = max(map(len, whole.candidate_ids))
    assert longest > len(whole.candidate_ids[0])
    cut = encoded(**how, max_length=longest + 5)[0]
    assert cut.candidate_ids == whole.candidate_ids
    front = 1 if bos else 0
    assert cut.prompt_ids == whole.prompt_ids[:front] + whole.prompt_ids[front - 5 :]
    assert encoded(**how, max_length=longest + len(whole.prompt_ids))[0] == whole


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
        before, after = MASKING.decode(cut.prompt_ids[1:-1]).split("<mask>")
        assert before.endswith("was ?" if longer == "a" else "see it ?")
        assert after.endswith("was" if longer == "b" else ", see it")
        kept = before.removesuffix(" ?") if longer == "a" else after.removeprefix(" ,")
        assert words.endswith(kept.strip())
        assert len(kept.strip()) < len(words)


MISTAKES = {
    "candidate empty": (encoded, {"candidates": [" bad", " "]}, r"task\.candidates: ' ' is empty"),
    "one candidate": (encoded, {"candidates": [" bad"]}, r"task\.candidates: 1 given"),
    "merging": (encoded, {"prompt": "{text} It wa", "candidates": ["s", " great"]},
        r"task\.candidates: 's' changes the last tokens of the prompt '.* It wa'"),
    "no room": (encoded, {"max_length": 3},
        r"task\.max_length=3: special tokens and the longest answer leave no room .* give at least 6"),
    "two tokens": (masked, {"label_words": [" was", " wonderful"]},
        r"task\.label_words: ' wonderful' is not one token of the model, but Ġ"),
    "same token": (masked, {"label_words": [" was", " was"]}, r"task\.label_words: .* not different"),
    "no words": (masked, {"label_words": None}, r"task\.masked_prompt: made_up has none"),
    "too few": (masked, {"label_words": [" was"]}, r"task\.label_words: 2 are needed"),
    "no prompt": (masked, {"masked_prompt": None}, r"task\.masked_prompt: made_up has none"),
    "no mask": (masked, {"masked_prompt": "{a}"}, r"task\.masked_prompt: one <mask> is needed"),
    "no room beside a mask": (masked, {"max_length": 6},
        r"task\.max_length=6: the template leaves no room for the texts; give at least"),
    "no such function": (encoded, {"prompt": "{a:upper}"}, r"task\.prompt: \{a:upper\} names none of strip, lower"),
    "conversion": (encoded, {"prompt": "{a!r}"}, r"task\.prompt: \{a\} is not the name of a column"),
    "part": (encoded, {"prompt": "{a.b}"}, r"task\.prompt: \{a\.b\} is not the name of a column"),
    "no name": (encoded, {"prompt": "{}"}, r"task\.prompt: \{\} is not the name of a column"),
    "no template": (encoded, {"prompt": "{a"}, r"task\.prompt: '\{a' is not a template"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_that_names_the_key(mistake):
    tokens_of, changes, message = MISTAKES[mistake]
    with pytest.raises(TaskError, match=message) as caught:
        tokens_of(**changes)
    assert "\n" not in str(caught.value)


FILMS = [
    Example({"text": f"the film was {word}", "a": word}, i % 2, 10 + i)
    for i, word in enumerate(("great", "bad", "good", "the worst of all the films"))
]


def test_what_is_said_of_examples_as_tokens():
    """Cut texts and equal candidates are counted with the first row, one class is said, and nothing left is refused."""

    def notes(examples=FILMS, candidates=(" was", " the"), **changes):
        task = dataclasses.replace(TASK, candidates=list(candidates), **changes)
        found = {"train": encode(task, TOKENIZER, examples)}
        return check_tokens(task, {"train": examples}, found)

    longest = max(len(e.prompt_ids) for e in encoded(FILMS, candidates=[" was", " the"]))
    (note,) = notes(max_length=longest)
    assert note.startswith(f"task.max_length={longest}: 1 of 4 train texts are longer")
    assert "row 13" in note
    with pytest.raises(TaskError, match=r"task\.max_length=\d+: nothing of the texts is left"):
        notes(max_length=len(TOKENIZER(" It was")["input_ids"]) + 1)
    assert notes(FILMS[::2]) == ["task.label: all 2 train examples are ' was'"]
    (note,) = notes(candidates=[" {a}", " great"])
    assert "the same in 1 of 4 train examples (the first in the file is row 10" in note
    with pytest.raises(TaskError, match=r"task\.candidates: two of them have the same tokens"):
        notes(candidates=[" {a}", " {a:strip}"])
