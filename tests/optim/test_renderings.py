"""Trajectories of the suite against plain renderings of the papers' algorithm boxes, on the same noise.

MeZO and BSZO add the same numbers in the same order on both sides: θ and coefficients are compared bit for bit after
every step. Methods with arithmetic of their own (moments, H, low-rank products, weight decay) may take it in another
order: they run with tolerances, in float32 units. Σ stays diagonal as long as the first directions are axes, so
BSZO-B's are axes too; its oblique case is tried with given ones.
"""

import numpy as np
import pytest
import torch

from tests.support import plain_methods as plain
from tests.support.pairwise import pairwise
from tests.support.quadratic import FIRST_ORDER, Quadratic, make
from zo.optim import OPTIMIZERS
from zo.optim.posterior import Posterior

AUTO_LR = 100.0  # the automatic scale sqrt(n / 1e6) believes little of so small a model's slopes
PRIOR = {"prior_std": 1.5, "noise_std": 0.8}  # apart, so that mixing them up shows
MOVING_H = {"eps": 0.05, "hessian_smooth": 0.01}  # a large ε: curvatures are divided by its square
COSINE = {"smooth_schedule": "cosine", "smooth_steps": 30, "weight_decay": 0.1}

EXACT = [
    ("mezo", {"eps": 1e-3}, 1e-2),
    ("mezo", {"two_sided": False}, 1e-2),
    ("mezo", {"n": 3, "two_sided": False}, 1e-3),
    ("mezo", {"directions": "rademacher"}, 1e-2),
    ("bszo", {}, AUTO_LR),
    ("bszo", PRIOR, 1e-2),
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
    ("mezo", {"anchor": "start", "anchor_decay": 5.0, "weight_decay": 0.1}, 1e-2),
    ("mezo", {"anchor": "start", "anchor_decay": 0.1, "anchor_norm": "l1"}, 1e-2),
    ("mezo", {"step_norm": "rms", "norm_beta": 0.5, "n": 3}, 1e-2),
    ("mezo_adam", {"state_dtype": "float32", "n": 2, "weight_decay": 0.1}, 1e-2),
    ("mezo_adam", {"beta1": 0.5, "beta2": 0.9, "adam_eps": 0.01, "two_sided": False}, 1e-2),
    ("hizoo", MOVING_H, 1e-2),
    ("hizoo", MOVING_H | COSINE | {"state_dtype": "float32"}, 1e-2),
    ("lozo", {"interval": 20}, 5e-3),
    ("lozo", {"rank": 3, "interval": 7, "divide_by_rank": True, "weight_decay": 0.1}, 5e-3),
    # ε: gradients that are zero but for rounding stay small
    ("adam", {"adam_eps": 1e-4, "weight_decay": 0.1, "beta1": 0.5, "beta2": 0.9}, 1e-2),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.1}, 1e-2),
    ("zo_sign", {"n": 3}, 1e-2),
    ("zo_momentum", {"momentum": 0.5, "n": 2}, 1e-3),
    ("zo_conservative", {}, 0.1),  # at times no step is the best
    ("sparse_mezo", {"share": 0.5, "eps": 1.0, "n": 3}, 1e-2),
    ("sparse_mezo", {"share": 0.5, "eps": 1.0, "scope": "all"}, 1e-2),
    ("conmezo", {"eps": 0.05, "angle": 0.8, "hold": 5, "ramp": 20}, 1e-3),
    ("adamezo", {}, 1e-5),
    ("adamezo", {"window": 3, "beta1": 0.5, "adam_eps": 1e-2, "scale": 1.0}, 1e-3),
    ("fzoo", {"n": 3}, 1e-2),
    ("lozo_m", {"interval": 7}, 1e-3),
    ("lozo_m", {"interval": 7, "rank": 3, "momentum": 0.5, "divide_by_rank": True}, 1e-3),
    ("subzero", {"interval": 20}, 1e-3),
    ("subzero", {"rank": 3, "interval": 7}, 1e-3),
    ("tezo", {}, 1e-3),
    ("tezo", {"variant": "momentum", "rank": 3}, 1e-3),
    ("tezo", {"variant": "adam", "rank": 3, "adam_eps": 1e-3}, 1e-3),
    ("zo_muon", {"msign": "svd", "rank": 3, "interval": 7, "n": 2, "vector_lr": 0.05}, 1e-2),
    ("es", {"n": 8}, 1e-2),
    ("es", {"n": 6, "shaping": "none", "weight_decay": 0.1}, 1e-2),
    ("es", {"n": 5, "mirrored": False, "shaping": "ranks", "directions": "rademacher"}, 3e-2),
    ("es", {"n": 4, "directions": "low_rank", "rank": 4, "weight_decay": 0.1}, 1e-2),
    ("es_at_scale", {"n": 7}, 1e-2),
    ("eggroll", {"n": 8}, 1e-2),
]


