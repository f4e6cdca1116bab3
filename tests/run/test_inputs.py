"""Inputs of a run: changed data, weights or noise are another run or refused, never mixed and never overlooked."""

import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.victims import At, armed
from zo.config.addresses import missing
from zo.run.__main__ import main
from zo.run.command import make
from zo.run.directory import directory_of, freeze
from zo.run.inputs import Inputs, digest_examples
from zo.run.runner import run
from zo.run.signals import Interrupted
from zo.run.tracking import read_status
from zo.tasks import Example


@pytest.fixture
def reviews(reviews_csv, tmp_path) -> Path:
    """A csv of a test's own, which it may change."""
    return Path(shutil.copy(reviews_csv, tmp_path / "own.csv"))


def flip_labels(path: Path) -> None:
    """Exchanges the labels: the file keeps its name and size."""
    flipped = {",0,": ",1,", ",1,": ",0,"}
    path.write_text(re.sub(",[01],", lambda label: flipped[label[0]], path.read_text()))


def test_flipped_labels_are_another_run(make_run, reviews, capsys):
    cfg = make_run("optimizer=mezo", f"task.data_files.train={reviews}")
    os.utime(reviews, (0, 0))  # long ago: its digest is kept
    run(cfg)
    first = directory_of(cfg)
    flip_labels(reviews)
    os.utime(reviews, (9, 9))
    assert directory_of(cfg) != first
    run(cfg)
    assert len(list(Path(cfg.out).iterdir())) == 2
    said = capsys.readouterr().out
    assert "finished before" not in said
    assert f"a new run, not {first}: task.data_files.train has another content" in said


def test_a_file_exchanged_in_the_middle_is_refused_and_put_back_goes_on(make_run, reviews, capsys):
    """The run is stopped by a signal on its way, and says so."""
    cfg = make_run("optimizer=mezo", f"task.data_files.train={reviews}")
    directory, whole = directory_of(cfg), reviews.read_bytes()
    with armed(At("zo.run.loop._step", 3, "after", signal.SIGTERM)), pytest.raises(Interrupted):
        make(cfg)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "stopped at step 3, saved; the same command goes on from there"
    stopped = {"run/status": "interrupted", "run/signal": "SIGTERM", "run/steps": 3}
    assert read_status(directory) == stopped
    assert not (directory / "checkpoints").exists(), "its steps can be replayed"
    flip_labels(reviews)
    assert main([str(directory)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"task.data_files.train: the content has changed since {directory}")
    reviews.write_bytes(whole)
    recorded = Inputs.load(directory)
    replace(recorded, read={**recorded.read, "train": "other"}).save(directory)
    assert main([str(directory)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{directory}: the training examples are not as when the run began")
    recorded.save(directory)
    assert main([str(directory)]) == 0
    assert "goes on after step 3" in capsys.readouterr().out


def test_inputs_that_are_lost_are_recorded_anew_and_a_finished_run_needs_no_data(
    make_run, reviews, capsys
):
    directory = freeze(make_run("optimizer=mezo", f"task.data_files.train={reviews}"))
    whole = Inputs.load(directory)
    (directory / "inputs.json").write_bytes(b"{}")
    assert main([str(directory)]) == 0
    again = Inputs.load(directory)
    assert (again.identity, again.files) == (whole.identity, whole.files)
    assert set(again.read) == {"train", "validation", "test", "weights", "noise", "parameters"}
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
    assert str(missing(cfg)).startswith(told)
    directory_of(cfg).mkdir(parents=True)
    assert missing(cfg) is None
    told = "model.path: there is no file or directory /no/such"
    assert str(missing(make_run("model.path=/no/such"))).startswith(told)
    random = ["model.weights=random", "+model.architecture={model_type:opt}"]
    assert missing(make_run("model.path=/no/such", *random)) is None
