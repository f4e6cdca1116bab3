"""Checkpoints: whole or not loaded, two of them, and every method goes on from one bit for bit."""

import os
import random
import shutil
import tracemalloc
from functools import partial
from itertools import accumulate, product

import pytest
import torch
from torch.profiler import profile

from tests.support.damage import flip_bit, truncate
from tests.support.quadratic import TRAINING, ZEROTH_ORDER, Quadratic, same, start, steps
from zo.optim import OPTIMIZERS
from zo.run import atomic, checkpoint
from zo.weights.space import ParameterSpace

RUN_ID = "mezo-0123456789ab"


class Toy(Quadratic):
    """A method on the problem of 32 numbers."""

    def __init__(self, name: str = "mezo_adam", **options):
        super().__init__(**options)
        self.optimizer = start(name, self)

    def steps(self, count: int) -> "Toy":
        steps(self.optimizer, self, count)
        return self


@pytest.fixture
def saved(tmp_path):
    """A run with checkpoints of steps 2 and 4, and θ at each."""
    toy, theta = Toy(), {}
    for step in (2, 4):
        toy.steps(2)
        checkpoint.save(tmp_path, RUN_ID, toy.optimizer)
        theta[step] = toy.weights()
    return tmp_path, theta


def newest(run, toy=None, at_most=100) -> tuple[int, Toy]:
    toy = toy or Toy()
    return checkpoint.load_newest(run, RUN_ID, toy.optimizer, at_most), toy


@pytest.mark.parametrize(
    ("name", "half"), [*((n, False) for n in TRAINING), *((n, True) for n in ZEROTH_ORDER)]
)
def test_a_method_goes_on_from_its_checkpoint_bit_for_bit(tmp_path, name, half):
    """Its state, and what rounding has lost; what is saved is a copy."""
    how = {"dtype": torch.bfloat16, "rounding": "compensated"} if half else {}
    toy = Toy(name, **how).steps(5)
    checkpoint.save(tmp_path, RUN_ID, toy.optimizer)
    theta, state = toy.weights(), toy.optimizer.state_dict()
    after = toy.steps(4).weights(), toy.optimizer.state_dict()
    step, again = newest(tmp_path, Toy(name, **how))
    assert (step, again.optimizer.step_index) == (5, 5)
    assert same((again.weights(), again.optimizer.state_dict()), (theta, state))
    assert same((again.steps(4).weights(), again.optimizer.state_dict()), after)


def test_two_are_kept_and_one_that_is_asked_for_and_the_newest_up_to_a_step_is_loaded(
    tmp_path, capsys
):
    toy = Toy()
    theta = {0: toy.weights()}
    for step in range(1, 7):
        theta[step] = toy.steps(1).weights()
        checkpoint.save(tmp_path, RUN_ID, toy.optimizer, keep=2 if step >= 2 else None)
    folder = tmp_path / "checkpoints"
    for leftover in ("step-00000007.partial", "step-old"):
        (folder / leftover).mkdir()
    assert checkpoint.steps(tmp_path) == [2, 5, 6]
    for at_most, step in ((9, 6), (5, 5), (4, 2), (1, 0)):
        found, toy = newest(tmp_path, at_most=at_most)
        assert found == step
        assert same(toy.weights(), theta[step])
    assert capsys.readouterr().err == ""
    checkpoint.remove_partial(tmp_path)
    assert not (folder / "step-00000007.partial").exists()
    (folder / "step-old").rmdir()
    checkpoint.remove(tmp_path, keep=2)
    assert checkpoint.steps(tmp_path) == [2]
    checkpoint.remove(tmp_path)
    assert not folder.exists()


def edit_manifest(place, **changes):
    path = place / checkpoint.MANIFEST
    path.write_bytes(atomic.seal({**atomic.unseal(path.read_bytes()), **changes}))


FILES = (checkpoint.STATE, checkpoint.MANIFEST)
FOREIGN_OR_INCOMPLETE = [
    (partial(edit_manifest, version=2), "is of another version than 3"),
    (partial(edit_manifest, run_id="mezo-ba9876543210"), "is of another run or step"),
    (partial(edit_manifest, step=3), "is of another run or step"),
    (partial(edit_manifest, **{checkpoint.STATE: ""}), "is torn or was altered"),
    (lambda place: (place / checkpoint.MANIFEST).write_text("[]"), "has no whole manifest.json"),
    (lambda place: (place / checkpoint.MANIFEST).unlink(), "has no whole manifest.json"),
    (lambda place: (place / checkpoint.STATE).unlink(), "No such file or directory"),
    (lambda place: (place / checkpoint.STATE).write_bytes(b""), "is torn or was altered"),
]
DAMAGED = [
    (lambda place, how=how, file=file, seed=seed: how(place / file, random.Random(seed)), "")
    for how, file, seed in product((flip_bit, truncate), FILES, range(8))
]


def test_after_any_damage_the_one_before_is_loaded_with_a_message(saved, capsys):
    run, theta = saved
    place, whole = run / "checkpoints" / "step-00000004", run / "whole"
    shutil.copytree(place, whole)
    for i, (damage, why) in enumerate([*FOREIGN_OR_INCOMPLETE, *DAMAGED]):
        damage(place)
        step, toy = newest(run)
        assert same((step, toy.weights()), (2, theta[2])), i
        said = capsys.readouterr().err
        assert said.startswith(str(place))
        assert why in said
        assert said.endswith("; going back to an earlier one\n")
        shutil.copytree(whole, place, dirs_exist_ok=True)
    assert newest(run)[0] == 4
    other = Toy(shape=(6, 5))
    was = other.weights()
    assert newest(run, other)[0] == 0
    assert same(other.weights(), was)
    assert capsys.readouterr().err.count("is of another model; going back") == 2


def test_later_ones_stay_until_a_new_one_is_whole_and_what_is_not_leaves_nothing(saved):
    """As after rows were lost; the disk is full at first."""
    run, theta = saved
    toy = Toy().steps(3)
    with pytest.MonkeyPatch.context() as full:
        full.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full"):
            checkpoint.save(run, RUN_ID, toy.optimizer)
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["step-00000002", "step-00000004"]
    assert same(newest(run)[1].weights(), theta[4])
    checkpoint.save(run, RUN_ID, toy.optimizer)
    assert checkpoint.steps(run) == [2, 3]
    assert newest(run)[0] == 3


def test_saving_copies_no_tensor(tmp_path):
    """Of 24 MB in 24 tensors: the most that is allocated at once."""
    theta = [torch.randn(256, 1024) for _ in range(8)]
    named = [(f"w{i}", t) for i, t in enumerate(theta)]
    method = OPTIMIZERS["mezo_adam"]
    optimizer = method.optimizer(ParameterSpace(named), method.config(), lr=1e-3, seed=0)
    optimizer.step_index = 1
    with profile(profile_memory=True) as saving:
        tracemalloc.start()
        checkpoint.save(tmp_path, RUN_ID, optimizer)
        python_peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    events = saving.profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    assert max(accumulate(changes), default=0) < 1e6
    assert python_peak < 1e6