RENDERED = dict.fromkeys(("mezo_adam", "adam", "sgd", "zo_momentum"), "torchs") | {"bszo_b": "bszo"}
RENDERED |= {"es_at_scale": "es", "eggroll": "es", "lozo_m": "lozo"}


def run(name: str, settings: dict, lr: float, steps: int = 50, exact: bool = False) -> None:
    """θ and coefficients are the rendering's: bit for bit where that is asked for.

    Else θ within two float32 units of a weight of size one (2⁻²²) per step, coefficients within a thousandth.
    """
    given = settings if name in FIRST_ORDER else {"eps": 1e-2, **settings}
    loss = Quadratic(restore="snapshot")
    opt = make(name, loss, lr, seed=42, **given)
    twin = plain.Twin(opt, loss)
    rendering = getattr(plain, RENDERED.get(name, name))(twin)
    apart = steps * 2.0**-22
    for _ in range(steps):
        expected, coefficients = next(rendering), opt.step(loss).coefficients
        np.testing.assert_allclose(
            coefficients, expected, rtol=0 if exact else 1e-3, atol=2e-4 * (not exact)
        )
        torch.testing.assert_close(loss.weights(), twin.theta, rtol=0, atol=apart * (not exact))
    assert (twin.theta - twin.first).abs().max() > 20 * apart


@pytest.mark.parametrize(("name", "settings", "lr"), EXACT + WITHIN, ids=str)
def test_fifty_steps_are_those_of_the_rendering(name, settings, lr):
    run(name, settings, lr, exact=(name, settings, lr) in EXACT)


@pytest.mark.parametrize("values", pairwise(*SWITCHES.values()), ids=str)
def test_each_switch_of_bszo(values):
    settings = PRIOR | dict(zip(SWITCHES, values, strict=True))
    settings["m"] += settings["k"]
    for name in ("bszo", "bszo_b"):
        run(name, settings, 1e-2, steps=10, exact=True)


@pytest.mark.parametrize("settings", [{}, {"two_sided": True}, {"m": 7}], ids=str)
def test_oblique_directions_of_bszo_b(monkeypatch, settings):
    """Extra measurements along d neither an axis nor of unit length, one entry of it negligible."""
    d = np.array([1.2, -0.9, 1e-12])
    monkeypatch.setattr(Posterior, "widest_direction", lambda self: d)
    monkeypatch.setattr(plain, "top_eigenvector", lambda cov: d)
    run("bszo_b", PRIOR | {"k": 3, "m": 5} | settings, 1e-2, steps=20)


def test_widest_axis_is_the_top_eigenvectors_not_the_diagonals():
    """An oblique Σ whose largest diagonal entry is not the top eigenvector's largest entry."""
    posterior = Posterior(3, 1.0)
    posterior.cov = np.array([[2.0, 0.0, 0.0], [0.0, 1.5, 1.4], [0.0, 1.4, 1.6]])
    assert posterior.widest_axis() == 2
    v = posterior.widest_direction()
    assert v @ posterior.cov @ v == pytest.approx(np.linalg.eigvalsh(posterior.cov).max())


def test_every_released_method_has_a_rendering():
    assert {name for name, *_ in EXACT + WITHIN} == OPTIMIZERS.keys()
