"""Texts that reasoning-gym's scorers would run as Python: those that do harm never reach them."""

import pytest

from zo.rewards import filters, named
from zo.rewards.calls import Request

HOSTILE = (
    *("9**9**9", "9**999", "((9**99)**99)**99", "factorial(200000)", "10000000!", "1e9**99**2"),
    *("open('x', 'w')", "__import__('os')", "().__class__", "x.__class__", "exit()", "lambda: 0"),
    *(
        "S('1')",
        "sympify('1')",
        "sin(x, evaluate=False)",
        "Integral(x).doit()",
        "x[0]",
        "'a'*9",
        "f(x)",
    ),
    *(" open('x','w')", "\topen('x','w')", "1;2", "1\n2", "x:=1", "{**x}", "*x", "1 if 1 else 2"),
    *("-" * 3000 + "1", "(" * 300 + "1" + ")" * 300, "1,2", "９", "True", "1j", ""),
)


@pytest.mark.parametrize("text", HOSTILE)
def test_an_expression_of_anything_but_numbers_and_known_functions_is_refused(text):
    assert not filters.is_sum(text)
    assert not filters.is_formula(text)


def test_sums_and_formulas_pass():
    for text in ("40*(94 - 90) + 83", " -1/2 ", "1.5*2", "7"):
        assert filters.is_sum(text)
        assert filters.is_formula(text)
    for text in (
        "7*X**9 - x**3/2 + C",
        "x*asin(3*x) + sqrt(1 - 9*x**2)/3",
        "x**(-1/2)",
        "2**x",
        "exp(x)*pi",
    ):
        assert not filters.is_sum(text)
        assert filters.is_formula(text)


@pytest.mark.parametrize(
    "text",
    [
        "open('x')",
        "[1 for a in '12']",
        "[].x",
        "lambda: 0",
        "{1}",
        "'a'*9",
        "x\\",
        "[" * 3000,
        "exit()",
        "a = 1",
    ],
)
def test_a_text_that_does_more_than_list_things_is_refused(text):
    assert not filters.is_literal(text)


def test_lists_and_tables_pass():
    for text in ("2 2 2\n0 9", "['A', 'B']", "[[1, -2], [3, 4]]", "_ Q _\n_ _ Q", "CEADB"):
        assert filters.is_literal(text)


@pytest.mark.process
@pytest.mark.parametrize("name", named.EVALUATED)
def test_right_answers_keep_their_scores_and_hostile_ones_get_that_of_no_answer(
    name, tmp_path, monkeypatch
):
    gym = pytest.importorskip("reasoning_gym")
    monkeypatch.chdir(tmp_path)
    items = gym.create_dataset(name, seed=3, size=6)
    grader, entries = named.ReasoningGym(name, {}), [items[i] for i in range(6)]

    def scores(texts, of):
        columns = {key: [entry[key] for entry in of] for key in ("question", "answer", "metadata")}
        n = len(texts)
        return grader(Request([""] * n, None, texts, [[]] * n, columns, [[]] * n, {}), None)

    answers = [entry["answer"] for entry in entries]
    right = [items.score_answer(a, e) for a, e in zip(answers, entries, strict=True)]
    assert scores(answers, entries) == right == [1] * 6
    hostile = [*HOSTILE, "open('written', 'w').close() or 1"]
    given = scores(hostile, entries[:1] * len(hostile))
    nothing = items.score_answer(named.NO_ANSWER, entries[0])
    valid = 0.05  # countdown's for a sum of other numbers
    assert {*given} <= {nothing, valid}
    assert not (tmp_path / "written").exists()
