"""`restore: merged` is `subtract` in fewer passes: the same bits, and nobody outside of a step sees a difference.

That every method makes progress, comes back and replays under it is in test_contract.py.
"""

import importlib.util
import os

import pytest
import torch
from torch import Tensor

from tests.support.pairwise import pairwise, rotated
from tests.support.quadratic import DTYPES, ZEROTH_ORDER, Quadratic, same, start
from zo.noise import NoiseKey, PhiloxEngine, engine
from zo.noise.reference import NumpyEngine
from zo.weights.directions import Gaussian, Preconditioned
from zo.weights.space import ParameterSpace
from zo.weights.updates import ParameterUpdate

Z = [Gaussian(NoiseKey(seed=1, stream=0, step=0, direction=i)) for i in range(3)]


def spaces(dtype: torch.dtype) -> list[ParameterSpace]:
    """Two of the same tensors: subtract, merged."""
    generator = torch.Generator().manual_seed(5)
    named = [(name, torch.randn(64, generator=generator).to(dtype)) for name in ("w", "b")]
    return [
        ParameterSpace([(name, t.clone()) for name, t in named], restore, exempt=["b"])
        for restore in ("subtract", "merged")
    ]


def equal(a: ParameterSpace, b: ParameterSpace) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.tensors, b.tensors, strict=True))


class Fill(ParameterUpdate):
    """H becomes 16, and θ moves along z/√H."""

    def __init__(self, h: list[Tensor]):
        self.h = h
        self.direction = Preconditioned(Z[0], h)

    def terms(self, i: int, p: Tensor):
        self.h[i].fill_(16.0)
        return [(1.0, self.direction)]


class Nothing(ParameterUpdate):
    """Neither state nor θ moves."""

    def terms(self, i: int, p: Tensor):
        return []


def engines() -> list[PhiloxEngine]:
    """Those that can be had here; Triton's through its interpreter."""
    found: list[PhiloxEngine] = [NumpyEngine()]
    if importlib.util.find_spec("numba"):
        found.append(engine("philox"))
    if importlib.util.find_spec("triton") and os.environ.get("TRITON_INTERPRET") == "1":
        from zo.noise.cuda import TritonEngine

        found.append(TritonEngine())
    return found


ENGINES = engines()


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
def twins(request) -> list[ParameterSpace]:
    return spaces(request.param)


def test_the_way_back_is_made_by_the_next_probe(twins):
    """The tensors are where those of subtract are, at every stop."""
    _, merged = twins
    for z in Z:
        for space in twins:
            with space.excursion() as probe:
                probe.to([(0.5, z)])
                space.stop = [p.clone() for p in space.tensors]
        assert all(torch.equal(p, q) for p, q in zip(*(s.stop for s in twins), strict=True))
        assert not equal(*twins)
    assert [space.passes for space in twins] == [6, 3]
    merged.settle()
    assert equal(*twins)
    assert merged.passes == 4
    merged.settle()
    assert merged.passes == 4, "nothing is owed any more"


def test_the_way_back_is_made_by_the_update_before_it_decays(twins):
    for space in twins:
        with space.excursion() as probe:
            probe.to([(0.5, Z[0])])
            probe.to([(-0.5, Z[0])])
        space.add_([(0.25, Z[0]), (0.125, Z[1])], 0.5)
    assert equal(*twins)
    assert [space.passes for space in twins] == [4, 3]


def test_the_way_back_from_a_scaled_probe_is_that_of_the_scale_it_was_made_with(twins):
    for space in twins:
        change = Fill(space.full(4.0))
        with space.excursion() as probe:
            probe.to([(0.5, change.direction)])
        space.carry_out(change)
    assert equal(*twins)
    assert [space.passes for space in twins] == [3, 2]


def test_a_pass_that_moves_state_alone_brings_theta_back(twins):
    for space in twins:
        with space.excursion() as probe:
            probe.to([(0.5, Z[0])])
        space.carry_out(Nothing())
    assert equal(*twins)


KEYS = [z.key for z in Z]


@pytest.mark.parametrize(
    ("drawer", "dtype", "terms", "case"),
    pairwise(
        ENGINES,
        DTYPES,
        [[], [(0.3, KEYS[0])], [(0.3, KEYS[1]), (0.1, KEYS[2])]],
        [{}, {"start": 7}, {"scale": torch.linspace(0.1, 1.1, 3000).view(30, 100)}],
    ),
)
def test_a_move_and_its_way_back_are_one_pass_as_they_are_two(drawer, dtype, terms, case):
    """Whether or not they share a direction; also of a part, and of some rows."""
    if type(drawer).__name__ == "TritonEngine" and dtype == torch.bfloat16:
        pytest.skip("the interpreter's cast to bfloat16 cuts off")
    theta = torch.randn(30, 100, generator=torch.Generator().manual_seed(2)).to(dtype)
    back = [(-0.2, KEYS[2]), (0.05, KEYS[0])]
    rows = torch.tensor([3, 29, 0])
    once = drawer.add_(theta.clone(), theta.clone(), 4, back, **case)
    twice = drawer.add_(once, once, 4, terms, 0.25, **case)
    got = drawer.add_(torch.empty_like(theta), theta, 4, terms, 0.25, pending=back, **case)
    assert torch.equal(got, twice)
    if "start" not in case:
        some = torch.empty_like(theta[rows])
        drawer.add_(some, theta, 4, terms, 0.25, pending=back, rows=rows, **case)
        assert torch.equal(some, twice[rows])


