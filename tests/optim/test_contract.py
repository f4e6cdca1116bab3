"""What every registered method must do. A new method is tested by being registered."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from zo.optim import OPTIMIZERS, NonFiniteError
from zo.params import ParamSpace

TRAINING = [name for name, method in OPTIMIZERS.items() if method.optimizer.trains]
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
DTYPES = list(UNIT_ROUNDOFF)
POLICIES = ["subtract", "snapshot"]

# Settings under which a method makes progress on 32 weights; a method that needs none is not here.
UNIT_SCALE = {"prior_std": 4.0, "noise_std": 1.0, "eps": 1e-3}
SMALL_PROBLEM = {"bszo": UNIT_SCALE, "bszo_b": UNIT_SCALE}


class Quadratic:
    """½ Σ (θ − t)² over a 1-D and a 2-D tensor, in float64; counts its calls, fails when told to."""

    def __init__(self, dtype: torch.dtype = torch.float32, restore: str = "subtract"):
        generator = torch.Generator().manual_seed(9)
        shapes = {"v": (12,), "m": (4, 5)}
        self.named = [(n, torch.randn(s, generator=generator).to(dtype)) for n, s in shapes.items()]
        self.target = [torch.randn(t.shape, generator=generator).double() for _, t in self.named]
        self.params = ParamSpace(self.named, restore)
        self.calls = 0
        self.answers: dict[int, float | Exception] = {}

    def __call__(self) -> float:
        self.calls += 1
        answer = self.answers.get(self.calls)
        if isinstance(answer, Exception):
            raise answer
        return self.value() if answer is None else answer

    def value(self) -> float:
        pairs = zip(self.params.tensors, self.target, strict=True)
        return sum(float(((p.double() - t) ** 2).sum()) for p, t in pairs) / 2

    def weights(self) -> list[Tensor]:
        return [t.clone() for t in self.params.tensors]


def start(name: str, loss: Quadratic, lr: float = 1e-2, seed: int = 0, **settings):
    config = OPTIMIZERS[name].config(**{**SMALL_PROBLEM.get(name, {}), **settings})
    return OPTIMIZERS[name].optimizer(loss.params, config, lr=lr, seed=seed)


def bit_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def assert_back(loss: Quadratic, was: list[Tensor], moves: int, restore: str, eps: float) -> None:
    """Each weight within half a unit in the last place per move; bit for bit under snapshot."""
    now = loss.params.tensors
    if restore == "snapshot":
        assert bit_equal(now, was)
    for p, q in zip(now, was, strict=True):
        reach = q.double().abs() + 6 * eps  # the farthest a probe takes it
        drift = (p.double() - q.double()).abs()
        assert drift.le(moves * UNIT_ROUNDOFF[p.dtype] * reach * 1.1).all()


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("restore", POLICIES)
def test_loss_falls_on_a_quadratic(name, restore):
    loss = Quadratic(restore=restore)
    opt = start(name, loss)
    first = loss.value()
    reported = [opt.step(loss).loss for _ in range(400)]
    assert loss.value() < 0.1 * first
    assert reported[0] == pytest.approx(first, rel=0.01)
    assert np.mean(reported[-50:]) < 0.15 * first
    before = loss.value()
    assert opt.step(loss).loss == pytest.approx(before, rel=0.01, abs=1e-3 * first)


@pytest.mark.parametrize("name", TRAINING)
def test_loss_falls_with_bfloat16_weights(name):
    loss = Quadratic(torch.bfloat16, "snapshot")
    opt = start(name, loss, eps=1e-2)
    first = loss.value()
    for _ in range(200):
        opt.step(loss)
    assert loss.value() < 0.5 * first
    assert all(t.dtype == torch.bfloat16 for t in loss.params.tensors)


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("restore", POLICIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_theta_is_back_after_probing(name, restore, dtype):
    """Twenty steps at lr 0."""
    loss = Quadratic(dtype, restore)
    was = loss.weights()
    opt = start(name, loss, lr=0.0)
    for _ in range(20):
        opt.step(loss)
    assert_back(loss, was, 20 * 2 * opt.forwards_per_step, restore, eps=1e-3)


@pytest.mark.parametrize("name", TRAINING)
def test_drift_in_bfloat16_stays_near_one_rounding(name):
    """Under subtract the roundings of twenty steps partly cancel: 2 % of θ's norm, not their sum."""
    loss = Quadratic(torch.bfloat16)
    was = torch.cat([t.flatten().double() for t in loss.weights()])
    opt = start(name, loss, lr=0.0)
    for _ in range(20):
        opt.step(loss)
    now = torch.cat([t.flatten().double() for t in loss.params.tensors])
    assert (now - was).norm() / was.norm() < 0.02


