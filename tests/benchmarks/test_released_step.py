"""The released code's step, as it is timed, makes the moves that the suite's own steps make."""

import copy

import pytest

from benchmarks.steps.released import ReleasedStep
from tests.support import tiny_models
from zo.lm.scoring import CandidateScorer
from zo.optim import OPTIMIZERS
from zo.tasks import Encoded
from zo.weights.space import ParameterSpace

PAD, LR, EPS, STEPS = 1, 1e-2, 1e-2, 3
EXAMPLES = [Encoded([2, 7, 8, 9], [[5], [6, 9]], 0), Encoded([2, 30], [[5], [6, 9]], 1)]


def both(method, **settings):
    model = tiny_models.opt()
    config = OPTIMIZERS[method].config(eps=EPS, **settings)
    released = ReleasedStep(copy.deepcopy(model), PAD, config, LR)
    params = ParameterSpace.of(model)
    optimizer = OPTIMIZERS[method].optimizer(params, config, lr=LR, seed=3)
    scorer = CandidateScorer(model, PAD)
    return released, optimizer, lambda: scorer.loss(scorer.collate(EXAMPLES))


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
    released, optimizer, loss = both(method, **settings)
    start = [t.clone() for t in optimizer.params.tensors]
    for _ in range(STEPS):
        released(EXAMPLES, lambda i, j, shape: optimizer.direction(i).sample(j, released.theta[j]))
        optimizer.step(loss)
    tensors = optimizer.params.tensors
    apart = max(float((a - b).abs().max()) for a, b in zip(tensors, released.theta, strict=True))
    moved = max(float((a - b).abs().max()) for a, b in zip(tensors, start, strict=True))
    assert apart < 2e-5
    assert moved > 20 * apart
    assert moved > 1e-4


def test_all_passes_of_a_step_draw_the_same_noise():
    """With η = 0 a step ends where it began, up to rounding; a pass that drew anew would leave εz behind."""
    released, _, _ = both("bszo")
    start, released.lr = [p.clone() for p in released.theta], 0.0
    released(EXAMPLES)
    apart = [float((a - b).abs().max()) for a, b in zip(released.theta, start, strict=True)]
    assert max(apart) < 1e-6 < EPS
