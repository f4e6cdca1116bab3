"""What every registered method must do.

A new method is tested by being registered; settings for it go to SMALL_PROBLEM in tests/support/quadratic.py.
"""

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.support.pairwise import pairwise, rotated
from tests.support.quadratic import (
    DTYPES,
    FIRST_ORDER,
    LR,
    POLICIES,
    ROUNDED,
    TRAINING,
    UNIT_ROUNDOFF,
    ZEROTH_ORDER,
    Interrupted,
    Quadratic,
    interrupt,
    same,
    start,
    steps,
)
from zo.lm.baselines import BASELINES
from zo.noise import NOISES, ROUNDING, NoiseKey
from zo.optim import OPTIMIZERS
from zo.optim.base import NonFiniteError
from zo.weights.anchor import SeenUpdate, Survival
from zo.weights.directions import Stored
from zo.weights.updates import LinearUpdate, UpdateTarget


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], autouse=True)
def device(request, monkeypatch) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    monkeypatch.setattr(Quadratic, "device", request.param)
    return request.param


@pytest.mark.parametrize(
    ("name", "restore", "noise", "dtype"), rotated(TRAINING, POLICIES, NOISES, DTYPES)
)
def test_loss_falls_on_a_quadratic(name, restore, noise, dtype):
    coarse = {"eps": 1e-2} if dtype != torch.float32 and name not in FIRST_ORDER else {}
    loss = Quadratic(dtype, "snapshot" if coarse else restore, noise=noise)
    opt, first = start(name, loss, **coarse), loss.value()
    made = [opt.step(loss) for _ in range(200)]
    reported = [info.loss for info in made]
    assert loss.value() < 0.5 * first
    assert reported[0] == pytest.approx(first, rel=0.05)
    assert np.mean(reported[-20:]) < 0.6 * first
    assert all(t.dtype == dtype for t in loss.params.local)
    assert {info.forwards for info in made} == {opt.config.forwards_per_step} == {loss.calls / 200}
    logged = [made[-1].loss, *made[-1].scalars.values()]
    assert all(type(value) is float and math.isfinite(value) for value in logged)
    tensors = [t for t in tree_leaves(opt.state_dict()) if isinstance(t, Tensor)]
    assert opt.state_bytes() == sum(t.numel() * t.element_size() for t in tensors)


# Forward passes of a step, and its passes over the weights under (subtract, merged).
PASSES = [
    ("mezo", {}, 2, (4, 3)),
    ("mezo", {"two_sided": False}, 2, (3, 2)),
    ("mezo", {"n": 3, "two_sided": False}, 4, (5, 4)),
    ("mezo_adam", {"n": 2, "two_sided": False}, 3, (4, 3)),
    ("hizoo", {}, 3, (4, 3)),
    ("adam", {}, 1, (0, 0)),
    ("bszo", {}, 3, (5, 3)),
    ("bszo", {"k": 4, "m": 9}, 5, (9, 5)),
    ("bszo", {"adaptive_sampling": False}, 4, (7, 4)),
    ("bszo_b", {"k": 4, "m": 9}, 10, (19, 10)),
    ("bszo_b", {"two_sided": True}, 6, (10, 7)),
    ("fzoo", {}, 9, (17, 9)),
    ("es", {"n": 4}, 4, (6, 5)),
    ("es_at_scale", {"n": 3}, 3, (5, 4)),
    ("eggroll", {"n": 4}, 4, (6, 5)),
    ("zo_conservative", {}, 5, (7, 6)),
    ("zo_muon", {}, 5, (6, 5)),
    *[(name, {}, 2, (4, 3)) for name in ("zo_sign", "conmezo", "subzero", "tezo")],
]


@pytest.mark.parametrize(("name", "settings", "forwards", "passes"), PASSES, ids=str)
def test_forward_passes_and_passes_over_the_weights(name, settings, forwards, passes):
    """A replay repeats the passes whose roundings stay in θ, under snapshot none but the update."""
    for restore, expected in zip(POLICIES, (*passes, None), strict=True):
        loss = Quadratic(restore=restore)
        opt = start(name, loss, **settings)
        opt.step(loss)
        before = loss.params.stopwatch.counts["weights"]
        made = opt.step(loss)
        assert made.forwards == opt.config.forwards_per_step == loss.calls / 2 == forwards
        assert expected in (None, loss.params.stopwatch.counts["weights"] - before)
        before = loss.params.stopwatch.counts["weights"]
        if opt.config.replays:
            opt.replay(made.losses)
            assert loss.params.stopwatch.counts["weights"] - before == (expected or 1)