class Interrupted(Exception):
    """Stands for anything that a forward pass may raise."""


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("restore", POLICIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("answer", "raises"),
    [
        (Interrupted(), Interrupted),
        (math.nan, NonFiniteError),
        (math.inf, NonFiniteError),
        (-math.inf, NonFiniteError),
    ],
    ids=["raises", "nan", "inf", "-inf"],
)
def test_theta_is_back_when_the_nth_forward_pass_fails(name, restore, dtype, answer, raises):
    good_steps = 2
    for n in range(start(name, Quadratic()).forwards_per_step):
        loss = Quadratic(dtype, restore)
        opt = start(name, loss)
        for _ in range(good_steps):
            opt.step(loss)
        was = loss.weights()
        loss.answers[loss.calls + 1 + n] = answer
        with pytest.raises(raises) as error:
            opt.step(loss)
        assert_back(loss, was, 2 * opt.forwards_per_step, restore, eps=1e-3)
        assert opt.step_index == good_steps, "a failed step is no step"
        if raises is NonFiniteError:
            assert error.value.step == good_steps
            assert error.value.what == "loss"
            assert f"step {good_steps}" in str(error.value)
            assert error.value.value == answer or math.isnan(answer)


@pytest.mark.parametrize("name", TRAINING)
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
    assert bit_equal(loss.params.tensors, was)


@pytest.mark.parametrize("name", TRAINING)
def test_a_failed_step_can_be_repeated(name):
    """A step that raised leaves nothing behind: made again, it is the step it would have been."""

    def run(fail: bool) -> list[Tensor]:
        loss = Quadratic(restore="snapshot")
        opt = start(name, loss)
        opt.step(loss)
        if fail:
            loss.answers[loss.calls + opt.forwards_per_step] = Interrupted()
            with pytest.raises(Interrupted):
                opt.step(loss)
        for _ in range(3):
            opt.step(loss)
        return loss.weights()

    assert bit_equal(run(fail=True), run(fail=False))


@pytest.mark.parametrize("name", TRAINING)
def test_forward_passes_are_as_declared(name):
    loss = Quadratic()
    opt = start(name, loss)
    assert opt.forwards_per_step > 0
    for step in range(1, 4):
        info = opt.step(loss)
        assert info.forwards == opt.forwards_per_step
        assert loss.calls == step * opt.forwards_per_step


@pytest.mark.parametrize(
    ("name", "settings", "forwards"),
    [
        ("mezo", {}, 2),
        ("mezo", {"two_sided": False}, 2),
        ("bszo", {}, 3),
        ("bszo", {"k": 1}, 2),
        ("bszo", {"k": 4, "m": 9}, 5),
        ("bszo", {"two_sided": True}, 4),
        ("bszo", {"adaptive_sampling": False}, 4),
        ("bszo_b", {}, 4),
        ("bszo_b", {"k": 4, "m": 9}, 10),
        ("bszo_b", {"two_sided": True}, 6),
        ("bszo_b", {"k": 2, "m": 2}, 3),
    ],
)
def test_forward_passes_are_the_papers(name, settings, forwards):
    loss = Quadratic()
    opt = start(name, loss, **settings)
    assert opt.step(loss).forwards == opt.forwards_per_step == loss.calls == forwards


@pytest.mark.parametrize("name", TRAINING)
def test_a_seed_fixes_the_trajectory(name):
    def run(seed: int) -> list[Tensor]:
        loss = Quadratic()
        opt = start(name, loss, seed=seed)
        for _ in range(10):
            opt.step(loss)
        return loss.weights()

    first = run(seed=1)
    assert bit_equal(run(seed=1), first)
    assert not bit_equal(run(seed=2), first)


@pytest.mark.parametrize("name", TRAINING)
def test_directions_are_new_each_step_and_fixed_within_it(name):
    """Three steps, four directions each, two tensors: all different, and the same when asked again."""
    loss = Quadratic()
    opt = start(name, loss)
    seen = set()
    for _ in range(3):
        for i in range(4):
            for j, p in enumerate(loss.params.tensors):
                z = opt.direction(i).sample(j, p)
                assert torch.equal(z, opt.direction(i).sample(j, p))
                seen.add(tuple(z.flatten()[:12].tolist()))
        opt.step(loss)
    assert len(seen) == 3 * 4 * 2


@pytest.mark.parametrize("name", TRAINING)
def test_global_random_state_is_neither_read_nor_written(name):
    def run() -> list[Tensor]:
        loss = Quadratic()
        opt = start(name, loss)
        for _ in range(3):
            opt.step(loss)
        return loss.weights()

    first = run()
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    try:
        torch.manual_seed(1234)
        np.random.seed(1234)  # noqa: NPY002
        seeded_torch, seeded_numpy = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
        assert bit_equal(run(), first)
        assert torch.equal(torch.get_rng_state(), seeded_torch)
        for a, b in zip(np.random.get_state(), seeded_numpy, strict=True):  # noqa: NPY002
            np.testing.assert_array_equal(a, b)
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


