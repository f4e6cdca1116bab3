"""Updates whose rounding is compensated: θ and what it lost are, together, the float32 weights, bit for bit."""

import pytest
import torch
from torch import Tensor

from tests.support.pairwise import rotated
from tests.support.quadratic import ZEROTH_ORDER, Quadratic, same, start
from zo.noise import NOISES, PERTURBATION, ROUNDING, NoiseKey, engine
from zo.weights.directions import Gaussian
from zo.weights.space import ParameterSpace

HALVES = [torch.bfloat16, torch.float16]
KEY = NoiseKey(seed=5, stream=ROUNDING, step=0, direction=0)
FLOAT32_STATE = {"mezo_adam", "hizoo", "zo_momentum"}


def gaussian(noise: str) -> Gaussian:
    return Gaussian(NoiseKey(5, PERTURBATION, 0, 0), engine(noise))


def masters(space: ParameterSpace) -> list[Tensor]:
    """p + c, float32."""
    assert space.residuals is not None
    return [p.float() + c for p, c in zip(space.tensors, space.residuals, strict=True)]


def optimizer(name: str, loss: Quadratic):
    settings = {"state_dtype": "float32"} if name.split()[0] in FLOAT32_STATE else {}
    settings |= {} if name.startswith("bszo") else {"weight_decay": 0.1}
    return start(name, loss, lr=1e-3, **settings | {"eps": 1e-2})


@pytest.mark.parametrize(("name", "dtype", "noise"), rotated(ZEROTH_ORDER, HALVES, NOISES), ids=str)
def test_with_an_exact_restore_it_is_mixed_precision_training(name, dtype, noise):
    """p + c are the weights of a float32 run that is fed the same records, and p those weights rounded."""
    loss = Quadratic(dtype, "snapshot", "compensated", noise, exempt=("v",))
    full = Quadratic(restore="snapshot", noise=noise, exempt=("v",))
    opt, replayed = optimizer(name, loss), optimizer(name, full)
    full.put(masters(loss.params))
    for _ in range(12):
        replayed.advance(opt.step(loss).record)
    assert same(masters(loss.params), full.params.tensors)
    assert same(loss.params.tensors, [p.to(dtype) for p in full.params.tensors])


@pytest.mark.parametrize("restore", ["subtract", "merged"])
@pytest.mark.parametrize("noise", NOISES)
def test_a_probe_and_an_update_of_nothing_leave_the_residual_alone(restore, noise):
    """c is three quarters of the unit below 1, to which the way back leads: rounding p + c again would move p."""
    space = ParameterSpace([("w", torch.ones(64).bfloat16())], restore, (), noise, "compensated")
    assert space.residuals is not None
    (c,), (p,) = space.residuals, space.tensors
    c.fill_(0.75 * 2.0**-8)
    p.fill_(1 - 2.0**-8)
    was, z = c.clone(), gaussian(noise)
    with space.excursion() as probe:
        probe.to([(2.0**-12, z)])  # lost to nearest, each time
    space.add_([], 0.0, KEY)
    space.settle()
    assert torch.equal(c, was)
    assert p.eq(1 - 2.0**-8).all()
