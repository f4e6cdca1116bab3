"""The methods as torch optimizers in a loop of one's own: their steps are those of the suite's methods."""

import copy
import doctest
import importlib.util

import numpy as np
import pytest
import torch

import zo
from tests.support.own_loop import SETTINGS, SOME, X, loss_of, make, make_model, weights
from tests.support.pairwise import rotated
from tests.support.quadratic import same
from zo.library.methods import METHODS as CLASSES
from zo.noise import compiling
from zo.optim import OPTIMIZERS
from zo.weights.space import ParameterSpace

METHODS = [name for name in CLASSES if not OPTIMIZERS[name].config.reads_weights]


@pytest.mark.parametrize("name", SOME)
def test_steps_are_those_of_the_suites_method(name):
    model, twin = make_model(), make_model()
    optimizer = make(name, model, seed=3)
    config = OPTIMIZERS[name].config(eps=1e-3, **SETTINGS.get(name, {}))
    space = ParameterSpace.of(twin, "merged", "philox")
    method = OPTIMIZERS[name].optimizer(space, config, lr=1e-2, seed=3)
    for _ in range(3):
        loss = optimizer.step(lambda: loss_of(model))
        with torch.no_grad():
            info = method.step(lambda: loss_of(twin).item())
        assert type(loss) is float
        assert loss == info.loss == optimizer.info.loss
        assert optimizer.info.forwards == len(info.losses) == method.config.forwards_per_step
    assert same(weights(model), weights(twin))
    assert all(p.grad is None for p in model.parameters())


def test_noise_is_philox_where_it_is_compiled_and_its_compilation_is_told(monkeypatch, capsys):
    model = make_model()
    optimizer = make("mezo", model, check_closure=False)
    assert optimizer.method.params.engine.backend == "philox-cpu"
    optimizer.step(lambda: compiling.add(6.2) or loss_of(model))  # called four times
    told = "zo: 25 s of this step compiled noise='philox'; later steps and processes have it\n"
    assert capsys.readouterr().err.endswith(told)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert make("mezo", model).method.params.engine.backend.startswith("torch-cpu")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert make("mezo", model).method.params.engine.backend.startswith("torch-cpu")


GROUPS = [
    (torch.float32, {"noise": "torch"}),
    (torch.float32, {"noise": "philox", "restore": "snapshot"}),
    (torch.bfloat16, {"noise": "philox", "rounding": "compensated"}),
]
GROUPED = [
    pytest.param(name, *group, marks=[pytest.mark.process] * (name not in SOME))
    for name, group in rotated(METHODS, GROUPS)
]


@pytest.mark.parametrize(("name", "dtype", "how"), GROUPED)
def test_groups_have_their_own_learning_rate_and_decay(name, dtype, how):
    def after(*rates):
        model = make_model(dtype)
        halves = list(model[0].parameters()), [*model[1].parameters(), *model[3].parameters()]
        groups = [{"params": p, **of} for p, of in zip(halves, rates, strict=True)]
        make(name, groups, **how).step(lambda: loss_of(model))
        return weights(model)

    slow, fast = {"lr": 1e-3, "weight_decay": 0.0}, {"lr": 2e-2, "weight_decay": 0.5}
    mixed, all_slow, all_fast = after(slow, fast), after(slow, slow), after(fast, fast)
    no_decay = after(slow, fast | {"weight_decay": 0.0})
    assert not same(all_slow, all_fast)
    assert not same(mixed[2:], no_decay[2:])
    assert same(mixed[:2], all_slow[:2])
    assert same(mixed[2:], all_fast[2:])


@pytest.mark.parametrize("given", ["model", "tensors", "pairs", "groups"])
def test_frozen_tensors_are_left_out_and_stay_as_they_are(given):
    """Noise belongs to positions among the trained tensors, so all four move alike."""
    model, whole = make_model(), make_model()
    for of in (model, whole):
        of[0].requires_grad_(False)
        of[3].bias.requires_grad_(False)
    groups = {"model": model, "tensors": model.parameters(), "pairs": model.named_parameters()}
    groups["groups"] = [{"params": model[0]}, {"params": model[1]}, {"params": model[3]}]
    start = weights(model)
    optimizer = make("mezo", groups[given])
    optimizer.step(lambda: loss_of(model))
    make("mezo", whole).step(lambda: loss_of(whole))
    assert same(weights(model), weights(whole))
    moved = [not torch.equal(p, q) for p, q in zip(weights(model), start, strict=True)]
    assert [i for i, of in enumerate(moved) if not of] == [0, 1, 5]
    assert optimizer.method.params.numel == 8 + 8 + 16
    for tensor, now in ((model[3].weight, False), (model[0].weight, True)):
        tensor.requires_grad_(now)
        with pytest.raises(RuntimeError, match=f"requires_grad is {now} and was {not now} when"):
            optimizer.step(lambda: loss_of(model))
        tensor.requires_grad_(not now)


def test_numpys_numbers_are_numbers(file):
    given = {"k": np.int64(2), "prior_std": np.float32(1.0), "seed": np.int64(3), "eps": 1}
    optimizer = make("bszo", make_model(), record=file, **given)
    optimizer.step(lambda: 1.0)
    assert type(optimizer.method.config.k) is type(optimizer.method.seed) is int


class Rated:
    """A loss that is a mean over texts and knows the mean square of their numbers."""

    def __init__(self, model, square=7.0, equal=False):
        self.model, self.square, self.equal, self.since = model, square, equal, 0

    def __call__(self):
        self.since += 1
        return 1.0 if self.equal else loss_of(self.model)

    def mean_square(self):
        passes, self.since = self.since, 0
        return self.square if passes in (2, 4) else float("nan")  # two checks, then a step's four


@pytest.mark.parametrize("method", ["eggroll", "es"])
def test_the_texts_mean_square_of_a_closure_is_the_steps(method):
    model = make_model()
    optimizer = make(method, model, n=4, baseline="prompt")
    optimizer.step(Rated(model))
    assert optimizer.info.losses[-1] == 7.0
    with pytest.raises(ValueError, match="baseline='prompt': the closure"):
        optimizer.step(lambda: loss_of(model))


def test_equal_losses_beside_a_mean_square_are_reported():
    model = make_model()
    with pytest.warns(UserWarning, match="nothing was measured"):
        make("eggroll", model, n=4).step(Rated(model, equal=True))


DOCUMENTED = [*CLASSES.values(), zo.optimizer, zo.replay, zo.offload]


@pytest.mark.parametrize("what", DOCUMENTED, ids=lambda what: what.__name__)
def test_the_example_in_a_docstring_runs(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    globs = {"zo": zo, "copy": copy, "model": make_model(), "x": X}
    example = doctest.DocTestParser().get_doctest(what.__doc__, globs, what.__name__, None, 0)
    assert len(example.examples) >= 2
    assert doctest.DocTestRunner().run(example).failed == 0


def test_an_optimizers_repr_has_the_settings_of_its_method():
    shown = repr(zo.BSZO(make_model(), lr=1e-3, k=3, prior_std=1.0))
    assert shown.startswith("BSZO(lr=0.001, weight_decay=0.0, ")
    for said in ("k=3", "prior_std=1.0", "seed=0", "restore='merged'", "rounding='nearest'"):
        assert f", {said}" in shown
