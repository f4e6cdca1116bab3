"""Texts that reasoning-gym's scorers would run as Python: those that do harm never reach them."""

import pytest

from tests.rewards.test_calls import request
from zo.rewards import filters, named

HOSTILE = (
    *("9**9**9", "9**999", "((9**99)**99)**99", "factorial(200000)", "10000000!", "1e9**99**2"),
    *("open('x', 'w')", "__import__('os')", "().__class__", "x.__class__", "exit()", "lambda: 0"),
    *("S('1')", "sympify('1')", "sin(x, evaluate=False)", "Integral(x).doit()", "x[0]", "'a'*9"),
    *(" open('x','w')", "\topen('x','w')", "1;2", "1\n2", "x:=1", "{**x}", "*x", "1 if 1 else 2"),
    *("-" * 3000 + "1", "(" * 300 + "1" + ")" * 300, "1,2", "９", "True", "1j", "", "f(x)"),
)
SUMS = ("40*(94 - 90) + 83", " -1/2 ", "1.5*2", "7")
FORMULAS = ("7*X**9 - x**3/2 + C", "x*asin(3*x) + sqrt(1 - 9*x**2)/3", "x**(-1/2)", "2**x")
FORMULAS += ("exp(x)*pi",)
LISTS = ("2 2 2\n0 9", "['A', 'B']", "[[1, -2], [3, 4]]", "_ Q _\n_ _ Q", "CEADB")
CODE = ("open('x')", "[1 for a in '12']", "[].x", "lambda: 0", "{1}", "'a'*9", "x\\", "[" * 3000)
CODE += ("exit()", "a = 1")


@pytest.mark.parametrize(
    ("passes", "harmless", "others"),
    [
        (filters.is_sum, SUMS, HOSTILE + FORMULAS),
        (filters.is_formula, SUMS + FORMULAS, HOSTILE),
        (filters.is_literal, LISTS, CODE),
    ],
)
def test_nothing_but_numbers_known_functions_and_lists_passes(passes, harmless, others):
    assert [text for text in harmless if not passes(text)] == []
    assert [text for text in others if passes(text)] == []


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
        return grader(request(texts, **columns), None)

    answers = [entry["answer"] for entry in entries]
    right = [items.score_answer(a, e) for a, e in zip(answers, entries, strict=True)]
    assert scores(answers, entries) == right == [1] * 6
    hostile = [*HOSTILE, "open('written', 'w').close() or 1"]
    given = scores(hostile, entries[:1] * len(hostile))
    nothing = items.score_answer(named.NO_ANSWER, entries[0])
    valid = 0.05  # countdown's for a sum of other numbers
    assert {*given} <= {nothing, valid}
    assert not (tmp_path / "written").exists()
