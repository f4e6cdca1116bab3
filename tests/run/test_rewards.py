"""Runs that improve a reward: what they log, how they stop, and that processes and interruptions change nothing."""

import csv
import json
import re
from pathlib import Path

import pytest

from tests.support.runs import composed, rows_of
from tests.support.victims import KILLED, At, exit_statuses, what_it_came_to
from zo.rewards.rating import RewardError
from zo.run.__main__ import main
from zo.run.assembly import Session
from zo.run.logs.tracking import read_status
from zo.run.runner import run
from zo.run.store.directory import directory_of, freeze
from zo.run.store.rows import read_rows
from zo.tasks import TaskError

pytestmark = pytest.mark.process

SMALL = ("optimizer=mezo", "optimizer.eps=3e-2", "precision.restore=snapshot", "lr=1e-2", "steps=4")
SMALL += ("eval_every=2", "batch_size=3", "threads=1", "device=cpu", "task.max_new_tokens=5")
SMALL += ("task.train_size=6", "task.validation_size=4", "task.test_size=4")
GYM = ("task=reasoning_gym", "task.name=spell_backward", "task.samples=2", "task.temperature=1.0")
RULES = """
def vowels(prompts, texts):
    return [sum(c in "aeiou" for c in t) for t in texts]
def picky(completions, need, log_extra, log_metric, **_):
    log_extra("seen", [c[:3] for c in completions])
    log_extra("step", [1] * len(completions))
    log_metric("calls", 1)
    log_metric("undefined", float("nan"))
    return [None if n is None else len(c) * n for c, n in zip(completions, need)]
def broken(prompts, texts, calls=[]):
    calls.append(texts)
    return [1 / (len(calls) < 10) for _ in texts]
def equal(prompts, texts):
    return [1.0] * len(texts)
def never(prompts, texts):
    raise ValueError("no")
"""


