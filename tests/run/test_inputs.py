"""Inputs of a run: changed data, weights or noise are another run or refused, never mixed and never overlooked."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.run.test_rewards import own
from tests.support.runs import stopped_after
from zo.config import digests, method_code, reward_code
from zo.config.identity import check_paths
from zo.extras import Trust
from zo.optim import OPTIMIZERS, Method
from zo.run.__main__ import main
from zo.run.runner import run
from zo.run.store.directory import Inputs, digest_examples, directory_of, freeze
from zo.run.store.rows import trajectory_of
from zo.tasks import Example, TaskError
from zo.trajectory import describe
from zo.trajectory import main as replay


@pytest.fixture
def reviews(reviews_csv, tmp_path) -> Path:
    """A csv of a test's own, which it may change."""
    return Path(shutil.copy(reviews_csv, tmp_path / "own.csv"))


def flip_labels(path: Path) -> None:
    """Exchanges the labels: the file keeps its name and size."""
    flipped = {",0,": ",1,", ",1,": ",0,"}
    path.write_text(re.sub(",[01],", lambda label: flipped[label[0]], path.read_text()))


def test_flipped_labels_are_another_run(make_run, reviews, capsys):
    """Also where the file keeps its time stamp."""
    cfg = make_run("optimizer=mezo", f"task.data_files.train={reviews}")
    os.utime(reviews, (0, 0))  # long ago: its digest is kept
    run(cfg)
    first = directory_of(cfg)
    flip_labels(reviews)
    os.utime(reviews, (0, 0))
    assert directory_of(cfg) != first
    run(cfg)
    assert len(list(Path(cfg.out).iterdir())) == 2
    said = capsys.readouterr().out
    assert "finished before" not in said
    assert f"a new run, not {first}: task.data_files.train has another content" in said
    text = reviews.read_text()
    reviews.write_text(f"{text}{text.splitlines()[-1]}\n")
    run(cfg)
    said = capsys.readouterr().out
    assert said.count("a new run") == 1, "one line, however many runs there are"
    assert " or 1 more: task.data_files.train has another content" in said


def test_a_start_reads_each_input_once(make_run, reviews, monkeypatch):
    cfg, read, asked = make_run(f"task.data_files.train={reviews}"), digests.of_address, []
    cfg.task.label = "no_such"
    monkeypatch.setattr(
        digests, "of_address", lambda address: asked.append(address) or read(address)
    )
    with pytest.raises(TaskError):
        run(cfg)
    assert len(asked) == len({*asked}) > 1


def test_a_run_begun_with_the_former_defaults_of_precision_is_named(make_run, capsys):
    former = "precision.noise=torch", "precision.restore=merged"
    began = make_run("optimizer=mezo", *former)
    with stopped_after(1):
        run(began)
    run(make_run("optimizer=mezo", "precision.noise=philox"))
    assert (
        f"a new run, not {directory_of(began)}: {' '.join(former)} goes" in capsys.readouterr().out
    )
    run(began)
    run(make_run("optimizer=mezo", "seed=2"))
    assert "goes on with that" not in capsys.readouterr().out


@pytest.mark.process
def test_other_code_of_a_method_is_another_run_and_is_refused_in_an_old_one(
    make_run, monkeypatch, refused, tmp_path
):
    """Also where the run began with the released code, and where a trajectory is replayed."""
    cfg = make_run("optimizer=mezo")
    codes = {None: directory_of(cfg)}
    for code in ("xxh3_128:1", "xxh3_128:2"):
        monkeypatch.setattr(method_code, "of_method", lambda name, now=code: now)
        codes[code] = directory_of(cfg)
    assert len(set(codes.values())) == 3
    run(cfg)
    for code, at in ((None, "xxh3_128:2"), ("xxh3_128:1", "xxh3_128:2"), ("xxh3_128:2", None)):
        monkeypatch.setattr(method_code, "of_method", lambda name, now=code: now)
        run(cfg)
        info = dict(describe(trajectory_of(codes[code])))
        assert f"method {code or 'as committed'}" in info["written by"]
        monkeypatch.setattr(method_code, "of_method", lambda name, now=at: now)
        assert "optimizer" in refused(main, codes[code])
        replaying = ("replay", codes[code] / "trajectory.bin", "--to", "1", "--out", tmp_path / "w")
        assert "optimizer" in refused(replay, *replaying)


def package(root: Path) -> Path:
    """Returns a copy of the methods under git, one of them with a line that is in no commit."""
    for room in method_code.ROOMS:
        shutil.copytree(method_code.PACKAGE / room, root / "zo" / room)
    (root / "zo" / "__init__.py").touch()
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm a"):
        subprocess.run(["git", "-C", str(root), *command.split()], check=True)
    return root


