"""The released code's step, as it is timed, makes the moves that the suite's own steps make."""

import copy

import pytest

from benchmarks.steps.released import ReleasedStep
from tests.support import tiny_models
from zo.lm.scoring.candidates import CandidateScorer
from zo.optim import OPTIMIZERS
from zo.tasks import Encoded
from zo.weights.space import ParameterSpace

PAD, LR, EPS, STEPS = 1, 1e-2, 1e-2, 3
EXAMPLES = [Encoded([2, 7, 8, 9], [[5], [6, 9]], 0), Encoded([2, 30], [[5], [6, 9]], 1)]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("mezo", {}),
        ("mezo_adam", {"adam_eps": 1.0}),
        ("hizoo", {"hessian_smooth": 1e-3}),
        ("bszo", {}),
        ("bszo", {"k": 3}),
        ("bszo_b", {}),
    ],
)
def test_it_is_the_suite_s_step_with_the_suite_s_noise(method, settings):
    """Losses differ by a float32 rounding, 1e-6, and slopes by that over ε; θ by η times as much."""
    model, config = tiny_models.opt(), OPTIMIZERS[method].config(eps=EPS, **settings)
    released = ReleasedStep(copy.deepcopy(model), PAD, config, LR)
    params, scorer = ParameterSpace.of(model), CandidateScorer(model, PAD)
    optimizer = OPTIMIZERS[method].optimizer(params, config, lr=LR, seed=3)
    start = [t.clone() for t in params.local]
    for _ in range(STEPS):
        released(EXAMPLES, lambda i, j, shape: optimizer.direction(i).sample(j, released.theta[j]))
        optimizer.step(lambda: scorer.loss(scorer.collate(EXAMPLES)))
    pairs = zip(params.local, released.theta, strict=True)
    apart = max(float((a - b).abs().max()) for a, b in pairs)
    moved = max(float((a - b).abs().max()) for a, b in zip(params.local, start, strict=True))
    assert apart < 2e-5
    assert moved > 20 * apart
    assert moved > 1e-4
