"""How reward functions are called: by TRL's contract, with prompts and texts, and what is made of their numbers."""

import asyncio
import inspect
import json
import math
import re
from pathlib import Path

import pytest

from zo.rewards import calls, named
from zo.rewards.calls import Function, Request, UnusableError, rate
from zo.rewards.tally import Ratings, Tally

ROOT = Path(__file__).parents[2]
CHAT = [[{"role": "user", "content": "1 + 2?"}], [{"role": "user", "content": "1 + 3?"}]]


def request(texts, messages=None, **columns):
    n = len(texts)
    references = columns.pop("references", [[]] * n)
    ids = [[1] * len(text) for text in texts]
    return Request(["asked"] * n, messages, texts, ids, columns, references, {"global_step": 7})


def function(call, columns=()):
    """Returns a function as if it had been loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "load", lambda address: call)
        return Function("rules.py:score", columns)


def values(call, given):
    return rate(function(call, [*given.columns]), given)["values"]


def test_a_function_without_trls_names_gets_prompts_and_texts():
    given = request(["a", "bcd"], messages=CHAT, prompts=[0, 0])
    assert values(lambda prompts, texts: [len(prompts[0] + t) for t in texts], given) == [6, 8]
    assert values(lambda p, t, more=1: [more] * len(t), given) == [1, 1]
    assert values(lambda *both: [len(both)] * 2, given) == [2, 2]


def test_keywords_are_those_of_trl():
    """Also those that a function without `**kwargs` names; columns of the rows that say the same twice are left out."""
    seen = {}

    def score(**given):
        seen.update(given)
        return [None] * len(given["completions"])

    columns = {"answer": [3, 4], "prompt": ["x", "y"], "completion": ["x", "y"]}
    assert values(score, request(["3", "5"], **columns)) == [None, None]
    assert seen.pop("trainer_state").global_step == 7
    assert callable(seen.pop("log_extra"))
    assert callable(seen.pop("log_metric"))
    of_each = {"prompts": ["asked"] * 2, "completions": ["3", "5"], "completion_ids": [[1], [1]]}
    assert seen == {**of_each, "answer": [3, 4]}
    values(score, request(["3", "5"], CHAT, **columns))
    assert seen["prompts"] == CHAT
    assert seen["completions"][1] == [{"role": "assistant", "content": "5"}]

    def exact(completions, answer, weight=2):
        return [weight * (c == str(a)) for c, a in zip(completions, answer, strict=True)]

    assert values(exact, request(["3", "5"], **columns)) == [2, 0]


def test_a_function_may_be_asynchronous_or_an_object_and_log():
    class Judge:
        async def __call__(self, completions, log_extra, log_metric, **_):
            await asyncio.sleep(0)
            log_extra("thought", [f"about {c}" for c in completions])
            log_extra("of another length", [1])
            log_metric("share", 0.25)
            return [1.0] * len(completions)

    found = rate(function(Judge()), request(["a", "b"]))
    assert found["values"] == [1, 1]
    assert found["extra"] == {"thought": ["about a", "about b"]}
    assert found["metrics"] == {"share": [0.25]}


def test_a_metric_costs_no_reward_and_columns_of_any_value_are_logged():
    """What is no finite number is left out and counted; the answer is one that JSON can hold."""
    odd = [math.nan, math.inf, 10**400, "much", None, 1e308, 1]

    def score(completions, log_extra, log_metric, **_):
        for value in odd:
            log_metric("odd", value)
        log_extra("large", [10**5000, -(10**30)])
        return [5.0, 6.0]

    found = json.loads(json.dumps(rate(function(score), request(["a", "b"]))))
    assert (found["values"], found["bad"]) == ([5, 6], {})
    assert (found["metrics"], found["dropped"]) == ({"odd": [1e308, 1]}, 5)
    assert found["extra"] == {"large": ["int", str(-(10**30))]}
    tally = Tally()
    tally.see(Ratings([5.0], metrics={"odd": [1e308] * 3}, dropped=2), [0], ["a"], [1], 0)
    row = tally.row([-5.0])
    assert (row["metric/odd"], row["reward/dropped"]) == (pytest.approx(1e308), 2)
    assert row["reward/errors"] == 0


LATEX = [r"\frac{1}{3}", r"\frac{1}{3}", ""]
SAID = [r"<think>x</think> \boxed{\frac{1}{3}}", r"\boxed{\frac{1}{2}}", r"\boxed{1}"]
SHIPPED = {
    "accuracy_reward": ({}, [1, 0, None]),
    "reasoning_accuracy_reward": ({}, [1, 0, 0]),
    "get_cosine_scaled_reward": ({"max_len": 1000}, None),
    "think_format_reward": ({}, [1, 0, 0]),
    "get_repetition_penalty_reward": ({}, None),
    "get_soft_overlong_punishment": ({"max_completion_len": 30, "soft_punish_cache": 15}, None),
}


def test_all_functions_that_trl_ships_run_unchanged():
    rewards = pytest.importorskip("trl.rewards")
    assert {name for names in rewards._import_structure.values() for name in names} == {*SHIPPED}
    given = request(SAID, messages=[CHAT[0]] * 3, solution=LATEX)
    completions = [[{"content": text}] for text in SAID]
    wanted = {"completions": completions, "solution": LATEX, "completion_ids": given.completion_ids}
    for name, (options, expected) in SHIPPED.items():
        made = getattr(rewards, name)
        call = made(**options) if name.startswith("get_") else made
        taken = {k: v for k, v in wanted.items() if k in inspect.signature(call).parameters}
        direct = call(**taken)
        assert values(call, given) == direct
        assert expected in (None, direct)
    assert Function("trl.rewards:think_format_reward", [])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda completions, solution: 0, r"needs the argument solution, and the data have no such column \(there"),
        (lambda completions, prompt: 0, "needs the argument prompt"),
        (lambda texts, answer: 0, r"takes \(texts, answer\); a function takes \(prompts, texts\), or completions and"),
        (lambda completion, answer: 0, r"takes \(completion, answer\)"),
        (lambda p, a: 0, r"takes \(p, a\)"),
        (lambda texts: 0, r"takes \(texts\); a function takes \(prompts, texts\), or completions"),
        (lambda texts, prompts: 0, r"takes \(texts, prompts\); a function takes \(prompts, texts\)"),
        (lambda p, t, answer: 0, r"takes \(p, t, answer\)"),
        (lambda p, t, *, answer: 0, r"takes \(p, t, answer\)"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_given_are_named(call, said):
    with pytest.raises(UnusableError, match=said):
        function(call, ["a", "completion", "prompt"])


def raising(error):
    def score(prompts, texts):
        raise error

    return score


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (raising(KeyError("x")), "raise", "test_calls.py:"),
        (raising(SystemExit(3)), "raise", "SystemExit: 3"),
        (raising(MemoryError()), "memory", "MemoryError"),
        (lambda p, t: [1], "length", "returns 1 numbers for 2 texts; one for each is needed"),
        (lambda p, t: [len(t), t.pop()][:1], "length", "returns 1 numbers for 2 texts"),
        (lambda p, t: {2.0, 1.0}, "raise", "returns a set; a list of numbers is needed"),
        (lambda p, t: {1.0: "a", 2.0: "b"}, "raise", "returns a dict; a list"),
        (lambda p, t: "01", "raise", "returns a str; a list"),
        (lambda p, t: 0.5, "raise", "'float' object is not iterable"),
    ],
)
def test_a_call_that_gives_no_numbers_says_why(call, kind, said):
    found = rate(function(call), request(["a", "b"]))
    assert found["failed"] == kind
    assert said in found["said"]


def test_a_text_without_a_usable_number_is_told_from_the_others():
    odd = [1, True, None, math.nan, math.inf, "good", ValueError("bad"), object()]
    found = rate(function(lambda p, t: odd), request(["x"] * len(odd)))
    assert found["values"] == [1, 1, None, None, None, None, None, None]
    assert [*found["bad"]] == [3, 4, 5, 6, 7]
    assert found["bad"][3] == ["value", "returns nan; a finite number is needed"]
    assert found["bad"][6] == ["raise", "ValueError: bad"]


def test_a_file_imports_from_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "beside_it.py").write_text("def lengths(prompts, texts): return [*map(len, texts)]")
    rules = tmp_path / "rules.py"
    rules.write_text("from beside_it import lengths as score")
    assert rate(Function(f"{rules}:score", []), request(["ab"]))["values"] == [2]
    for address, said in (
        (f"{rules}:other", "has no function other"),
        (f"{tmp_path}/none.py:score", "No such file"),
        ("no_such_module:score", "No module named 'no_such_module'"),
    ):
        with pytest.raises(UnusableError, match=said):
            Function(address, [])


def test_math_verify_compares_with_every_reference():
    pytest.importorskip("math_verify")
    grader = named.grader("math_verify", [], {}, timeout=10)
    texts = [
        "the answer is 0.5",
        r"\boxed{\frac{2}{4}}",
        "7",
        "nothing",
        "3",
        "$(1,2)$",
        r"$2\pi$",
        "2",
    ]
    references = [
        ["1/2"],
        ["0.3", r"\frac{1}{2}"],
        ["8"],
        ["1"],
        ["no number"],
        ["(1, 2)"],
        [r"2\pi"],
        [r"2\pi"],
    ]
    expected = [1, 1, 0, 0, None, 1, 1, 0]
    assert rate(grader, request(texts, references=references))["values"] == expected


def test_an_answer_is_what_stands_in_the_last_tags_or_the_whole_text():
    assert named.answer_of("<answer>1</answer> or <answer> 2\n</answer>.") == "2"
    assert named.answer_of(" 3 \n") == "3"


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    for name in ("math_verify", "reasoning_gym"):
        with pytest.raises(UnusableError, match=f"{name} is not installed"):
            named.grader(name, [], {"name": "gcd", "options": {}}, 1)


def test_the_functions_of_the_documentation_and_the_examples_run():
    given = request(["a great film", "a film " * 9], answer=["a great film", "x"])
    page = (ROOT / "docs" / "rewards.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    made = {}
    exec(block, made)
    assert values(made["score"], given) == [-8, -43]
    assert values(made["exact"], given) == [1, 0]
    for name, expected in (("brief", [0, -2.15]), ("praise", [1, 0])):
        found = rate(Function(f"{ROOT}/examples/graders.py:{name}", ["answer"]), given)
        assert found["values"] == expected
    assert found["extra"] == {"words": [3, 18]}