@pytest.mark.parametrize(
    ("name", "restore", "dtype", "answer", "noise"),
    pairwise(TRAINING, POLICIES, DTYPES, [Interrupted(), math.nan, -math.inf], NOISES),
)
def test_theta_and_state_are_back_when_the_nth_forward_pass_fails(
    name, restore, dtype, answer, noise, monkeypatch
):
    """Or what comes behind the last one. θ is back within half a unit in the last place per move, or to the bit."""
    forwards = start(name, Quadratic()).config.forwards_per_step
    for n in range(forwards + 1):
        loss = Quadratic(dtype, restore, noise=noise)
        opt = start(name, loss)
        was, state = steps(opt, loss, 2), opt.state_dict()
        loss.answers[loss.calls + 1 + n] = answer
        if n == forwards:
            monkeypatch.setattr(type(opt), "advance", interrupt)
        raises = Interrupted if isinstance(answer, Interrupted) or n == forwards else NonFiniteError
        with pytest.raises(raises) as error:
            opt.step(loss)
        reach = 2 * forwards * UNIT_ROUNDOFF[dtype] * (was.abs().double() + 6e-3)
        assert ((loss.weights() - was).abs() <= 1.1 * reach * (restore != "snapshot")).all()
        assert same(opt.state_dict(), state), "a failed step is no step"
        if raises is NonFiniteError:
            assert (error.value.step, error.value.what) == (2, "loss")
            assert "step 2" in str(error.value)
            assert error.value.value == answer or math.isnan(answer)


@pytest.mark.parametrize("name", TRAINING)
def test_a_coefficient_that_overflows_is_a_collapse(name):
    """Finite losses too far apart for their difference quotient, or one whose gradient is not finite."""
    loss = Quadratic(restore="snapshot")
    opt = start(name, loss)
    was = loss.weights()
    loss.answers = {n: 1e308 * (-1) ** n for n in range(1, 1 + opt.config.forwards_per_step)}
    loss.target[1][2, 3] = math.inf
    with pytest.raises(NonFiniteError, match=r"^step 0: (?!loss)"):
        opt.step(loss)
    assert opt.step_index == 0
    assert same(loss.weights(), was)


@pytest.mark.parametrize(("name", "noise"), rotated(TRAINING, NOISES))
def test_the_seed_alone_decides_the_trajectory(name, noise):
    """Global random state is neither read nor written."""

    def run(seed: int) -> Tensor:
        loss = Quadratic(noise=noise)
        return steps(start(name, loss, seed=seed), loss, 5)

    first = run(seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        seeded = torch.get_rng_state()
        assert same(run(seed=1), first)
        assert torch.equal(torch.get_rng_state(), seeded)
    assert same(run(seed=2), first) == (name in FIRST_ORDER)  # which draw nothing


@pytest.mark.parametrize(("name", "rounded"), rotated(ZEROTH_ORDER, ROUNDED), ids=str)
def test_losses_replay_the_run_bit_for_bit_and_merged_is_subtract(name, rounded):
    """Without a forward pass: the probes' roundings are repeated, and under snapshot the probes are left out.

    Losses of another method are refused, and change nothing.
    """
    (dtype, noise, rounding), runs = rounded, []
    decay = {"anchor": "start", "anchor_decay": 2.0}
    decay |= {} if name.startswith("bszo") else {"weight_decay": 0.1}
    for restore in POLICIES:
        loss, again = (Quadratic(dtype, restore, rounding, noise) for _ in range(2))
        opt, replayed = start(name, loss, **decay), start(name, again, **decay)
        made = [opt.step(loss) for _ in range(15)]
        with pytest.raises(ValueError, match=f" losses for a step of {opt.config.losses_per_step}"):
            replayed.replay(made[0].losses[1:])
        assert [replayed.replay(info.losses) for info in made] == made
        assert again.calls == 0
        runs.append([made, loss.weights(), opt.state_dict()])
        assert same([made, again.weights(), replayed.state_dict()], runs[-1])
        assert replayed.step(again) == opt.step(loss)  # and goes on as the run itself
    assert same(*runs[:2])


@pytest.mark.parametrize(("name", "restore", "noise"), rotated(TRAINING, POLICIES, NOISES))
def test_a_method_made_of_the_weights_of_its_state_goes_on_bit_for_bit(name, restore, noise):
    """As in a loop that loads the model first: what the method makes of the weights is part of its state."""
    loss, again = (Quadratic(restore=restore, noise=noise) for _ in range(2))
    opt = start(name, loss)
    steps(opt, loss, 3)
    for p, q in zip(again.params.local, loss.params.local, strict=True):
        p.copy_(q)
    resumed = start(name, again)
    resumed.load_state_dict(opt.state_dict())
    assert same(steps(opt, loss, 3), steps(resumed, again, 3))
    assert same(opt.state_dict(), resumed.state_dict())


def test_what_a_method_keeps_outside_of_its_state_is_refused():
    class Scaled(OPTIMIZERS["mezo"].optimizer):
        def __init__(self, params, config, **kwargs):
            super().__init__(params, config, **kwargs)
            self.scale = float(params.local[0].norm())

    loss, config = Quadratic(), OPTIMIZERS["mezo"].config()
    with pytest.raises(TypeError, match=r"^Scaled\.scale: .* self\.numbers"):
        Scaled(loss.params, config, lr=1e-3, seed=0).step(loss)
    Scaled.unsaved = ("scale",)
    Scaled(loss.params, config, lr=1e-3, seed=0).step(loss)


@pytest.mark.parametrize(("name", "norm"), rotated(ZEROTH_ORDER, ["l2", "l1"]))
def test_an_anchor_pulls_the_first_step_back(name, norm):
    step, pull, lr = [], {"anchor": "start", "anchor_norm": norm}, LR.get(name.split()[0], 1e-2)
    for settings in ({}, {**pull, "anchor_decay": (0.3 if norm == "l2" else 1e-3) / lr}):
        loss = Quadratic(restore="snapshot")
        was, opt = loss.weights(), start(name, loss, lr, **settings)
        step.append(steps(opt, loss, 1) - was)
    free, held = step
    shrunk = 0.7 * free if norm == "l2" else torch.nn.functional.softshrink(free, 1e-3)
    torch.testing.assert_close(held, shrunk, rtol=1e-4, atol=2e-6)
    for of in (slice(12), slice(12, None)):  # the vector and the matrix
        assert not torch.allclose(free[of], held[of], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "rounded"), rotated(ZEROTH_ORDER, [r for r in ROUNDED if r[0] != torch.float32])
)
def test_looking_at_the_rounding_of_a_step_changes_no_bit(name, rounded):
    dtype, noise, rounding = rounded
    runs, shares = [], []
    for watches in (False, True):
        loss = Quadratic(dtype, "snapshot", rounding, noise)
        opt = start(name, loss, eps=1e-2)
        for _ in range(10):
            opt.watches_rounding = watches
            shares.append(opt.step(loss).scalars.get("survives"))
        runs.append([loss.weights(), opt.state_dict()])
    assert same(*runs)
    assert [share is None for share in shares] == [True] * 10 + [rounding == "compensated"] * 10
    assert all(0 <= share < 3 for share in shares if share is not None)


