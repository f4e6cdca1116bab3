"""What every registered method must do. A new method is tested by being registered."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from zo.noise import NOISES, PERTURBATION, ROUNDING, NoiseKey, engine
from zo.optim import OPTIMIZERS
from zo.optim.base import NonFiniteError
from zo.weights.space import ParameterSpace

TRAINING = [name for name, method in OPTIMIZERS.items() if method.config.trains]
ZEROTH_ORDER = [name for name in TRAINING if OPTIMIZERS[name].config.replays]
FIRST_ORDER = [name for name in TRAINING if name not in ZEROTH_ORDER]
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
DTYPES = list(UNIT_ROUNDOFF)
POLICIES = ["subtract", "merged", "snapshot"]


def cases(names: list[str]) -> list[tuple[str, str, torch.dtype]]:
    """Every name with every policy, every policy with every dtype, and so on, but not every triple."""
    return [
        (name, restore, DTYPES[(i + j) % 3])
        for i, name in enumerate(names)
        for j, restore in enumerate(POLICIES)
    ]


# Settings under which a method makes progress on 32 weights; a method that needs none is not here.
UNIT_SCALE = {"prior_std": 4.0, "noise_std": 1.0, "eps": 1e-3}
SMALL_PROBLEM = {
    "bszo": UNIT_SCALE,
    "bszo_b": UNIT_SCALE,
    "mezo_adam": {"state_dtype": "float32", "eps": 1e-3},  # float16 moments underflow, see below
    "hizoo": {"hessian_smooth": 1e-4, "eps": 1e-3},
    "adam": {"adam_eps": 1e-3},  # 1e-8 is 0 in float16
}
LR = {"mezo_adam": 0.05, "adam": 0.05}  # the length of a step of Adam; others take 0.01


@pytest.fixture(params=NOISES, autouse=True)
def noise(request, monkeypatch) -> str:
    """What draws the directions of every problem of a test."""
    monkeypatch.setattr(Quadratic, "noise", request.param)
    return request.param


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], autouse=True)
def device(request, monkeypatch) -> str:
    """Where the weights of every problem of a test are."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    monkeypatch.setattr(Quadratic, "device", request.param)
    return request.param


class Quadratic:
    """½ Σ (θ − t)² over a 1-D and a 2-D tensor, in float64; counts its calls, fails when told to."""

    noise, device = "torch", "cpu"

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        restore: str = "subtract",
        rounding: str = "nearest",
    ):
        generator = torch.Generator().manual_seed(9)
        shapes = {"v": (12,), "m": (4, 5)}
        made = [torch.randn(shape, generator=generator) for shape in shapes.values()]
        target = [torch.randn(shape, generator=generator) for shape in shapes.values()]
        tensors = [t.to(self.device, dtype) for t in made]
        self.named = list(zip(shapes, tensors, strict=True))
        self.target = [t.to(self.device, torch.float64) for t in target]
        self.params = ParameterSpace(self.named, restore, noise=self.noise, rounding=rounding)
        self.calls = 0
        self.answers: dict[int, float | BaseException] = {}

    def __call__(self) -> float:
        self.calls += 1
        answer = self.answers.get(self.calls)
        if isinstance(answer, BaseException):
            raise answer
        return self.value() if answer is None else answer

    def backward(self) -> float:
        """The gradient θ − t, by hand; counts as a call."""
        loss = self()
        for p, t in zip(self.params.parameters, self.target, strict=True):
            p.grad = (p.double() - t).to(p.dtype)
        return loss

    def value(self) -> float:
        pairs = zip(self.params.tensors, self.target, strict=True)
        return sum(float(((p.double() - t) ** 2).sum()) for p, t in pairs) / 2

    def weights(self) -> list[Tensor]:
        return [t.clone() for t in self.params.tensors]


def start(name: str, loss: Quadratic, lr: float | None = None, seed: int = 0, **settings):
    config = OPTIMIZERS[name].config(**{**SMALL_PROBLEM.get(name, {}), **settings})
    lr = LR.get(name, 1e-2) if lr is None else lr
    return OPTIMIZERS[name].optimizer(loss.params, config, lr=lr, seed=seed)


