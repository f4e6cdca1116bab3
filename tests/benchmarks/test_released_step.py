"""The released code's step, as it is timed, makes the moves that the suite's own steps make."""

import copy

import pytest

from benchmarks.steps.released import ReleasedStep
from tests.support.tiny_models import opt
from tests.support.tiny_runs import TinyRun

PAD, LR, EPS, STEPS = 1, 1e-2, 1e-2, 3
AUTO = {"prior_std": None, "noise_std": None}  # the scale that a released step takes


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("mezo", {}),
        ("mezo_adam", {"adam_eps": 1.0}),
        ("hizoo", {"hessian_smooth": 1e-3}),
        ("bszo", AUTO),
        ("bszo", AUTO | {"k": 3}),
        ("bszo_b", AUTO),
    ],
)
def test_it_is_the_suite_s_step_with_the_suite_s_noise(method, settings):
    """Losses differ by a float32 rounding, 1e-6, and slopes by that over ε; θ by η times as much."""
    own = TinyRun(opt(), method, "subtract", lr=LR, candidates=(1, 2), eps=EPS, **settings)
    released = ReleasedStep(copy.deepcopy(own.model), PAD, own.optimizer.config, LR)
    start = own.weights()

    def drawn(i, j, shape):
        return own.optimizer.direction(i).sample(j, released.theta[j])

    for _ in range(STEPS):
        released(own.examples, drawn)
        own.steps(1)
    pairs = zip(own.params.local, released.theta, strict=True)
    apart = max(float((a - b).abs().max()) for a, b in pairs)
    moved = max(float((a - b).abs().max()) for a, b in zip(own.params.local, start, strict=True))
    assert apart < 2e-5
    assert moved > 20 * apart
    assert moved > 1e-4