def test_the_share_that_survives_rounding_is_the_actual_moves_along_the_intended_ones():
    theta = torch.tensor([1.0, 1.0, 1.0, 1.0], dtype=torch.bfloat16)  # neighbours 2⁻⁷ and 2⁻⁸ apart
    survival, moved = Survival([0]), torch.tensor([0.001, 0.0078125, -0.00390625, 0.0])
    update = SeenUpdate(LinearUpdate([(1.0, Stored([moved]))]), survival=survival)
    update.apply(UpdateTarget(theta, 0, 0.0, None), ())
    assert theta.tolist() == [1.0, 1.0078125, 0.99609375, 1.0]
    exact = 0.0078125**2 + 0.00390625**2
    assert survival.share == pytest.approx(exact / (exact + 0.001**2), rel=1e-5)


@pytest.mark.parametrize("name", ["mezo", "hizoo"])  # both ways to update
def test_the_bits_that_round_an_update_are_new_each_step(name):
    loss = Quadratic(torch.bfloat16, rounding="stochastic", noise="philox")
    opt, keys = start(name, loss, seed=7), []
    policy, update = loss.params.policy, loss.params.policy.apply_update
    policy.apply_update = lambda *args: (keys.append(args[2]), update(*args))
    steps(opt, loss, 3)
    assert [key for key in keys if key] == [NoiseKey(7, ROUNDING, s, 0) for s in range(3)]


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


WITHOUT_RANGE = ("name", "m", "separator", "square")


@pytest.mark.parametrize(
    "config", [*(method.config for method in OPTIMIZERS.values()), *BASELINES.values()]
)
def test_configurations_find_values_out_of_range(config):
    ranged = [of for of in fields(config) if of.type is not bool and of.name not in WITHOUT_RANGE]
    wrong = {of.name: "half" if of.type is str else -1 for of in ranged}
    assert {key for key, _ in config(**wrong).problems()} == wrong.keys()
    assert not config().problems()


APART = [
    *((name, {"n": 2}) for name in ("lozo_m", "conmezo", "adamezo")),
    *(("tezo", {"n": 2, "variant": "adam"}), ("fzoo", {"n": 1, "two_sided": True})),
    *(("bszo", {"m": 1}), ("subzero", {"divide_by_rank": True}), ("es", {"n": 5})),
    ("mezo", {"anchor": "start", "anchor_decay": 0.0}),
    ("mezo", {"anchor": "none", "anchor_decay": 1.0}),
    *(("es_at_scale", {"n": 1}), ("eggroll", {"baseline": "prompt", "shaping": "ranks"})),
    *((name, {"directions": "rademacher"}) for name in ("hizoo", "lozo", "zo_muon")),
]


@pytest.mark.parametrize(("name", "settings"), APART, ids=str)
def test_configurations_find_settings_that_do_not_go_together(name, settings):
    ((key, _), *_) = OPTIMIZERS[name].config(**settings).problems()
    assert key in settings