def own(folder, *overrides):
    """Returns a run on prompts of one's own; RULES in an override is the file of functions."""
    folder.mkdir(exist_ok=True)
    (folder / "rules.py").write_text(RULES)
    rows = [{"prompt": f"a film {i}", "need": None if i % 3 == 0 else i} for i in range(20)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = ("task=reward", f"task.path={folder / 'prompts.jsonl'}")
    given = [override.replace("RULES", f"{folder}/rules.py") for override in overrides]
    return composed(folder / "out", *SMALL, *task, *given)


def test_a_generated_task_is_scored_beside_the_runs_own(tmp_path):
    """By its own scorer and not by the run's function: as a run of that task scores the same weights."""
    sizes = "train_size: 6, validation_size: 4, test_size: 4, max_new_tokens: 5"
    options = "options: {min_word_len: 3, max_word_len: 4}"
    also = f"task.also={{path: 'reasoning_gym:spell_backward', {options}, {sizes}}}"
    tiny = ("model=reasoning-tiny", "steps=0")
    spelled = composed(
        tmp_path / "out", *SMALL, *tiny, *GYM[:2], f"task.{options.replace(': {', '={', 1)}"
    )
    expected = run(spelled)["best/val_reward"]
    functions = "objective.function=RULES:vowels"
    run(before := own(tmp_path, *tiny, functions, also))
    assert rows_of(before)[-1]["eval/also_reward"] == expected
    run(trained := own(tmp_path, tiny[0], functions, also))
    evaluated = [row for row in rows_of(trained) if "eval/val_reward" in row]
    assert len(evaluated) == 2
    assert all(0 <= row["eval/also_reward"] <= 1 < row["eval/val_reward"] for row in evaluated)


def texts(directory):
    return [json.loads(line) for line in (directory / "texts.jsonl").read_text().splitlines()]


def test_functions_are_logged_by_name_and_texts_with_what_they_are_worth(tmp_path, capsys):
    cfg = own(tmp_path, "objective.functions={RULES:vowels: 1, RULES:picky: 0.5}")
    assert run(cfg)["run/status"] == "finished"
    directory, rows = directory_of(cfg), rows_of(cfg)
    for row in rows:
        plus, minus = row["train/losses"]
        assert row["reward/mean"] == pytest.approx(-(plus + minus) / 2)
        assert row["reward/best"] == -min(plus, minus)
        assert row["reward/spread"] == pytest.approx(abs(plus - minus) / 2)
        assert row["reward/length"] <= 5
        assert row["metric/calls"] == 1
        assert (row["reward/errors"], row["reward/unrated"]) == (0, 0)
        assert row["reward/dropped"] >= 1
        total = row["rewards/vowels"] + 0.5 * (row["rewards/picky"] or 0)
        assert total >= row["reward/mean"] - 1e-9
    evaluated = [row for row in rows if "eval/val_reward" in row]
    assert len(evaluated) == 2
    assert {"eval/val_rewards/vowels", "eval/val_rewards/picky"} <= evaluated[0].keys()
    shown = texts(directory)
    assert {row["split"] for row in shown} == {"validation", "test"}
    assert all(row["seen"] == row["text"][:3] for row in shown)
    assert {(row["step"], row["extra/step"]) for row in shown} == {(2, 1), (4, 1)}
    assert all(row["reward"] == row["vowels"] + 0.5 * (row["picky"] or 0) for row in shown)
    said = capsys.readouterr().out
    assert "objective.sandbox" not in said
    assert len(re.findall(r"^ +reward  prompt +text$", said, re.M)) == 2, "a table an evaluation"
    first = next(row for row in shown if row["split"] == "validation")
    (line, *_) = re.findall(r"^ +reward  prompt +text\n(.*)$", said, re.M)
    assert line.split()[0] == f"{first['reward']:.3g}"
    assert line.endswith(" ".join(first["text"].split())[:60])


def test_a_run_of_another_length_takes_over_the_texts_of_the_steps_that_it_has(tmp_path):
    runs = {
        steps: own(tmp_path, "objective.function=RULES:vowels", f"steps={steps}")
        for steps in (4, 2, 6)
    }
    found = {}
    for steps, cfg in runs.items():
        run(cfg)
        found[steps] = texts(directory_of(cfg))
    assert found[2] == [row for row in found[4] if row["step"] <= 2] != found[4]
    assert found[6][: len(found[4])] == found[4]
    assert found[6][-1]["step"] == 6


def test_a_function_that_fails_later_stops_the_run_at_its_text_and_the_run_goes_on(tmp_path):
    cfg = own(tmp_path, "objective.function=RULES:broken", "objective.workers=1")
    says = r"broken: .*rules\.py:12: ZeroDivisionError: .* \(row \d+\)"
    with pytest.raises(RewardError, match=says):
        run(cfg)
    assert read_status(directory_of(cfg))["run/status"] == "failed"
    before = len(rows_of(cfg))
    assert 0 < before < 4
    with pytest.raises(RewardError):
        run(cfg)  # on a new pool, from where it stopped
    assert len(rows_of(cfg)) >= before


def test_failures_count_and_a_number_stands_for_them(tmp_path, capsys):
    errors = ("objective.workers=1", "objective.on_error=-2")
    cfg = own(tmp_path, "objective.function=RULES:broken", *errors)
    assert run(cfg)["run/status"] == "finished"
    last = rows_of(cfg)[-1]
    assert last["reward/errors"] == last["reward/errors/raise"] == 2 * 3
    assert last["reward/mean"] == -2
    events = [row for row in texts(directory_of(cfg)) if row.get("error")]
    assert {"row", "text", "function", "said", "step"} <= events[-1].keys()
    assert capsys.readouterr().out.count("ZeroDivisionError") == 1


def test_equal_rewards_are_said_after_twenty_steps(tmp_path, capsys):
    run(own(tmp_path, "objective.function=RULES:equal", "steps=41", "task.max_new_tokens=1"))
    said = capsys.readouterr().out
    assert (
        said.count("was not compared with weights displaced by hand: it is a metric or a reward")
        == 1
    )
    assert said.count("step 20: the losses of each of 20 steps were equal") == 1
    assert "step 40: " not in said.replace("step 40: validation", "")


def test_a_generated_task_is_scored_by_its_own_scorer_beside_a_constant_answer(tmp_path, capsys):
    one = ("task.name=coin_flip", "task.samples=1", "task.temperature=0")
    cfg = composed(tmp_path, *SMALL, *GYM, *one)
    assert run(cfg)["run/status"] == "finished"
    said = capsys.readouterr().out
    assert "reward of the best constant answer, " in said
    assert "so take other task.options" in said
    assert rows_of(cfg)[1]["eval/val_constant"] > 0.5


def test_a_scorer_that_raises_on_every_text_gives_zeros(tmp_path, capsys):
    one = ("task.name=prime_factorization", "steps=1", "eval_every=1")
    cfg = composed(tmp_path, *SMALL, *GYM, *one)
    assert run(cfg)["run/status"] == "finished"
    (row,) = rows_of(cfg)
    assert row["reward/errors/raise"] == 2 * 2 * 3
    assert "ValueError" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["null", "disk"])