# Passes over the weights of one step: (subtract, merged).
PASSES = [
    ("mezo", {}, (4, 3)),
    ("mezo", {"n": 3}, (8, 7)),
    ("mezo", {"n": 3, "two_sided": False}, (5, 4)),
    ("mezo_adam", {}, (4, 3)),
    ("hizoo", {}, (4, 3)),
    ("lozo", {}, (4, 3)),
    ("bszo", {"k": 1}, (3, 2)),
    ("bszo", {}, (5, 3)),
    ("bszo", {"k": 4, "m": 9}, (9, 5)),
    ("bszo", {"two_sided": True}, (7, 5)),
    ("bszo_b", {}, (7, 4)),
]


@pytest.mark.parametrize(("name", "settings", "expected"), PASSES, ids=str)
def test_passes_over_the_weights(name, settings, expected):
    for restore, passes in zip(("subtract", "merged"), expected, strict=True):
        loss = Quadratic(restore=restore)
        opt = start(name, loss, **settings)
        opt.step(loss)
        before = loss.params.passes
        opt.step(loss)
        assert loss.params.passes - before == passes, restore


def test_a_bszo_step_that_moves_nothing_still_comes_back():
    """A flat loss: every coefficient is negligible, the update makes no pass of its own."""
    loss = Quadratic(restore="merged")
    was = loss.weights()
    opt = start("bszo", loss, k=3)
    opt.step(lambda: 1.0)
    assert loss.params.passes == 4
    for p, q in zip(loss.params.tensors, was, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


ROUNDED = [
    ("torch", "nearest"),
    ("torch", "compensated"),
    ("philox", "nearest"),
    ("philox", "compensated"),
    ("philox", "stochastic"),
]


@pytest.mark.parametrize(("name", "dtype", "rounded"), rotated(ZEROTH_ORDER, DTYPES, ROUNDED))
def test_a_run_is_that_of_subtract_bit_for_bit(name, dtype, rounded):
    """Losses, records, θ and state of twelve steps: the moves and their roundings are the same ones."""
    runs = {}
    noise, rounding = rounded
    rounding = "nearest" if dtype == torch.float32 else rounding
    for restore in ("subtract", "merged"):
        loss = Quadratic(dtype, restore, rounding, noise)
        opt = start(name, loss)
        made = [opt.step(loss) for _ in range(12)]
        runs[restore] = made, loss.weights(), opt.state_dict()
    assert same(list(runs["merged"]), list(runs["subtract"]))


class Watched(Quadratic):
    """Notes where θ was at each forward pass, as the tensors were."""

    def value(self) -> float:
        self.seen = [*getattr(self, "seen", []), self.weights()]
        return super().value()


def test_a_loss_between_probes_is_measured_at_theta():
    """A method that asks for L(θ) after a probe gets it, though nobody has gone back."""
    loss = Watched(restore="merged")
    opt = start("mezo", loss)
    was = loss.weights()

    def estimate(loss_fn):
        with opt.params.excursion() as probe:
            probe.to([(1.0, opt.direction())])
            loss_fn()
        loss_fn()
        return type(opt).estimate(opt, loss_fn)

    opt.estimate = estimate
    opt.step(loss)
    probe, here = loss.seen[:2]
    assert not torch.equal(probe[0], was[0])
    for p, q in zip(here, was, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ZEROTH_ORDER)
def test_the_way_back_is_made_when_a_step_breaks_off_anywhere(name):
    """At the last forward pass, between estimate and update, and inside of them."""
    for place in ("loss", "advance", "estimate"):
        loss = Quadratic(restore="merged")
        opt = start(name, loss)
        opt.step(loss)
        was = loss.weights()
        if place == "loss":
            loss.answers[loss.calls + opt.forwards_per_step] = KeyboardInterrupt()
        elif place == "advance":

            def advance(record):
                raise KeyboardInterrupt

            opt.advance = advance
        else:
            made = opt.estimate

            def estimate(loss_fn, made=made):
                made(loss_fn)
                raise KeyboardInterrupt

            opt.estimate = estimate
        with pytest.raises(KeyboardInterrupt):
            opt.step(loss)
        for p, q in zip(loss.params.tensors, was, strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-6)
        passes = loss.params.passes
        loss.params.settle()
        assert loss.params.passes == passes