@pytest.mark.parametrize("name", TRAINING)
def test_state_round_trip_continues_bit_equal(name):
    def finish(opt, loss, steps: int) -> list[Tensor]:
        for _ in range(steps):
            opt.step(loss)
        return loss.weights()

    whole_loss = Quadratic()
    whole = finish(start(name, whole_loss), whole_loss, 12)

    first_loss = Quadratic()
    first = start(name, first_loss)
    halfway = finish(first, first_loss, 5)
    state = first.state_dict()
    finish(first, first_loss, 3)  # a state is a copy: what follows does not reach it

    second_loss = Quadratic()
    for p, q in zip(second_loss.params.tensors, halfway, strict=True):
        p.copy_(q)
    second = start(name, second_loss)
    second.load_state_dict(state)
    assert second.step_index == 5
    assert bit_equal(finish(second, second_loss, 7), whole)
    assert second.state_dict() == finish_state(name, 12)


def finish_state(name: str, steps: int) -> dict:
    loss = Quadratic()
    opt = start(name, loss)
    for _ in range(steps):
        opt.step(loss)
    return opt.state_dict()


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("restore", POLICIES)
def test_records_replay_the_run_without_a_forward_pass(name, restore):
    """Bit for bit under snapshot; under subtract the probes' roundings are what is missing."""
    loss = Quadratic(restore=restore)
    opt = start(name, loss)
    records = [opt.step(loss).record for _ in range(30)]
    assert all(isinstance(x, float) for record in records for x in record)

    again = Quadratic(restore=restore)
    replayed = start(name, again)
    for record in records:
        replayed.replay(record)
    assert again.calls == 0
    assert replayed.step_index == 30
    if restore == "snapshot":
        assert bit_equal(again.params.tensors, loss.params.tensors)
    moves = 30 * 2 * opt.forwards_per_step
    for p, q in zip(again.params.tensors, loss.params.tensors, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=moves * UNIT_ROUNDOFF[torch.float32] * 4)


@pytest.mark.parametrize("name", TRAINING)
def test_apply_repeats_the_step_at_the_step_index(name):
    """The same record at another step moves along other directions."""
    loss = Quadratic(restore="snapshot")
    opt = start(name, loss)
    was = loss.weights()
    record = opt.step(loss).record
    moved = loss.weights()

    def applied_at(step: int) -> list[Tensor]:
        for p, q in zip(loss.params.tensors, was, strict=True):
            p.copy_(q)
        opt.load_state_dict({**opt.state_dict(), "step_index": step})
        opt.apply(record)
        assert opt.step_index == step
        return loss.weights()

    assert bit_equal(applied_at(0), moved)
    assert not bit_equal(applied_at(1), moved)


@pytest.mark.parametrize("name", TRAINING)
def test_a_replayed_run_goes_on_as_the_run_itself(name):
    """Records are enough to resume from: what a step leaves for later steps is in its record."""
    loss = Quadratic(restore="snapshot")
    opt = start(name, loss)
    records = [opt.step(loss).record for _ in range(10)]
    again = Quadratic(restore="snapshot")
    replayed = start(name, again)
    for record in records:
        replayed.replay(record)
    assert replayed.step(again) == opt.step(loss)
    assert bit_equal(again.params.tensors, loss.params.tensors)


@pytest.mark.parametrize("name", TRAINING)
def test_step_info_is_plain_numbers(name):
    loss = Quadratic()
    info = start(name, loss).step(loss)
    assert type(info.loss) is float
    assert isinstance(info.record, tuple)
    assert info.scalars
    assert all(type(value) is float and math.isfinite(value) for value in info.scalars.values())


@pytest.mark.parametrize("name", TRAINING)
def test_state_of_these_methods_does_not_grow_with_the_model(name):
    opt = start(name, Quadratic())
    tensors = [v for v in opt.state_dict().values() if isinstance(v, Tensor)]
    assert opt.state_bytes() == sum(t.numel() * t.element_size() for t in tensors)


def test_a_method_that_does_not_train_makes_no_step():
    for name in set(OPTIMIZERS) - set(TRAINING):
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
    assert bszo(k=0) == ["k"]
    assert bszo(k=3, m=2) == ["m"]
    assert bszo(eps=-1.0, noise_ema=0.0, noise_floor=1.5) == ["eps", "noise_ema", "noise_floor"]
    assert bszo(prior_std=0.0, noise_std=-1.0) == ["prior_std", "noise_std"]
    assert bszo(noise_update="never") == ["noise_update"]