def test_a_run_on_several_processes_or_killed_has_the_bits_of_one(tmp_path, where):
    """Sampled texts and pass@k, too, and with the weights of the others on disk."""
    given = *GYM, "task.eval_samples=2"
    if where == "disk":
        given += "precision.restore=streamed", "precision.noise=philox"
    places = "null", where, where
    cfgs = [
        composed(tmp_path / f"copy{i}", *SMALL, *given, f"model.offload={of}")
        for i, of in enumerate(places)
    ]
    one, several, killed = map(freeze, cfgs)
    assert main([str(one)]) == 0
    assert exit_statuses(several, 2) == [0, 0], (several / "log.txt").read_text()
    stop = At("zo.run.losses.BatchLoss.__call__", 6, "after")
    assert exit_statuses(killed, points={0: stop}) == [KILLED]
    assert main([str(killed)]) == 0
    assert what_it_came_to(several) == what_it_came_to(killed) == what_it_came_to(one)
    for other in (several, killed):
        for ours, theirs in zip(read_rows(one), read_rows(other), strict=True):
            rewards = {k: v for k, v in ours.items() if k.startswith(("reward", "eval"))}
            assert rewards == {k: theirs[k] for k in rewards}
        assert texts(other) == texts(one)
    assert "eval/val_pass@2" in read_rows(one)[1]
    assert Path(one / "texts.jsonl").exists()


def completions(folder, *overrides):
    """Returns a run on completions of one's own, evaluated by a function or by perplexity."""
    folder.mkdir(exist_ok=True)
    (folder / "rules.py").write_text(RULES)
    rows = [{"prompt": f"a film {i}", "completion": " good" * (1 + i % 3)} for i in range(20)]
    rows = [{**row, "need": 2} for row in rows]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = ("task=completion", f"task.path={folder / 'pairs.jsonl'}")
    given = [override.replace("RULES", f"{folder}/rules.py") for override in overrides]
    return composed(folder / "out", *SMALL, *task, *given)


def test_a_function_of_ones_own_measures_evaluations_as_it_would_rate_texts(tmp_path, capsys):
    """With the rows' columns, in its own process; training is that of the completion. Its code makes another run."""
    cfg = completions(tmp_path, "task.measure=RULES:picky")
    summary, rows = run(cfg), rows_of(cfg)
    plain = completions(tmp_path)
    run(plain)
    losses = [[row.get("train/loss") for row in of] for of in (rows, rows_of(plain))]
    assert losses[0] == losses[1]
    values = [row["eval/val_measure"] for row in rows if "eval/val_measure" in row]
    assert summary["best/val_measure"] == max(values) > 0
    assert all(value * 4 % 2 == 0 for value in values), "twice the lengths of four texts"
    assert f"measure {values[0]:.4g}" in capsys.readouterr().out
    directory = directory_of(cfg)
    assert main([str(directory)]) == 2
    assert "task.measure=" in capsys.readouterr().err
    ids = {directory.name, directory_of(plain).name}
    (tmp_path / "rules.py").write_text(RULES + "# edited")
    assert len(ids | {directory_of(cfg).name}) == 3
    with pytest.raises(TaskError, match=r"task\.measure: .*never"):
        run(completions(tmp_path, "task.measure=RULES:never"))


def test_perplexity_has_a_table_of_the_loss_of_each_example(tmp_path):
    cfg = completions(tmp_path)
    run(cfg)
    path = directory_of(cfg) / "predictions.csv"
    with path.open() as file:
        found = list(csv.DictReader(file))
    assert [row["split"] for row in found] == ["test"] * 4 + ["validation"] * 4
    best = min(row["eval/val_loss"] for row in rows_of(cfg) if "eval/val_loss" in row)
    session = Session.open(cfg)
    weights = [example.tokens for example in session.validation]
    of = [float(row["loss"]) for row in found if row["split"] == "validation"]
    mean = sum(w * x for w, x in zip(weights, of, strict=True)) / sum(weights)
    assert mean == pytest.approx(best, abs=1e-5)
