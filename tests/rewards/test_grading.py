"""Grading in processes: what a hostile text does to its grader, and that nothing of it reaches the run."""

import datetime
import os
import pickle
import signal
import subprocess
import sys

import psutil
import pytest

from tests.rewards.test_calls import request
from tests.support.waiting import wait_for
from zo.rewards.pool import Pool, Setup, Task
from zo.rewards.rating import Rater, RewardError
from zo.tasks import TaskConfig, TaskError
from zo.tasks.objective import ObjectiveConfig

pytestmark = pytest.mark.process

RULES = """
import os, signal, subprocess, sys, time
def lengths(prompts, texts):
    return [len(t) for t in texts]
def run(prompts, texts):
    return [float(eval(t)) for t in texts]
def slow(prompts, texts):
    time.sleep(0.1 * len(texts))
    return [len(texts)] * len(texts)
def token():
    frame = sys._getframe()
    while "token" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["token"]
def write(line):
    return os.write(max(map(int, os.listdir("/proc/self/fd"))), line.replace("TOKEN", token()).encode() + b"\\n")
def answers(completions, answer, **_):
    return [None if a is None else float(c == a) for c, a in zip(completions, answer)]
def shared(prompts, texts):
    return [len(texts)]
def alone(prompts, texts):
    (text,) = texts
    return [len(text)]
def day(completions, when, **_):
    return [w.day for w in when]
"""
LIMIT_S = 2.0

HOSTILE = {
    "9**9**9": "hang",
    "time.sleep(100)": "hang",
    "signal.pause()": "hang",
    "[os.fork() for _ in range(4)] and time.sleep(100)": "hang",
    "len(bytearray(8 << 30))": "memory",
    "1/0": "raise",
    "sys.exit(0)": "raise",
    "(lambda f: f(f))(lambda f: f(f))": "raise",
    "open('OUTSIDE', 'w').write('x')": "raise",
    "__import__('socket').create_connection(('127.0.0.1', 9), 1)": "raise",
    "__import__('socket').socket(__import__('socket').AF_UNIX)": "raise",
    "os.kill(os.getppid(), 9) or os._exit(3)": "exit",
    "os.abort()": "exit",
    "os.kill(os.getpid(), 9) or __import__('ctypes').string_at(0)": "exit",
    "os.closerange(3, 256) or time.sleep(100)": "exit",
    "float('nan')": "value",
}
"""Text -> what becomes of it."""

FORGED = (
    *("[1]", "[" * 99_999, "{", "7", '{"values": [9], "bad": {}, "extra": {}, "metrics": {}}'),
    *(
        f'{{"token": "TOKEN", {rest}}}'
        for rest in (
            '"values": [1, 2], "bad": {}, "extra": {}, "metrics": {}',
            '"values": [1], "bad": {"7": ["a", "b"]}, "extra": {}, "metrics": {}',
            '"values": [1e999], "bad": {}, "extra": {}, "metrics": {}',
            '"values": [1], "bad": {}, "extra": {"a": []}, "metrics": {}',
            '"values": [1], "bad": {}, "extra": {}, "metrics": {"a": ["nan"]}',
            *('"failed": "unusable", "said": "x"', '"values": 3', '"values": ["x"]'),
            '"values": ' + "[" * 500 + "]" * 500,
        )
    ),
)
"""What a text may write in place of its grader's answer."""

