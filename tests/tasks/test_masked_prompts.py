"""Prompts with a mask: where it stands, what fills it, what a long one loses."""

import dataclasses

import pytest

from tests.support.tiny_models import tokenizer
from zo.tasks import Example, TaskConfig, TaskError, encode_masked

TOKENIZER = tokenizer(mask="<mask>")
TASK = TaskConfig(
    name="made_up",
    prompt="{a} {b}",
    candidates=["Yes", "No"],
    masked_prompt="{a} ? <mask> , {b}",
    label_words=[" was", " the"],
    max_length=64,
)
EXAMPLES = [
    Example({"a": "the film was great .", "b": "the plot"}, 1),
    Example({"a": "a <mask> !", "b": "it was <mask> , <mask>"}, 0),
    Example({"a": "", "b": "good"}, 0),
]


def task(**changes):
    return dataclasses.replace(TASK, **changes)


@pytest.mark.parametrize("mask", ["<mask>", "[MASK]"])
def test_the_mask_is_the_templates_whatever_the_data_hold_and_the_tokenizer_calls_it(mask):
    tokens = tokenizer(mask=mask)
    for encoded, example in zip(encode_masked(task(), tokens, EXAMPLES), EXAMPLES, strict=True):
        assert encoded.prompt_ids[encoded.mask_at] == tokens.mask_token_id
        before = tokens.decode(encoded.prompt_ids[1 : encoded.mask_at])
        after = tokens.decode(encoded.prompt_ids[encoded.mask_at + 1 : -1])
        expected = [example.fields[column].replace(f" {mask}", mask) for column in "ab"]
        assert [before, after] == [f"{expected[0]} ?", f" , {expected[1]}"]
        assert encoded.label == example.label
        assert encoded.length == len(encoded.prompt_ids)
        ends = tokens.convert_ids_to_tokens([encoded.prompt_ids[0], encoded.prompt_ids[-1]])
        assert ends == ["<s>", "</s>"]


@pytest.mark.parametrize("longer", ["a", "b"])
def test_a_long_prompt_loses_the_beginning_of_its_longest_column_and_nothing_else(longer):
    words = " ".join(f"{w} was" for w in ("film", "plot", "story", "end"))
    fields = {"a": "see it", "b": "see it"} | {longer: words}
    whole = encode_masked(task(), TOKENIZER, [Example(fields, 1)])[0]
    for lost in (1, 3, 7):
        limit = len(whole.prompt_ids) - lost
        cut = encode_masked(task(max_length=limit), TOKENIZER, [Example(fields, 1)])[0]
        assert len(cut.prompt_ids) == limit
        text = TOKENIZER.decode(cut.prompt_ids[1:-1])
        before, after = text.split("<mask>")
        assert cut.prompt_ids[cut.mask_at] == TOKENIZER.mask_token_id
        assert before.endswith("was ?" if longer == "a" else "see it ?")
        assert after.endswith("was" if longer == "b" else ", see it")
        assert after.startswith(" ,")
        kept = before.removesuffix(" ?") if longer == "a" else after.removeprefix(" ,")
        assert words.endswith(kept.strip())
        assert len(kept.strip()) < len(words)


MISTAKES = {
    "two tokens": (
        {"label_words": [" was", " wonderful"]},
        r"task\.label_words: ' wonderful' is not one token of the model, but Ġ",
    ),
    "same token": ({"label_words": [" was", " was"]}, r"task\.label_words: .* not different"),
    "no words": ({"label_words": None}, r"task\.masked_prompt: made_up has none"),
    "too few": ({"label_words": [" was"]}, r"task\.label_words: 2 are needed"),
    "no prompt": ({"masked_prompt": None}, r"task\.masked_prompt: made_up has none"),
    "no mask": ({"masked_prompt": "{a}"}, r"task\.masked_prompt: one <mask> is needed"),
    "objective": ({"objective": "lm"}, r"task\.objective: 'lm' is for decoder models"),
    "no room": (
        {"max_length": 6},
        r"task\.max_length=6: the template leaves no room for the texts; give at least",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_that_names_the_key(mistake):
    changes, message = MISTAKES[mistake]
    with pytest.raises(TaskError, match=message) as caught:
        encode_masked(task(**changes), TOKENIZER, EXAMPLES)
    assert "\n" not in str(caught.value)
