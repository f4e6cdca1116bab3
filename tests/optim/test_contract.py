"""What every registered method must do.

A new method is tested by being registered; settings for it go to SMALL_PROBLEM in tests/support/quadratic.py.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.pairwise import pairwise, rotated
from tests.support.quadratic import (
    DTYPES,
    FIRST_ORDER,
    POLICIES,
    TRAINING,
    UNIT_ROUNDOFF,
    ZEROTH_ORDER,
    Interrupted,
    Quadratic,
    same,
    start,
)
from zo.noise import NOISES, PERTURBATION, ROUNDING, NoiseKey, engine
from zo.optim import OPTIMIZERS
from zo.optim.base import NonFiniteError

ROUNDED = [
    *[(dtype, noise, "nearest") for dtype in DTYPES for noise in NOISES],
    *[(dtype, "philox", "stochastic") for dtype in DTYPES if dtype != torch.float32],
    *[(dtype, noise, "compensated") for dtype, noise in zip(DTYPES[1:], NOISES, strict=True)],
]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], autouse=True)
def device(request, monkeypatch) -> str:
    """Where the weights of every problem of a test are."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    monkeypatch.setattr(Quadratic, "device", request.param)
    return request.param


def tensors_in(state) -> list[Tensor]:
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list):
        return [t for part in state for t in tensors_in(part)]
    return [state] if isinstance(state, Tensor) else []


def steps(opt, loss: Quadratic, count: int) -> list[Tensor]:
    for _ in range(count):
        opt.step(loss)
    return loss.weights()


def assert_back(loss: Quadratic, was: list[Tensor], moves: int, restore: str, eps: float) -> None:
    """Each weight within half a unit in the last place per move; bit for bit under snapshot."""
    now = loss.params.tensors
    assert restore != "snapshot" or same(now, was)
    for p, q in zip(now, was, strict=True):
        reach = q.double().abs() + 6 * eps  # the farthest a probe takes it
        drift = (p.double() - q.double()).abs()
        assert drift.le(moves * UNIT_ROUNDOFF[p.dtype] * reach * 1.1).all()


@pytest.mark.parametrize(("name", "restore", "noise"), rotated(TRAINING, POLICIES, NOISES))
def test_loss_falls_on_a_quadratic(name, restore, noise):
    loss = Quadratic(restore=restore, noise=noise)
    opt = start(name, loss)
    first = loss.value()
    reported = [opt.step(loss).loss for _ in range(400)]
    assert loss.value() < 0.1 * first
    assert reported[0] == pytest.approx(first, rel=0.01)
    assert np.mean(reported[-50:]) < 0.15 * first
    before = loss.value()
    assert opt.step(loss).loss == pytest.approx(before, rel=0.01, abs=1e-3 * first)


@pytest.mark.parametrize("name", TRAINING)
def test_loss_falls_with_half_precision_weights(name):
    dtype = DTYPES[1 + TRAINING.index(name) % 2]
    loss = Quadratic(dtype, "snapshot", noise="philox")
    opt = start(name, loss, **({} if name in FIRST_ORDER else {"eps": 1e-2}))
    first = loss.value()
    steps(opt, loss, 200)
    assert loss.value() < 0.5 * first
    assert all(t.dtype == dtype for t in loss.params.tensors)


@pytest.mark.parametrize(("name", "restore", "dtype"), pairwise(TRAINING, POLICIES, DTYPES))
def test_theta_is_back_after_probing(name, restore, dtype):
    loss = Quadratic(dtype, restore)
    was = loss.weights()
    opt = start(name, loss, lr=0.0)
    steps(opt, loss, 8)
    assert_back(loss, was, 8 * 2 * opt.forwards_per_step, restore, eps=1e-3)


@pytest.mark.parametrize(
    ("name", "restore", "dtype", "answer", "noise"),
    pairwise(TRAINING, POLICIES, DTYPES, [Interrupted(), math.nan, -math.inf], NOISES),
)
def test_theta_is_back_when_the_nth_forward_pass_fails(name, restore, dtype, answer, noise):
    raises = Interrupted if isinstance(answer, Interrupted) else NonFiniteError
    for n in range(start(name, Quadratic()).forwards_per_step):
        loss = Quadratic(dtype, restore, noise=noise)
        opt = start(name, loss)
        was = steps(opt, loss, 2)
        loss.answers[loss.calls + 1 + n] = answer
        with pytest.raises(raises) as error:
            opt.step(loss)
        assert_back(loss, was, 2 * opt.forwards_per_step, restore, eps=1e-3)
        assert opt.step_index == 2, "a failed step is no step"
        if raises is NonFiniteError:
            assert (error.value.step, error.value.what) == (2, "loss")
            assert "step 2" in str(error.value)
            assert error.value.value == answer or math.isnan(answer)