def same(a, b) -> bool:
    """Whether two states are equal, tensors bit for bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def tensors_in(state) -> list[Tensor]:
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list):
        return [t for part in state for t in tensors_in(part)]
    return [state] if isinstance(state, Tensor) else []


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
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_loss_falls_with_half_precision_weights(name, dtype):
    loss = Quadratic(dtype, "snapshot")
    opt = start(name, loss, **({} if name in FIRST_ORDER else {"eps": 1e-2}))
    first = loss.value()
    for _ in range(200):
        opt.step(loss)
    assert loss.value() < 0.5 * first
    assert all(t.dtype == dtype for t in loss.params.tensors)


@pytest.mark.parametrize(("name", "restore", "dtype"), cases(TRAINING), ids=str)
def test_theta_is_back_after_probing(name, restore, dtype):
    """Twenty steps at lr 0."""
    loss = Quadratic(dtype, restore)
    was = loss.weights()
    opt = start(name, loss, lr=0.0)
    for _ in range(20):
        opt.step(loss)
    assert_back(loss, was, 20 * 2 * opt.forwards_per_step, restore, eps=1e-3)


@pytest.mark.parametrize("name", ZEROTH_ORDER)
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


@pytest.mark.parametrize(("name", "restore", "dtype"), cases(TRAINING), ids=str)
@pytest.mark.parametrize(
    ("answer", "raises"),
    [
        (Interrupted(), Interrupted),
        (math.nan, NonFiniteError),
        (-math.inf, NonFiniteError),
    ],
    ids=["raises", "nan", "-inf"],
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
        ("mezo", {"n": 3}, 6),
        ("mezo", {"n": 3, "two_sided": False}, 4),
        ("mezo_adam", {}, 2),
        ("mezo_adam", {"n": 2, "two_sided": False}, 3),
        ("hizoo", {}, 3),
        ("lozo", {}, 2),
        ("adam", {}, 1),
        ("sgd", {}, 1),
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
    assert bit_equal(run(seed=2), first) == (name in FIRST_ORDER)  # which draw nothing


@pytest.mark.parametrize("name", ZEROTH_ORDER)
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


@pytest.mark.parametrize("name", ZEROTH_ORDER)
def test_directions_are_drawn_by_the_engine_of_the_space(name, noise):
    loss = Quadratic()
    opt = start(name, loss)
    bias = loss.params.tensors[0]  # plain noise for every method
    key = NoiseKey(0, PERTURBATION, 0, 1)
    expected = engine(noise, loss.device).normal_(torch.empty_like(bias), key, 0)
    assert torch.equal(opt.direction(1).sample(0, bias), expected)
    opt.step(loss)
    assert not torch.equal(opt.direction(1).sample(0, bias), expected)


@pytest.mark.parametrize("name", ZEROTH_ORDER)
@pytest.mark.parametrize("noise", ["philox"], indirect=True)
def test_the_bits_that_round_an_update_are_new_each_step(name):
    loss = Quadratic(torch.bfloat16, rounding="stochastic")
    opt, keys = start(name, loss, seed=7), []
    policy, update = loss.params.policy, loss.params.policy.update
    policy.update = lambda *args: (keys.append(args[2]), update(*args))
    for _ in range(3):
        opt.step(loss)
    assert [key for key in keys if key] == [NoiseKey(7, ROUNDING, s, 0) for s in range(3)]


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
    assert same(second.state_dict(), finish_state(name, 12))


def finish_state(name: str, steps: int) -> dict:
    loss = Quadratic()
    opt = start(name, loss)
    for _ in range(steps):
        opt.step(loss)
    return opt.state_dict()


@pytest.mark.parametrize(("name", "restore", "dtype"), cases(ZEROTH_ORDER), ids=str)
def test_losses_replay_the_run_bit_for_bit_without_a_forward_pass(name, restore, dtype):
    """Under subtract and merged the probes' roundings are repeated; under snapshot the probes are left out."""
    loss = Quadratic(dtype, restore=restore)
    opt = start(name, loss)
    made = [opt.step(loss) for _ in range(30)]
    assert all(len(info.losses) == opt.forwards_per_step for info in made)

    again = Quadratic(dtype, restore=restore)
    replayed = start(name, again)
    assert [replayed.replay(info.losses) for info in made] == made
    assert again.calls == 0
    assert bit_equal(again.params.tensors, loss.params.tensors)
    assert same(replayed.state_dict(), opt.state_dict())
    assert replayed.step(again) == opt.step(loss)  # and goes on as the run itself