@pytest.mark.process
def test_a_methods_code_counts_where_no_commit_has_it(tmp_path, monkeypatch):
    """What methods do that it does not build on does not."""
    whole = package(tmp_path / "whole")
    config = OPTIMIZERS["hizoo"].config
    monkeypatch.setitem(OPTIMIZERS, "mine", Method(config, "Mine", ".mine:Mine"))

    def codes(*edits: str) -> dict[str, str | None]:
        copy = shutil.copytree(whole, tmp_path / f"copy{len(list(tmp_path.iterdir()))}") / "zo"
        (copy / "optim" / "mine.py").write_text("from zo.optim.mezo import MeZO\n# mine\n")
        for edit in edits:
            file, old, new = edit.split("|")
            text = (copy / file).read_text()
            assert old in text
            (copy / file).write_text(text.replace(old, new))
        return {name: method_code.of_method(name, copy) for name in ("mezo", "bszo", "mine")}

    first = codes()
    assert (first["mezo"], first["bszo"]) == (None, None)
    assert first["mine"] is not None
    for edit, moved in (
        ("optim/mezo.py|class MeZO(|class MeZO (", {"mezo", "mine"}),
        ("optim/mine.py|mine|other", {"mine"}),
        ("weights/updates.py|def add_(|def add_ (", {"mezo", "bszo", "mine"}),
        ("optim/config_spsa.py|class MeZOConfig(|class MeZOConfig (", {"mezo", "bszo", "mine"}),
        ("optim/lozo.py|class LOZO(|class LOZO (", set()),
    ):
        now = codes(edit)
        assert {name for name in now if now[name] != first[name]} == moved, edit


def test_a_finished_run_has_recorded_all_inputs_and_needs_no_data(make_run, reviews, capsys):
    cfg = make_run("optimizer=mezo", "steps=1", f"task.data_files.train={reviews}")
    run(cfg)
    read = Inputs.load(directory_of(cfg)).read
    assert {*read} == {"train", "validation", "test", "weights", "noise", "parameters"}
    directory = directory_of(cfg)
    reviews.unlink()
    assert main([str(directory)]) == 0
    assert "finished before" in capsys.readouterr().out


def test_a_splits_digest_holds_its_texts_its_labels_and_their_order():
    one, two = Example({"text": "a"}, 0), Example({"text": "b"}, 1)
    splits = [one, two], [two, one], [one, Example({"text": "b"}, 0)], [one, Example({}, 1)]
    assert len({digest_examples(split) for split in splits}) == 4


def test_what_is_missing_is_not_missed_once_a_run_has_begun(make_run):
    """It may have ended: its result is shown then."""
    cfg = make_run("task.data_files.train='package:no_such/r.csv'")
    told = "task.data_files.train: the pip package 'no_such' is not installed; "
    assert str(check_paths(cfg)).startswith(told)
    directory_of(cfg).mkdir(parents=True)
    assert check_paths(cfg) is None
    told = "model.path: there is no file or directory /no/such"
    assert str(check_paths(make_run("model.path=/no/such"))).startswith(told)
    random = ["model.weights=random", "+model.architecture={model_type:opt}"]
    assert check_paths(make_run("model.path=/no/such", *random)) is None


def test_a_reward_and_the_python_files_in_its_folder_are_part_of_the_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").touch()
    rules, module = tmp_path / "own_rules.py", tmp_path / "own_package" / "rules.py"
    alone = "def score(prompts, texts):\n    return [float(len(t)) for t in texts]\n"
    cfg = own(tmp_path, f"objective.function={rules}:score")

    def seen(name, n):
        for file in (rules, module):
            file.write_text(alone)
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(f"n = {n}\n")
        return directory_of(cfg)

    several = {f"{rules}:score": 1.0, f"{module}:score": 0.5}
    for function in (cfg.objective.function, "own_rules:score", "own_package.rules:score", several):
        of_one = isinstance(function, str)
        cfg.objective.function = function if of_one else None
        cfg.objective.functions = {} if of_one else function
        for name in ("own_lengths.py", "own_package/lengths.py", "helpers/lengths.py"):
            assert seen(name, 1) != seen(name, 2), name
        for name in ("notes.txt", ".hidden/lengths.py", "env/bin/lengths.py"):
            assert seen(name, 1) == seen(name, 2), name
        with monkeypatch.context() as patch:
            patch.setattr(reward_code, "MOST_FILES", 3)
            said = str(check_paths(cfg))
        assert said.startswith("objective.function: ")
        assert "more than 3 Python files lie beside " in said


@pytest.mark.process
def test_code_of_a_directory_runs_with_trust_alone(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(Trust, "given", False)
    rules, called = tmp_path / "own_rules.py", tmp_path / "called"
    rules.write_text(
        f"open({str(called)!r}, 'w')\ndef score(prompts, texts):\n    return [1.0] * len(texts)\n"
    )
    function = f"objective.function={rules}:score"
    directory = freeze(own(tmp_path, function, "objective.sandbox=false", "steps=1"))
    said = refused(main, directory)
    assert said.startswith(f"{directory}: its reward calls {function}; read it, and ")
    assert not called.exists()
    assert main([str(directory), "--trust"]) == 0
    assert called.exists()


@pytest.mark.process
def test_the_traceback_of_a_reward_that_raises_is_kept(tmp_path, capsys):
    rules = tmp_path / "own_rules.py"
    rules.write_text("def score(prompts, texts):\n    return [1 / 0 for _ in texts]\n")
    cfg = own(tmp_path, f"objective.function={rules}:score")
    with pytest.raises(TaskError, match=r"own_rules\.py:2: ZeroDivisionError"):
        run(cfg)
    assert f'"{rules}", line 2, in score' in (directory_of(cfg) / "error.txt").read_text()
    assert f"its traceback: {directory_of(cfg) / 'error.txt'}" in capsys.readouterr().err