HARMLESS = {
    "open('inside', 'w').write('x')": 1,
    "print('said') or 2": 2,
    "os.fork() and 3 or 3": 3,
    "subprocess.Popen(['sleep', '1000'], start_new_session=True).pid > 0": 1,
    "subprocess.run(['true']).returncode == 0": 1,
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    file = tmp_path_factory.mktemp("rules") / "rules.py"
    file.write_text(RULES)
    return file


@pytest.fixture(scope="module")
def grading(rules):
    return rater(rules, "run", on_error=-1)


def rater(rules, *functions, **settings):
    weights = {f"{rules}:{name}": 10.0**i for i, name in enumerate(functions)}
    settings = {"timeout": LIMIT_S, "workers": 1, **settings}
    objective = ObjectiveConfig("reward", functions=weights, **settings)
    assert not objective.problems()
    return Rater(objective, TaskConfig(name="own", path="x", kind="prompts"))


def rate(of, texts, **columns):
    return of.rate(request(texts, **columns), range(100, 100 + len(texts)))


def children(pid):
    return psutil.Process(pid).children(recursive=True)


def wait_for_the_end_of(processes):
    def alive(process):
        try:
            return process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    wait_for(lambda: not any(map(alive, processes)), "the end of graders")


@pytest.mark.parametrize("sandbox", [True, False])
def test_hostile_texts_are_found_counted_and_survived(rules, sandbox):
    """Among texts that are none. Without a sandbox there are no barriers, and none is tried."""
    outside = rules.with_name("outside")
    hostile = {
        text.replace("OUTSIDE", str(outside)): of
        for text, of in HOSTILE.items()
        if sandbox or not any(barred in text for barred in ("kill", "socket", "OUTSIDE"))
    }
    texts = [t for pair in zip(hostile, ["5"] * len(hostile), strict=True) for t in pair]
    grading = rater(rules, "run", on_error=-1, sandbox=sandbox)
    found = rate(grading, texts)
    assert found.totals == [-1, 5] * len(hostile)
    assert {texts[failure.index]: failure.kind for failure in found.failures} == hostile
    assert not outside.exists()
    assert rate(grading, [*HARMLESS, "7"]).totals == [*HARMLESS.values(), 7]


@pytest.mark.parametrize("line", FORGED)
def test_a_forged_answer_is_a_failure_of_its_text_alone_or_nothing(grading, line):
    found = rate(grading, ["5", f"write({line!r})", "6", "7"])
    assert found.totals[::2] + found.totals[3:] == [5, 6, 7]
    if "TOKEN" in line:
        assert found.totals[1] == -1
        assert [(failure.index, failure.kind) for failure in found.failures] == [(1, "raise")]
    else:
        assert found.totals[1] > 0, "what the text is worth"
    assert rate(grading, ["8"]).totals == [8]


def test_what_a_text_leaves_behind_or_prints_is_counted_and_ended(rules):
    grading = rater(rules, "run")
    mark = f"31415{os.getpid()}"
    found = rate(grading, [t.replace("1000", mark) for t in HARMLESS])
    assert found.left >= 1
    assert found.printed == ["said\n"]
    every = psutil.process_iter(["cmdline"])
    left = [one for one in every if mark in (one.info["cmdline"] or ())]
    wait_for_the_end_of(left)  # a killed process is there for a moment


def test_the_run_stops_at_the_first_text_that_has_no_number(rules):
    says = r"rules\.py:run: .*rules\.py:6: ZeroDivisionError: .* \(row 101\)$"
    with pytest.raises(RewardError, match=says) as caught:
        rate(rater(rules, "run"), ["1", "1/0", "2", "sys.exit()"])
    assert "line 6, in run" in str(caught.value.__cause__)
    with pytest.raises(RewardError, match=r"took longer than 2 s \(row 102\)"):
        rate(rater(rules, "run"), ["1", "2", "9**9**9"])


@pytest.mark.parametrize(
    ("name", "says"),
    [("shared", "returns 1 numbers for 3 texts"), ("alone", "ValueError: too many values")],
)
def test_a_function_that_rates_no_several_texts_stops_the_run(rules, name, says):
    """Though it rates each of them alone."""
    with pytest.raises(RewardError, match=f"rules.py:{name}: .*{says}"):
        rate(rater(rules, name), ["a", "bc", "d"])


def test_several_functions_are_weighted_and_one_that_knows_nothing_is_left_out(rules):
    found = rate(rater(rules, "answers", "lengths"), ["a", "bc", "d"], answer=["a", None, "x"])
    assert found.totals == [1 + 10, 20, 0 + 10]
    assert found.values == {"answers": [1, None, 0], "lengths": [1, 2, 1]}
    assert rate(rater(rules, "answers"), ["a", "b"], answer=["a", None]).totals == [1, None]


def test_numbers_depend_neither_on_how_many_processes_there_are_nor_on_which_one_rates(rules):
    texts = [f"{i} + {i % 7}" if i % 10 else "1/0" for i in range(150)]
    found = [rate(rater(rules, "run", on_error=0, workers=n), texts) for n in (1, 3)]
    assert found[0].totals == found[1].totals
    assert found[0].failures == found[1].failures


def test_a_slow_function_is_called_with_fewer_texts_and_rates_all(rules):
    grading = rater(rules, "slow", timeout=1.0)
    assert rate(grading, ["x"] * 15).totals == [1] * 15  # each alone: together they take too long
    assert 1 < max(rate(grading, ["x"] * 15).totals) < 10


def test_what_cannot_be_loaded_is_one_sentence(tmp_path):
    for name, body, said in (
        ("raises", "1/0", "raises.py: ZeroDivisionError: division by zero"),
        ("leaves", "import os; os._exit(4)", "its module ended the process with status 4 while it"),
    ):
        (tmp_path / f"{name}.py").write_text(body)
        with pytest.raises(TaskError, match=said):
            rater(tmp_path / f"{name}.py", "score").start([])


def test_helpers_that_a_module_starts_live_on(tmp_path):
    """A process of the module's own, also one of `multiprocessing`, whose tracker comes with it."""
    (tmp_path / "rules.py").write_text(
        "import multiprocessing, subprocess\n"
        "helper = subprocess.Popen(['cat'], stdin=-1, stdout=-1, text=True, bufsize=1)\n"
        "def score(prompts, texts):\n"
        "    queue = multiprocessing.get_context('fork').Queue()\n"
        "    queue.put(len(texts))\n"
        "    helper.stdin.write('4\\n')\n"
        "    return [float(helper.stdout.readline()) + queue.get()] * len(texts)\n"
    )
    grading = rater(tmp_path / "rules.py", "score")
    found = [rate(grading, ["a"]) for _ in range(3)]
    assert [of.totals for of in found] == [[5]] * 3
    assert [of.left for of in found] == [0] * 3


RUN = """
import sys, time
from tests.rewards.test_grading import rater, rate
grading = rater(sys.argv[1], 'run', timeout=60.0, workers=2, sandbox={sandbox})
print(rate(grading, ['1', '2']).totals, flush=True)
rate(grading, ['9**9**9', "subprocess.Popen(['sleep', '600'], start_new_session=True).wait()"])
"""


@pytest.mark.parametrize("sandbox", [True, False])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_graders_end_with_their_run_also_when_they_hang(rules, how, sandbox, tmp_path):
    """A terminal's Ctrl-C reaches the run alone, which then says nothing of its graders. They leave no files."""
    command = [sys.executable, "-c", RUN.format(sandbox=sandbox), rules]
    path = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=-1, stderr=-1, text=True, start_new_session=True, env=env
    ) as run:
        assert run.stdout.readline() == "[1.0, 2.0]\n"
        wait_for(lambda: "sleep" in [one.name() for one in children(run.pid)], "both to hang")
        below = children(run.pid)
        assert len(below) >= 4
        os.killpg(run.pid, how)
        said = run.communicate(timeout=120)[1]
    assert said.count("Traceback") <= (how == signal.SIGINT)
    wait_for_the_end_of(below)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("which", [0, -1])
