"""Checkpoints: whole or not loaded, two of them, and every method goes on from one bit for bit."""

import os
import shutil
import tracemalloc
from functools import partial
from itertools import accumulate, product
from random import Random

import pytest
import torch
from torch.profiler import profile

from tests.support.quadratic import TRAINING, ZEROTH_ORDER, Quadratic, same, start, steps
from tests.support.victims import flip_bit, truncate
from zo.optim import OPTIMIZERS
from zo.run.store import atomic, checkpoint
from zo.weights.space import ParameterSpace


class Toy(Quadratic):
    """A method on the problem of 32 numbers."""

    def __init__(self, name: str = "mezo_adam", **options):
        super().__init__(**options)
        self.optimizer = start(name, self)

    def steps(self, count: int) -> "Toy":
        steps(self.optimizer, self, count)
        return self


def newest(run, toy=None, at_most=100) -> tuple[int, Toy]:
    toy = toy or Toy()
    return checkpoint.load_newest(run, toy.optimizer, at_most), toy


@pytest.mark.parametrize("name", TRAINING)
def test_a_method_goes_on_from_its_checkpoint_bit_for_bit(tmp_path, name):
    """Its state, and what rounding has lost; what is saved is a copy."""
    compensated = {"dtype": torch.bfloat16, "rounding": "compensated"}
    how = compensated if name in ZEROTH_ORDER else {}
    toy = Toy(name, **how).steps(5)
    checkpoint.save(tmp_path, toy.optimizer)
    after = toy.steps(4).weights(), toy.optimizer.state_dict()
    step, again = newest(tmp_path, Toy(name, **how))
    assert (step, again.optimizer.step_index) == (5, 5)
    assert same((again.steps(4).weights(), again.optimizer.state_dict()), after)


def test_two_are_kept_and_one_that_is_asked_for_until_a_new_one_is_whole(tmp_path):
    """The newest up to a step is loaded; later ones are of rows that were lost."""
    toy, theta = Toy(), {}
    theta[0] = toy.weights()
    for step in range(1, 7):
        theta[step] = toy.steps(1).weights()
        checkpoint.save(tmp_path, toy.optimizer, keep=2 if step >= 2 else None)
    for at_most, step in ((9, 6), (5, 5), (1, 0), (4, 2)):
        found, toy = newest(tmp_path, at_most=at_most)
        assert same((found, toy.weights()), (step, theta[step]))
    toy.steps(1)
    with pytest.MonkeyPatch.context() as full:
        full.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full"):
            checkpoint.save(tmp_path, toy.optimizer)
    folder = tmp_path / "checkpoints"
    assert {path.name for path in folder.iterdir()} == {f"step-0000000{n}" for n in (2, 5, 6)}
    checkpoint.save(tmp_path, toy.optimizer)
    assert checkpoint.steps(tmp_path) == [2, 3]
    (folder / "step-00000007.partial").mkdir()
    checkpoint.remove(tmp_path, keep=2)
    assert [path.name for path in folder.iterdir()] == ["step-00000002"]
    checkpoint.remove(tmp_path)
    assert not folder.exists()


def edit_manifest(place, **changes):
    path = place / checkpoint.MANIFEST
    path.write_bytes(atomic.seal({**atomic.unseal(path.read_bytes()), **changes}))


def harm(how, file, seed, place):
    how(place / file, Random(seed))


FILES = checkpoint.STATE, checkpoint.MANIFEST
DAMAGES = [
    (partial(edit_manifest, version=2), "is of another version than 3"),
    (partial(edit_manifest, run_id="mezo-ba9876543210"), "is of another run or step"),
    (partial(edit_manifest, step=3), "is of another run or step"),
    (lambda place: (place / checkpoint.MANIFEST).unlink(), "has no whole manifest.json"),
    (lambda place: (place / checkpoint.STATE).unlink(), "No such file or directory"),
    *((partial(harm, *of), "") for of in product((flip_bit, truncate), FILES, range(8))),
]


def test_after_any_damage_the_one_before_is_loaded_with_a_message(tmp_path, capsys):
    toy = Toy()
    checkpoint.save(tmp_path, toy.steps(2).optimizer)
    before = toy.weights()
    checkpoint.save(tmp_path, toy.steps(2).optimizer)
    place, whole = tmp_path / "checkpoints" / "step-00000004", tmp_path / "whole"
    shutil.copytree(place, whole)
    for i, (damage, why) in enumerate(DAMAGES):
        damage(place)
        step, toy = newest(tmp_path)
        assert same((step, toy.weights()), (2, before)), i
        said = capsys.readouterr().err
        assert said.startswith(str(place))
        assert why in said
        assert said.endswith("; going back to an earlier one\n")
        shutil.copytree(whole, place, dirs_exist_ok=True)
    assert newest(tmp_path)[0] == 4
    other = Toy(dtype=torch.bfloat16)
    was = other.weights()
    assert newest(tmp_path, other)[0] == 0
    assert same(other.weights(), was)
    assert capsys.readouterr().err.count("is of another model; going back") == 2


def test_saving_copies_no_tensor(tmp_path):
    """Of 24 MB: the most that is allocated at once."""
    method, params = OPTIMIZERS["mezo_adam"], ParameterSpace([("w", torch.zeros(2048, 1024))])
    optimizer = method.optimizer(params, method.config(), lr=1e-3, seed=0)
    optimizer.step_index = 1
    with profile(profile_memory=True) as saving:
        tracemalloc.start()
        checkpoint.save(tmp_path, optimizer)
        python_peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    events = saving.profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    assert max(accumulate(changes), default=0) < 1e6
    assert python_peak < 1e6
