"""Trajectories of the suite against plain renderings of the papers' algorithm boxes, on the same noise.

With `restore=subtract` both sides make the same displacements in the same order, each rounded once to float32, so
that θ and records are compared bit for bit after every step. Methods with arithmetic of their own (moments, H, low-rank
products, weight decay) may take it in another order: they run under `snapshot` with tolerances, in float32 units. (Σ
stays diagonal as long as the first directions are axes, so BSZO-B's are axes too; its oblique case is tried with given
ones.)
"""

import numpy as np
import pytest
import torch

from tests.support import plain_methods as plain
from tests.support.pairwise import pairwise
from tests.support.quadratic import Quadratic, make
from zo.optim import OPTIMIZERS
from zo.optim.posterior import Posterior

AUTO_LR = 100.0  # the automatic scale sqrt(n / 1e6) believes little of so small a model's slopes
PRIOR = {"prior_std": 1.5, "noise_std": 0.8}  # apart, so that mixing them up shows
MOVING_H = {"eps": 0.05, "hessian_smooth": 0.01}  # a large ε: curvatures are divided by its square
COSINE = {"smooth_schedule": "cosine", "smooth_steps": 30, "weight_decay": 0.1}

EXACT = [
    ("mezo", {"eps": 1e-3}, 1e-2),
    ("mezo", {"two_sided": False}, 1e-2),
    ("mezo", {"n": 3}, 1e-3),
    ("mezo", {"n": 3, "two_sided": False}, 1e-3),
    ("mezo", {"directions": "rademacher"}, 1e-2),
    ("bszo", {}, AUTO_LR),
    ("bszo", PRIOR, 1e-2),
    ("bszo_b", {}, AUTO_LR),
    ("bszo_b", PRIOR, 1e-2),
]
SWITCHES = {
    "k": [1, 2, 4],
    "m": [0, 1, 3],  # beyond k
    "two_sided": [False, True],
    "adaptive_noise": [True, False],
    "adaptive_sampling": [True, False],
    "noise_update": ["every", "extra"],
    "noise_floor": [0.0, 0.1, 1.0],
    "noise_std": [0.8, 10.0, 100.0],  # at which the floor is reached
    "noise_ema": [0.5, 0.9, 1.0],
}
WITHIN = [
    ("mezo", {"eps": 0.01, "weight_decay": 0.1}, 1e-2),
    ("mezo", {"step_norm": "rms"}, 1e-2),
    ("mezo", {"step_norm": "rms", "norm_beta": 0.5, "n": 3}, 1e-2),
    ("mezo_adam", {"state_dtype": "float32", "n": 2, "weight_decay": 0.1}, 1e-2),
    ("mezo_adam", {"beta1": 0.5, "beta2": 0.9, "adam_eps": 0.01}, 1e-2),
    ("mezo_adam", {"two_sided": False}, 1e-2),
    ("hizoo", MOVING_H, 1e-2),
    ("hizoo", MOVING_H | COSINE | {"state_dtype": "float32"}, 1e-2),
    ("lozo", {"interval": 20}, 5e-3),
    ("lozo", {"rank": 3, "interval": 7, "divide_by_rank": True}, 5e-3),
    ("lozo", {"rank": 3, "interval": 7, "weight_decay": 0.1}, 5e-3),
    ("adam", {"adam_eps": 1e-4}, 1e-2),  # gradients that are zero but for rounding stay small
    ("adam", {"adam_eps": 1e-4, "weight_decay": 0.1, "beta1": 0.5, "beta2": 0.9}, 1e-2),
    ("sgd", {}, 1e-2),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.1}, 1e-2),
    ("zo_sign", {}, 1e-2),
    ("zo_sign", {"n": 3}, 1e-2),
    ("zo_momentum", {}, 1e-3),
    ("zo_momentum", {"momentum": 0.5, "n": 2}, 1e-3),
    ("zo_conservative", {}, 0.1),  # at times no step is the best
    ("sparse_mezo", {"share": 0.5, "eps": 1.0}, 1e-2),
    ("sparse_mezo", {"n": 3}, 1e-2),
    ("conmezo", {}, 1e-3),
    ("conmezo", {"eps": 0.05, "angle": 0.8, "hold": 5, "ramp": 20}, 1e-3),
    ("adamezo", {}, 1e-5),
    ("adamezo", {"window": 3, "beta1": 0.5, "adam_eps": 1e-2, "scale": 1.0}, 1e-3),
    ("fzoo", {}, 1e-2),
    ("fzoo", {"n": 3}, 1e-2),
    ("lozo_m", {"interval": 7}, 1e-3),
    ("lozo_m", {"interval": 7, "rank": 3, "momentum": 0.5}, 1e-3),
    ("subzero", {"interval": 20}, 1e-3),
    ("subzero", {"rank": 3, "interval": 7}, 1e-3),
    ("tezo", {}, 1e-3),
    ("tezo", {"variant": "momentum", "rank": 3}, 1e-3),
    ("tezo", {"variant": "adam", "rank": 3, "adam_eps": 1e-3}, 1e-3),
    ("zo_muon", {"msign": "svd", "vector_lr": 0.05}, 1e-2),
    ("zo_muon", {"msign": "svd", "rank": 3, "interval": 7, "n": 2}, 1e-2),
]