def test_a_grader_that_somebody_ends_is_replaced(rules, which):
    """The process that calls functions, and the one above it."""
    before = {*children(os.getpid())}
    pool = Pool(Setup([f"{rules}:lengths"]), 1)
    (first,) = pool.call([Task(0, request(["ab"]), LIMIT_S)])
    ours = sorted({*children(os.getpid())} - before, key=lambda process: process.pid)
    ours[which].kill()
    wait_for_the_end_of(ours)
    answers = [pool.call([Task(0, request(["ab"]), LIMIT_S)])[0] for _ in range(2)]
    assert answers[0]["failed"] == "exit"
    assert first["values"] == answers[1]["values"] == [2]


SECONDS = f"27182{os.getpid()}"
ALONE = f"subprocess.Popen(['sleep', '{SECONDS}'], start_new_session=True) and {{}}"
"""A process of a session of its own, which no signal to the grader's group reaches; then the grader ends or hangs."""


@pytest.mark.parametrize("sandbox", [True, False])
@pytest.mark.parametrize("then", ["os._exit(3)", "time.sleep(600)", "os.fork() and os._exit(3)"])
def test_processes_of_a_grader_that_ends_or_hangs_end_with_it(rules, sandbox, then):
    pool = Pool(Setup([f"{rules}:run"], sandbox=sandbox), 1)
    kind, limit_s = ("hang", 0.5) if "sleep(" in then else ("exit", 60)
    (found,) = pool.call([Task(0, request([ALONE.format(then)]), limit_s)])
    assert found["failed"] == kind

    def gone() -> bool:
        every = psutil.process_iter(["cmdline"])
        return not [one for one in every if SECONDS in (one.info["cmdline"] or ())]

    wait_for(gone, "a killed process to end")


def test_columns_of_any_kind_reach_a_function_and_nothing_is_unpickled_from_it(rules, monkeypatch):
    grading = rater(rules, "day")
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("unpickles"))
    assert rate(grading, ["a"], when=[datetime.date(2026, 1, 9)]).totals == [9]