@pytest.mark.parametrize("name", ZEROTH_ORDER)
def test_a_coefficient_that_overflows_is_a_collapse(name):
    """Finite losses too far apart for their difference quotient."""
    loss = Quadratic(restore="snapshot")
    opt = start(name, loss)
    was = loss.weights()
    loss.answers = {n: 1e308 * (-1) ** n for n in range(1, 1 + opt.forwards_per_step)}
    with pytest.raises(NonFiniteError) as error:
        opt.step(loss)
    assert error.value.step == 0
    assert error.value.what != "loss"
    assert same(loss.weights(), was)


@pytest.mark.parametrize("name", TRAINING)
def test_a_failed_step_can_be_repeated(name):
    def run(fail: bool) -> list[Tensor]:
        loss = Quadratic(restore="snapshot")
        opt = start(name, loss)
        opt.step(loss)
        if fail:
            loss.answers[loss.calls + opt.forwards_per_step] = Interrupted()
            with pytest.raises(Interrupted):
                opt.step(loss)
        return steps(opt, loss, 3)

    assert same(run(fail=True), run(fail=False))


@pytest.mark.parametrize("name", TRAINING)
def test_a_step_reports_plain_numbers_passes_and_bytes(name):
    loss = Quadratic()
    opt = start(name, loss)
    for step in range(1, 4):
        info = opt.step(loss)
        assert 0 < info.forwards == opt.forwards_per_step
        assert loss.calls == step * opt.forwards_per_step
    assert type(info.loss) is float
    assert isinstance(info.record, tuple)
    assert info.scalars
    assert all(type(value) is float and math.isfinite(value) for value in info.scalars.values())
    tensors = tensors_in(opt.state_dict())
    assert opt.state_bytes() == sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize(
    ("name", "settings", "forwards"),
    [
        ("mezo", {}, 2),
        ("mezo", {"two_sided": False}, 2),
        ("mezo", {"n": 3}, 6),
        ("mezo", {"n": 3, "two_sided": False}, 4),
        ("mezo_adam", {}, 2),
        ("mezo_adam", {"n": 2, "two_sided": False}, 3),
        ("hizoo", {}, 3),
        ("lozo", {}, 2),
        ("adam", {}, 1),
        ("sgd", {}, 1),
        ("bszo", {}, 3),
        ("bszo", {"k": 4, "m": 9}, 5),
        ("bszo", {"two_sided": True}, 4),
        ("bszo", {"adaptive_sampling": False}, 4),
        ("bszo_b", {}, 4),
        ("bszo_b", {"k": 4, "m": 9}, 10),
        ("bszo_b", {"two_sided": True}, 6),
        ("bszo_b", {"k": 2, "m": 2}, 3),
        ("fzoo", {}, 9),
        ("zo_conservative", {}, 5),
        ("zo_muon", {}, 5),
        *[(name, {}, 2) for name in ("zo_sign", "zo_momentum", "adamezo")],
        *[(name, {}, 2) for name in ("lozo_m", "subzero", "tezo", "conmezo")],
    ],
)
def test_forward_passes_are_the_papers(name, settings, forwards):
    loss = Quadratic()
    opt = start(name, loss, **settings)
    assert opt.step(loss).forwards == opt.forwards_per_step == loss.calls == forwards


@pytest.mark.parametrize(("name", "noise"), rotated(TRAINING, NOISES))
def test_the_seed_alone_decides_the_trajectory(name, noise):
    """Global random state is neither read nor written."""

    def run(seed: int) -> list[Tensor]:
        loss = Quadratic(noise=noise)
        return steps(start(name, loss, seed=seed), loss, 5)

    first = run(seed=1)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    try:
        torch.manual_seed(1234)
        np.random.seed(1234)  # noqa: NPY002
        seeded_torch, seeded_numpy = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
        assert same(run(seed=1), first)
        assert torch.equal(torch.get_rng_state(), seeded_torch)
        for a, b in zip(np.random.get_state(), seeded_numpy, strict=True):  # noqa: NPY002
            np.testing.assert_array_equal(a, b)
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
    assert same(run(seed=2), first) == (name in FIRST_ORDER)  # which draw nothing