@pytest.mark.parametrize("name", ZEROTH_ORDER)
@pytest.mark.parametrize("restore", POLICIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("noise", ["philox"], indirect=True)
def test_updates_that_are_rounded_at_random_replay_bit_for_bit(name, restore, dtype):
    loss, nearest = Quadratic(dtype, restore, "stochastic"), Quadratic(dtype, restore)
    opt = start(name, loss)
    made = [opt.step(loss) for _ in range(20)]
    again = Quadratic(dtype, restore, "stochastic")
    replayed = start(name, again)
    assert [replayed.replay(info.losses) for info in made] == made
    assert bit_equal(again.params.tensors, loss.params.tensors)
    other = start(name, nearest)
    for info in made:
        other.replay(info.losses)
    assert not bit_equal(nearest.params.tensors, loss.params.tensors)


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
@pytest.mark.parametrize("more", [-1, 1])
def test_a_replay_with_losses_of_another_method_is_refused(name, more):
    loss = Quadratic()
    opt = start(name, loss)
    was = loss.weights()
    with pytest.raises(ValueError, match=f"for a step of {opt.forwards_per_step}"):
        opt.replay([0.5] * (opt.forwards_per_step + more))
    assert opt.step_index == 0
    assert bit_equal(loss.params.tensors, was)


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

    assert bit_equal(applied_at(0), moved)
    assert not bit_equal(applied_at(1), moved)


@pytest.mark.parametrize("name", TRAINING)
def test_step_info_is_plain_numbers(name):
    loss = Quadratic()
    info = start(name, loss).step(loss)
    assert type(info.loss) is float
    assert isinstance(info.record, tuple)
    assert info.scalars
    assert all(type(value) is float and math.isfinite(value) for value in info.scalars.values())


@pytest.mark.parametrize("name", TRAINING)
def test_state_is_counted_to_the_byte(name):
    loss = Quadratic()
    opt = start(name, loss)
    opt.step(loss)
    tensors = tensors_in(opt.state_dict())
    assert opt.state_bytes() == sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("name", "copies"), [("mezo", 0), ("lozo", 0), ("hizoo", 1), ("mezo_adam", 2)]
)
def test_state_is_as_many_copies_of_theta_as_the_method_says(name, copies, dtype):
    """In the parameters' dtype or in float32, whichever was asked for."""
    loss = Quadratic(dtype)
    n = loss.params.numel
    if not copies:
        assert start(name, loss).state_bytes() == 0
        return
    assert start(name, loss, state_dtype="param").state_bytes() == copies * 2 * n
    assert start(name, loss, state_dtype="float32").state_bytes() == copies * 4 * n


@pytest.mark.parametrize("name", ZEROTH_ORDER)
def test_estimating_changes_neither_state_nor_theta(name):
    loss = Quadratic(restore="snapshot")
    opt = start(name, loss)
    for _ in range(3):
        opt.step(loss)
    state, was = opt.state_dict(), loss.weights()
    opt.estimate(loss)
    opt.estimate(loss)
    assert same(opt.state_dict(), state)
    assert bit_equal(loss.params.tensors, was)


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_a_backpropagated_step_cannot_be_replayed(name):
    loss = Quadratic()
    opt = start(name, loss)
    losses = opt.step(loss).losses
    was = loss.weights()
    with pytest.raises(RuntimeError, match="cannot be replayed"):
        opt.replay(losses)
    assert opt.step_index == 1
    assert bit_equal(loss.params.tensors, was)


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_a_loss_without_gradient_is_refused(name):
    loss = Quadratic()
    opt = start(name, loss)
    with pytest.raises(TypeError, match="backward"):
        opt.step(loss.value)


@pytest.mark.parametrize("name", FIRST_ORDER)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_a_collapse(name, bad):
    loss = Quadratic()
    opt = start(name, loss)
    opt.step(loss)
    loss.target[1][2, 3] = bad
    loss.answers = {2: 1.0}  # the loss itself is fine
    was = loss.weights()
    with pytest.raises(NonFiniteError) as error:
        opt.step(loss)
    assert (error.value.step, error.value.what) == (1, "gradient norm")
    assert bit_equal(loss.params.tensors, was)
    assert opt.step_index == 1


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
