"""Problems that reasoning-gym generates: the same ones every time, and no question in two splits."""

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.support.tiny_models import tokenizer
from zo.tasks import TaskConfig, TaskError, load_splits, tokenize
from zo.tasks.checks import check_answers
from zo.tasks.data import load_file

pytest.importorskip("reasoning_gym")
SMALL = {"train_size": 12, "validation_size": 5, "test_size": 5}


def task(name, **given):
    asked = {"kind": "prompts", "prompt": "{question}\n", "references": "answer", "label": None}
    return TaskConfig(name=name, path=f"reasoning_gym:{name}", **{**asked, **SMALL, **given})


def questions(examples):
    return [e.columns["question"] for e in examples]


NAMES = ["acre", "chain_sum", "gsm_symbolic", "list_functions", "pool_matrix", "word_ladder"]
NAMES += ["knights_knaves"]
"""Some whose items come from a list of the data set's size, and one that seeds numpy."""


def check(name, **given):
    before = np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    one = load_splits(task(name, **given))
    other = load_splits(task(name, train_set_seed=1, **given))
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before  # noqa: NPY002
    assert [len(of) for of in (one.train, one.validation, one.test)] == [12, 5, 5]
    splits = [{*questions(of)} for of in (one.train, one.validation, one.test)]
    assert len(set.union(*splits)) == sum(map(len, splits)), "no question in two splits"
    assert [len(of) for of in splits[1:]] == [5, 5], "none twice in one that evaluates"
    rows = [e.row for of in vars(one).values() for e in of]
    assert len({*rows}) == len(rows)
    assert (one.validation, one.test) == (other.validation, other.test)
    assert {e.row for e in one.train}.isdisjoint(e.row for e in other.train)
    return one


@pytest.mark.parametrize("name", NAMES)
def test_splits_are_of_other_seeds_and_share_no_question(name):
    one = check(name)
    random.random()
    assert load_splits(task(name)) == one


@pytest.mark.process
@pytest.mark.parametrize("name", range(0, 105, 15))
def test_this_holds_of_every_task(name):
    from reasoning_gym.factory import DATASETS

    slow = {"arc_agi", "knight_swap", "quantum_lock", "zebra_puzzles", "futoshiki", "sokoban"}
    for one in sorted(DATASETS)[name : name + 15]:
        if one != "composite" and one not in slow:
            check(one)


def test_where_there_are_few_questions_splits_share_none_or_say_so():
    few = {"options": {"min_terms": 2, "max_terms": 2, "max_digits": 1}}
    splits = load_splits(task("chain_sum", **few, train_size=300, validation_size=40, test_size=40))
    assert {*questions(splits.train)}.isdisjoint(questions(splits.test + splits.validation))
    with pytest.raises(TaskError, match=r"^task.validation_size=150: .*chain_sum"):
        load_splits(task("chain_sum", **few, validation_size=150, test_size=100))


def test_parts_of_metadata_are_columns_and_questions_messages():
    few = {"min_numbers": 3, "max_numbers": 3}
    asked = task("countdown", prompt="{numbers} -> {target}:", options=few)
    example = load_splits(asked).train[0]
    given = example.columns["metadata"]
    (found,) = tokenize(asked, tokenizer(), [example], "decoder")
    assert found.prompt == f"{given['numbers']} -> {given['target']}:"
    assert found.references == (example.columns["answer"],)
    assert found.columns["question"].startswith("Calculate ")
    chat = load_splits(task("chain_sum", messages="messages")).train[0]
    asked = [{"role": "user", "content": chat.columns["question"]}]
    tokens = tokenizer()
    tokens.chat_template = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}{% endfor %}"
    (found,) = tokenize(task("chain_sum", messages="messages"), tokens, [chat], "decoder")
    assert chat.fields["messages"] == found.messages == asked
    assert found.prompt == f"<user> {chat.columns['question']}"


def test_a_file_of_questions_needs_no_answers(tmp_path):
    (tmp_path / "new.csv").write_text("question\n1 + 1 =\n")
    (example,) = load_file(task("chain_sum"), tmp_path / "new.csv").examples
    assert example.fields == {"question": "1 + 1 ="}


def test_a_mixture_of_tasks_is_one():
    parts = [{"name": "chain_sum"}, {"name": "gcd", "weight": 3.0, "config": {"max_numbers": 2}}]
    found = check("composite", options={"datasets": parts})
    assert {e.columns["metadata"]["source_dataset"] for e in found.train} == {"chain_sum", "gcd"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "chain_sums"}, r"^task\.name=chain_sums: .*did you mean chain_sum"),
        ({"options": {"terms": 2}}, r"^task\.options={'terms': 2}: chain_sum: .*argument 'terms'"),
        ({"options": {"min_terms": 9}}, r"^task\.options=.*max_terms must be >= min_terms"),
        ({"options": {"seed": 2}}, r"^task\.options={'seed': 2}: give task.train_set_seed"),
        ({"prompt": "{qestion}"}, r"^task\.prompt: items of chain_sum have no 'qestion', only an"),
        ({"train_size": None}, r"^task\.train_size=null: must be 1 to \d+, since"),
        ({"train_set_seed": 4000}, r"^task\.train_set_seed=4000: must be below 4000"),
    ],
)
def test_what_cannot_be_generated_is_one_sentence(given, said):
    asked = task(given.pop("name", "chain_sum"), **given)
    with pytest.raises(TaskError, match=said) as caught:
        load_splits(asked)
    assert "\n" not in str(caught.value)


def test_a_prompt_with_its_answer_is_told():
    told = task("gcd", prompt="{question} {answer}\n")
    for asked, count in ((told, 1), (replace(told, prompt="{question}\n"), 0)):
        encoded = tokenize(asked, tokenizer(), load_splits(asked).train, "decoder")
        assert len(check_answers(encoded)) == count
