"""Conversations: what a chat template writes, and which of its tokens are the assistant's."""

import re

import pytest
from trl import chat_template_utils as trl

from tests.support.tiny_models import tokenizer
from tests.tasks.test_own_data import own, write
from zo.tasks import tokenize
from zo.tasks.checks import check_splits, check_tokens
from zo.tasks.config import TaskError
from zo.tasks.data import complete, load_splits

LLAMA_3 = (
    "{% for m in messages %}{% if loop.index0 == 0 %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
SMOLLM2 = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' + '\n' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINK = "<think>\n\n</think>\n\n"


def plain(template):
    return re.sub(r"\{% (end)?generation %\}", "", template)


TALK = [
    ("system", "be good"),
    ("user", "first q"),
    ("assistant", "film"),
    ("user", "q"),
    ("assistant", " good film "),
]
CALL = {
    "role": "assistant",
    "tool_calls": [{"type": "function", "function": {"name": "of", "arguments": {"a": 1}}}],
}
CALLS = [("user", "q"), CALL, ("tool", "17"), ("assistant", "it is 17")]
TOOLS = [{"type": "function", "function": {"name": "of", "parameters": {"type": "object"}}}]


def messages(talk):
    return [t if isinstance(t, dict) else {"role": t[0], "content": t[1]} for t in talk]


def found(template, talk, tmp_path, **given):
    """Returns the tokenizer, the task, its splits and the first training example of a file of equal conversations."""
    more = {"tools": given.pop("tools")} if "tools" in given else {}
    rows = [{"messages": messages(talk), **more}] * 9
    task, _ = complete(own(write(tmp_path / "x.jsonl", rows), "completion", **given))
    words, splits = tokenizer(), load_splits(task)
    words.chat_template = template
    return words, task, splits, tokenize(task, words, splits.train, "decoder")[0]


def trained(words, example):
    """Returns the texts of the runs of trained tokens."""
    (ids,) = example.candidate_ids
    marks = "".join("ft"[of] for of in example.trained)
    return [words.decode(ids[m.start() : m.end()]) for m in re.finditer("t+", marks)]


@pytest.mark.parametrize(
    ("template", "mine", "talk"),
    [
        (LLAMA_3, plain(LLAMA_3), TALK),
        (SMOLLM2, plain(SMOLLM2), TALK),
        (LLAMA_3, LLAMA_3, TALK),
        (trl.qwen2_5_training_chat_template, trl.qwen2_5_chat_template, TALK),
        (trl.qwen2_5_training_chat_template, trl.qwen2_5_chat_template, CALLS),
        (trl.qwen3_training_chat_template, trl.qwen3_chat_template, TALK),
        (trl.qwen3_training_chat_template, trl.qwen3_chat_template, CALLS),
        (trl.llama3_training_chat_template, trl.llama3_chat_template, TALK),
    ],
)
def test_all_of_the_assistants_messages_are_trained_where_trl_trains_them(
    template, mine, talk, tmp_path
):
    """TRL's mask is that of the template's generation blocks; templates in use have none.

    TRL's template for Qwen3 writes an empty thought before every message, the model's own before the last. That for
    Qwen2.5 trains the line break that asks for the message, too.
    """
    words, _, splits, example = found(mine, talk, tmp_path, turns="all", max_length=2000)
    own = splits.train[0].fields
    words.chat_template = template
    masked = words.apply_chat_template(
        own["messages"], return_dict=True, return_assistant_tokens_mask=True
    )
    marks = "".join(map(str, masked["assistant_masks"]))
    theirs = [
        words.decode(masked["input_ids"][m.start() : m.end()]) for m in re.finditer("1+", marks)
    ]
    assert len(theirs) == 2
    own = trained(words, example)
    mine, theirs = ([t.lstrip("\n").removeprefix(THINK) for t in of] for of in (own, theirs))
    assert mine == theirs


def test_the_last_message_has_the_tokens_of_a_run_of_it_alone(tmp_path):
    """And the log shows which earlier ones are left out."""
    words, task, splits, last = found(plain(SMOLLM2), TALK, tmp_path, max_length=2000)
    _, _, _, every = found(plain(SMOLLM2), TALK, tmp_path, turns="all", max_length=2000)
    assert [*last.prompt_ids, *last.candidate_ids[0]] == [
        *every.prompt_ids,
        *every.candidate_ids[0],
    ]
    assert words.decode(last.candidate_ids[0]) == trained(words, every)[-1]
    assert last.trained == ()
    assert every.tokens > last.tokens == len(last.candidate_ids[0])
    notes = check_splits(task, splits)
    assert (
        "task.turns=last: 7 earlier messages of the assistant in 7 training conversations"
        in notes[-1]
    )
    task.turns = "all"
    assert "task.turns" not in "".join(check_splits(task, splits))


def test_tools_and_their_calls_go_to_the_template_and_are_no_empty_turns(tmp_path):
    words, task, splits, example = found(
        trl.qwen3_chat_template, CALLS, tmp_path, tools=TOOLS, max_length=2000
    )
    text = words.decode([*example.prompt_ids, *example.candidate_ids[0]])
    for said in (
        '<tools>\n{"type": "function", "function": {"name": "of"',
        '"arguments": {"a": 1}}',
    ):
        assert said in text
    assert "empty" not in "".join(check_splits(task, splits))


R1 = SMOLLM2.replace(
    "m['content'] + '<|im_end|>'", "(m['content'] or '').split('</think>')[-1] + '<|im_end|>'"
)
LOST = [
    ([("user", "q"), ("assistant", "<think>of a</think>film")], {}, "the trained message"),
    ([("user", "q"), {"role": "assistant", "content": "film", "thoughts": "of a"}], {}, "the key 'thoughts'"),
    ([("user", "q"), {**CALL, "content": None}], {}, "the key 'tool_calls'"),
    ([("user", "q"), ("assistant", "film")], {"tools": TOOLS}, "the column tools"),
    ([("user", "q"), ("assistant", "film")], {}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("talk", "given", "said"), LOST)
def test_what_a_template_leaves_out_of_a_row_is_said(talk, given, said, tmp_path):
    words, task, splits, example = found(plain(R1), talk, tmp_path, max_length=2000, **given)
    encoded = tokenize(task, words, splits.train, "decoder")
    notes = check_tokens(task, {"train": splits.train}, {"train": encoded})
    assert [f"leaves out {said}" in note for note in notes] == [True] * bool(said)
    if said != "the trained message":
        assert example.references == (messages(talk)[-1]["content"] or "<|im_end|>\n",)


def test_arguments_that_a_template_quotes_once_more_are_refused(tmp_path):
    call = {"name": "of", "arguments": '{"a": 1}'}
    talk = [("user", "q"), {"role": "assistant", "tool_calls": [{"function": call}]}]
    with pytest.raises(TaskError, match=r'row \d: .*writes the arguments {"a": 1} in quotes'):
        found(trl.qwen2_5_chat_template, talk, tmp_path, max_length=2000)


def test_a_long_conversation_loses_its_beginning_and_one_without_answer_is_refused(tmp_path):
    _, _, _, every = found(plain(SMOLLM2), TALK, tmp_path, turns="all", max_length=2000)
    _, _, _, cut = found(plain(SMOLLM2), TALK, tmp_path, turns="all", max_length=40)
    whole, kept = ([*e.prompt_ids, *e.candidate_ids[0]] for e in (every, cut))
    assert kept == whole[-len(kept) :]
    assert cut.cut == len(whole) - 40 > 0
    bad = "{% for m in messages %}{{ loop.length }}{{ m['content'] }}{% endfor %}"
    with pytest.raises(TaskError, match=r"row \d: the chat template"):
        found(bad, TALK, tmp_path, turns="all")


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        ([("System", "be good"), ("Human", "q"), ("ASSISTANT", "a")], 0),
        ([("user", "q"), ("tool", "17"), ("assistant", "a")], 7),
    ],
)
def test_messages_of_roles_that_a_template_does_not_know_are_said(talk, said, tmp_path):
    known = "{% for m in messages if m.role in ('system', 'user', 'assistant') %}{{ m.content }} {% endfor %}"
    words, task, splits, example = found(known, talk, tmp_path)
    assert ("be good q " in example.prompt) == (not said)
    encoded = tokenize(task, words, splits.train, "decoder")
    notes = check_tokens(task, {"train": splits.train}, {"train": encoded})
    assert [f"rewrites {said} of 14 train messages" in note for note in notes] == [True] * (
        said > 0
    )
