import dataclasses

import pytest

from tests.support.tiny_models import tokenizer
from zo.tasks import Encoded, Example, TaskConfig, TaskError, encode

TOKENIZER = tokenizer()
EXAMPLES = [Example({"text": "the film was great ."}, 1), Example({"text": "a {plot} !"}, 0)]


TASK = TaskConfig(
    name="made_up", prompt="{text} It was", candidates=[" terrible", " great"], max_length=64
)


def task(**changes):
    return dataclasses.replace(TASK, **changes)


def test_every_accepted_candidate_is_right():
    example = Encoded([2], [[3], [4], [5]], 1)
    assert [example.is_right(i) for i in range(3)] == [False, True, False]
    example = dataclasses.replace(example, accepted=(1, 2))
    assert [example.is_right(i) for i in range(3)] == [False, True, True]


def test_the_tokens_are_the_text_with_what_the_tokenizer_puts_in_front():
    for encoded, example in zip(encode(task(), TOKENIZER, EXAMPLES), EXAMPLES, strict=True):
        assert encoded.prompt_ids[0] == TOKENIZER.bos_token_id
        text = example.fields["text"] + " It was"
        assert TOKENIZER.decode(encoded.prompt_ids[1:]) == text
        assert [TOKENIZER.decode(ids) for ids in encoded.candidate_ids] == [" terrible", " great"]
        assert encoded.label == example.label


@pytest.mark.parametrize("bos", ["</s>", None])
def test_a_long_prompt_loses_its_beginning_never_the_candidate_nor_the_bos_token(bos):
    tokens = tokenizer(bos=bos)
    candidates = [" no", " terrible ! forget it"]
    whole = encode(task(candidates=candidates), tokens, EXAMPLES)[0]
    longest = max(map(len, whole.candidate_ids))
    assert longest > len(whole.candidate_ids[0])
    limit = longest + 5
    cut = encode(task(candidates=candidates, max_length=limit), tokens, EXAMPLES)[0]
    assert cut.candidate_ids == whole.candidate_ids
    assert len(cut.prompt_ids) == 5
    front = 1 if bos else 0
    assert cut.prompt_ids[:front] == whole.prompt_ids[:front]
    assert cut.prompt_ids[front:] == whole.prompt_ids[front - 5 :]
    exact = encode(
        task(candidates=candidates, max_length=longest + len(whole.prompt_ids)), tokens, EXAMPLES
    )[0]
    assert exact == whole


MISTAKES = {
    "empty": ({"candidates": [" bad", " "]}, r"task\.candidates: ' ' is empty"),
    "one": ({"candidates": [" bad"]}, r"task\.candidates: 1 given"),
    "merging": (
        {"prompt": "{text} It wa", "candidates": ["s", " great"]},
        r"task\.candidates: 's' changes the last tokens of the prompt '.* It wa'",
    ),
    "objective": ({"objective": "regression"}, r"task\.objective: 'regression' is none of"),
    "no room": (
        {"max_length": 3},
        r"task\.max_length=3: special tokens and the longest answer leave no room .* give at least 6",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_that_names_the_key(mistake):
    changes, message = MISTAKES[mistake]
    with pytest.raises(TaskError, match=message) as caught:
        encode(task(**changes), TOKENIZER, EXAMPLES)
    assert "\n" not in str(caught.value)