@pytest.mark.parametrize(("name", "noise"), pairwise(ZEROTH_ORDER, NOISES))
def test_directions_are_the_engines_new_each_step_and_fixed_within_it(name, noise):
    """Three steps, four directions each, two tensors: all different, and the same when asked again."""
    loss = Quadratic(noise=noise)
    opt = start(name, loss)
    bias = loss.params.tensors[0]  # plain noise for every method
    key = NoiseKey(0, PERTURBATION, 0, 1)
    draw = "rademacher_" if opt.config.directions == "rademacher" else "normal_"
    expected = getattr(engine(noise, loss.device), draw)(torch.empty_like(bias), key, 0)
    assert torch.equal(opt.direction(1).sample(0, bias), expected)
    seen = set()
    for _ in range(3):
        for i in range(4):
            for j, p in enumerate(loss.params.tensors):
                z = opt.direction(i).sample(j, p)
                assert torch.equal(z, opt.direction(i).sample(j, p))
                seen.add(tuple(z.flatten()[:12].tolist()))
        opt.step(loss)
    assert len(seen) == 3 * 4 * 2


@pytest.mark.parametrize("name", ZEROTH_ORDER)
def test_the_bits_that_round_an_update_are_new_each_step(name):
    loss = Quadratic(torch.bfloat16, rounding="stochastic", noise="philox")
    opt, keys = start(name, loss, seed=7), []
    policy, update = loss.params.policy, loss.params.policy.update
    policy.update = lambda *args: (keys.append(args[2]), update(*args))
    steps(opt, loss, 3)
    assert [key for key in keys if key] == [NoiseKey(7, ROUNDING, s, 0) for s in range(3)]


@pytest.mark.parametrize("name", TRAINING)
def test_state_round_trip_continues_bit_equal(name):
    whole_loss, first_loss, second_loss = Quadratic(), Quadratic(), Quadratic()
    whole_opt, first, second = (start(name, x) for x in (whole_loss, first_loss, second_loss))
    whole = steps(whole_opt, whole_loss, 12)
    halfway = steps(first, first_loss, 5)
    state = first.state_dict()
    steps(first, first_loss, 3)  # a state is a copy: what follows does not reach it
    for p, q in zip(second_loss.params.tensors, halfway, strict=True):
        p.copy_(q)
    second.load_state_dict(state)
    assert second.step_index == 5
    assert same(steps(second, second_loss, 7), whole)
    assert same(second.state_dict(), whole_opt.state_dict())


@pytest.mark.parametrize(
    ("name", "restore", "rounded"),
    [(*pair, ROUNDED[i % len(ROUNDED)]) for i, pair in enumerate(pairwise(ZEROTH_ORDER, POLICIES))],
    ids=str,
)
def test_losses_replay_the_run_bit_for_bit_without_a_forward_pass(name, restore, rounded):
    """Under subtract and merged the probes' roundings are repeated; under snapshot the probes are left out."""
    dtype, noise, rounding = rounded
    loss, again = (Quadratic(dtype, restore, rounding, noise) for _ in range(2))
    opt, replayed = start(name, loss), start(name, again)
    made = [opt.step(loss) for _ in range(15)]
    assert all(len(info.losses) == opt.forwards_per_step for info in made)
    assert [replayed.replay(info.losses) for info in made] == made
    assert again.calls == 0
    assert same(again.params.tensors, loss.params.tensors)
    assert same(replayed.state_dict(), opt.state_dict())
    assert replayed.step(again) == opt.step(loss)  # and goes on as the run itself


@pytest.mark.parametrize("name", ZEROTH_ORDER)
def test_a_replay_makes_no_pass_that_leaves_no_trace(name):
    passes = {}
    for restore in POLICIES:
        loss = Quadratic(restore=restore)
        opt = start(name, loss)
        losses = opt.step(loss).losses
        before = loss.params.passes
        opt.replay(losses)
        passes[restore] = loss.params.passes - before
    assert passes["snapshot"] == 1 < passes["merged"] < passes["subtract"]


@pytest.mark.parametrize("name", ZEROTH_ORDER)
def test_a_replay_with_losses_of_another_method_is_refused(name):
    loss = Quadratic()
    opt = start(name, loss)
    was = loss.weights()
    for more in (-1, 1):
        with pytest.raises(ValueError, match=f"for a step of {opt.forwards_per_step}"):
            opt.replay([0.5] * (opt.forwards_per_step + more))
    assert opt.step_index == 0
    assert same(loss.weights(), was)