def pair(name: str, settings: dict, lr: float, restore: str, **how):
    """The suite's optimizer and its loss, and a step of the rendering on a twin of θ."""
    loss = Quadratic(restore=restore, curved=True, exempt=("v",), **how)
    twin, opt = loss.weights(), make(name, loss, lr, seed=42, **settings)
    rendering = plain.Twin(opt, twin, loss, exact=restore == "snapshot")
    return opt, loss, twin, plain.RENDERINGS[name](rendering)


def run(name, settings, lr, restore, steps=50, moved=0.01, **how) -> None:
    """θ and records are the rendering's: under subtract bit for bit.

    Under snapshot θ within two float32 units of a weight of size one (2⁻²²) per step, records within a thousandth.
    """
    opt, loss, twin, rendering = pair(name, settings, lr, restore, **how)
    start = [p.clone() for p in twin]
    for _ in range(steps):
        expected, record = next(rendering), opt.step(loss).record
        if restore == "subtract":
            assert record == expected
            assert all(map(torch.equal, loss.params.tensors, twin))
            continue
        np.testing.assert_allclose(record, expected, rtol=1e-3, atol=2e-4)
        for p, q in zip(loss.params.tensors, twin, strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=steps * 2.0**-22)
    assert max(float((p - q).abs().max()) for p, q in zip(twin, start, strict=True)) > moved


@pytest.mark.parametrize(("name", "settings", "lr"), EXACT, ids=str)
def test_fifty_steps_are_those_of_the_rendering_bit_for_bit(name, settings, lr):
    run(name, settings, lr, "subtract", moved=1e-3)


@pytest.mark.parametrize("values", pairwise(*SWITCHES.values()), ids=str)
def test_each_switch_of_bszo(values):
    settings = PRIOR | dict(zip(SWITCHES, values, strict=True))
    settings["m"] += settings["k"]
    for name in ("bszo", "bszo_b"):
        run(name, settings, 1e-2, "subtract", steps=10, moved=1e-5)


@pytest.mark.parametrize(("name", "settings"), [("mezo", {}), ("bszo", PRIOR | {"k": 1})])
def test_one_direction_in_bfloat16(name, settings):
    """With one z each pass rounds once on both sides. With more the box updates z by z, the suite their sum."""
    run(name, {**settings, "eps": 0.05}, 1e-2, "subtract", moved=0.1, dtype=torch.bfloat16)


@pytest.mark.parametrize(("name", "settings", "lr"), WITHIN, ids=str)
def test_fifty_steps_are_those_of_the_rendering_within_float32(name, settings, lr):
    run(name, settings if name in ("adam", "sgd") else {"eps": 1e-2, **settings}, lr, "snapshot")


@pytest.mark.parametrize("settings", [{}, {"two_sided": True}, {"m": 7}], ids=str)
def test_oblique_directions_of_bszo_b(monkeypatch, settings):
    """Extra measurements along d neither an axis nor of unit length, one entry of it negligible.

    Sums over d may be taken in either order: μ to 1e-9, θ to one float32 unit per step.
    """
    d = np.array([1.2, -0.9, 1e-12])
    monkeypatch.setattr(Posterior, "widest_direction", lambda self: d)
    monkeypatch.setattr(plain, "top_eigenvector", lambda cov: d)
    opt, loss, twin, rendering = pair(
        "bszo_b", PRIOR | {"k": 3, "m": 5} | settings, 1e-2, "subtract"
    )
    for _ in range(20):
        expected = next(rendering)
        np.testing.assert_allclose(opt.step(loss).record, expected, rtol=0, atol=1e-9)
    for p, q in zip(loss.params.tensors, twin, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=20 * 2.0**-23)


def test_every_method_has_a_rendering():
    training = {name for name, method in OPTIMIZERS.items() if method.config.trains}
    assert training == set(plain.RENDERINGS) == {name for name, *_ in EXACT + WITHIN}