@pytest.mark.parametrize("name", ZEROTH_ORDER)
def test_apply_repeats_the_step_at_the_step_index(name):
    """The same record at another step moves along other directions."""
    loss = Quadratic(restore="snapshot")
    opt = start(name, loss)
    was, state = loss.weights(), opt.state_dict()
    record = opt.step(loss).record
    moved = loss.weights()

    def applied_at(step: int) -> list[Tensor]:
        for p, q in zip(loss.params.tensors, was, strict=True):
            p.copy_(q)
        opt.load_state_dict({**state, "step_index": step})
        opt.apply(record)
        assert opt.step_index == step
        return loss.weights()

    assert same(applied_at(0), moved)
    assert not same(applied_at(1), moved)


@pytest.mark.parametrize(
    ("name", "copies"), [("mezo", 0), ("lozo", 0), ("hizoo", 1), ("mezo_adam", 2)]
)
def test_state_is_as_many_copies_of_theta_as_the_method_says(name, copies):
    """In the parameters' dtype or in float32, whichever was asked for."""
    loss = Quadratic(torch.bfloat16)
    for dtype, size in (("param", 2), ("float32", 4)):
        settings = {"state_dtype": dtype} if copies else {}
        assert start(name, loss, **settings).state_bytes() == copies * size * loss.params.numel


@pytest.mark.parametrize("name", ZEROTH_ORDER)
def test_estimating_changes_neither_state_nor_theta(name):
    loss = Quadratic(restore="snapshot")
    opt = start(name, loss)
    was = steps(opt, loss, 3)
    state = opt.state_dict()
    opt.estimate(loss)
    opt.estimate(loss)
    assert same(opt.state_dict(), state)
    assert same(loss.weights(), was)


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_a_backpropagated_step_needs_a_gradient_and_cannot_be_replayed(name):
    loss = Quadratic()
    opt = start(name, loss)
    with pytest.raises(TypeError, match="backward"):
        opt.step(loss.value)
    losses = opt.step(loss).losses
    was = loss.weights()
    with pytest.raises(RuntimeError, match="cannot be replayed"):
        opt.replay(losses)
    assert opt.step_index == 1
    assert same(loss.weights(), was)


@pytest.mark.parametrize(("name", "bad"), pairwise(FIRST_ORDER, [math.nan, math.inf]))
def test_a_gradient_that_is_not_finite_is_a_collapse(name, bad):
    loss = Quadratic()
    opt = start(name, loss)
    was = steps(opt, loss, 1)
    loss.target[1][2, 3] = bad
    loss.answers = {2: 1.0}  # the loss itself is fine
    with pytest.raises(NonFiniteError) as error:
        opt.step(loss)
    assert (error.value.step, error.value.what) == (1, "gradient norm")
    assert same(loss.weights(), was)
    assert opt.step_index == 1


def test_a_method_that_does_not_train_makes_no_step():
    for name in (n for n, m in OPTIMIZERS.items() if not m.config.trains):
        loss = Quadratic()
        opt = start(name, loss)
        assert opt.forwards_per_step == 0
        with pytest.raises(RuntimeError, match="no step"):
            opt.step(loss)
        assert loss.calls == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_configuration_says_its_name_and_finds_its_defaults_right(name):
    config = OPTIMIZERS[name].config()
    assert config.name == name
    assert list(config.problems()) == []


def problems(name: str, **settings) -> list[str]:
    return [key for key, _ in OPTIMIZERS[name].config(**settings).problems()]


def test_configurations_find_values_out_of_range():
    bszo = partial(problems, "bszo")
    assert problems("mezo", eps=0.0) == ["eps"]
    assert problems("mezo", n=0, weight_decay=-1.0) == ["n", "weight_decay"]
    assert problems("lozo", eps=0.0, rank=0, interval=0) == ["eps", "rank", "interval"]
    adam = {"beta1": 1.0, "beta2": -0.1, "adam_eps": 0.0}
    assert problems("mezo_adam", **adam, n=0, state_dtype="half") == ["n", *adam, "state_dtype"]
    assert problems("adam", **adam, weight_decay=-1.0) == [*adam, "weight_decay"]
    assert problems("sgd", momentum=1.0, weight_decay=-1.0) == ["momentum", "weight_decay"]
    hizoo = {"eps": 0.0, "hessian_smooth": 1.0, "smooth_schedule": "linear", "smooth_steps": 0}
    hizoo |= {"state_dtype": "float16", "weight_decay": -1.0}
    assert problems("hizoo", **hizoo) == list(hizoo)
    assert bszo(k=0) == ["k"]
    assert bszo(k=3, m=2) == ["m"]
    assert bszo(eps=-1.0, noise_ema=0.0, noise_floor=1.5) == ["eps", "noise_ema", "noise_floor"]
    assert bszo(prior_std=0.0, noise_std=-1.0) == ["prior_std", "noise_std"]
    assert bszo(noise_update="never") == ["noise_update"]
