"""Methods along random signs descend and replay bit for bit, or say why they do not take them."""

import pytest
import torch
from torch import nn

import zo
from tests.support.pairwise import pairwise
from zo.noise import NOISES
from zo.optim import OPTIMIZERS
from zo.optim.config import DIRECTIONS
from zo.weights.directions import FULL_SIZE, Rademacher
from zo.weights.space import ParameterSpace

SETTINGS = {
    "mezo": {"n": 2},
    "mezo_adam": {"state_dtype": "float32"},
    "bszo": {"prior_std": 4.0, "noise_std": 1.0},
    "bszo_b": {"prior_std": 4.0, "noise_std": 1.0},
}
POLICIES = ["subtract", "merged", "snapshot", "streamed"]


class Bowl:
    """Mean squared error of a linear layer, whose input is fixed."""

    def __init__(self, restore: str, noise: str, dtype: torch.dtype, name: str):
        generator = torch.Generator().manual_seed(3)
        self.model = nn.Linear(6, 5).to(dtype)
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        self.x = torch.eye(6).to(dtype)
        self.params = ParameterSpace.of(self.model, restore, noise)
        config = OPTIMIZERS[name].config(eps=1e-2, directions="rademacher", **SETTINGS[name])
        assert config.problems() == []
        lr = 0.05 if name == "mezo_adam" else 0.01
        self.optimizer = OPTIMIZERS[name].optimizer(self.params, config, lr=lr, seed=2)

    @torch.no_grad()
    def __call__(self) -> float:
        return float(self.model(self.x).float().square().sum()) / 2

    def steps(self, count: int) -> list:
        return [self.optimizer.step(self) for _ in range(count)]


def test_names_of_directions_are_those_that_are_made():
    assert tuple(FULL_SIZE) == DIRECTIONS
    assert all(OPTIMIZERS[name].config().directions == "gaussian" for name in SETTINGS)


@pytest.mark.parametrize(("name", "restore", "noise"), pairwise(SETTINGS, POLICIES, NOISES))
def test_a_method_descends_and_replays_bit_for_bit(name, restore, noise):
    dtype = torch.bfloat16 if restore == "snapshot" else torch.float32
    run, again = (Bowl(restore, noise, dtype, name) for _ in range(2))
    z = run.optimizer.direction()
    assert type(z) is Rademacher
    assert z.engine is run.params.engine
    first, made = run(), run.steps(120)
    assert run() < 0.5 * first
    assert [again.optimizer.replay(info.losses) for info in made] == made
    assert all(map(torch.equal, again.params.tensors, run.params.tensors))


@pytest.mark.parametrize("name", ["mezo", "bszo_b"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_policies_that_promise_the_same_bits_give_them(name, dtype):
    runs = {restore: Bowl(restore, "philox", dtype, name) for restore in POLICIES}
    made = {restore: run.steps(8) for restore, run in runs.items()}
    assert made["merged"] == made["subtract"]
    assert made["streamed"] == made["snapshot"]


def test_theta_is_back_and_the_update_is_along_the_signs():
    run = Bowl("snapshot", "philox", torch.float32, "bszo")
    was = [p.clone() for p in run.params.tensors]
    z = [[run.optimizer.direction(i).sample(j, p) for j, p in enumerate(was)] for i in range(2)]
    *mean, _ = run.steps(1)[0].record
    for j, (p, q) in enumerate(zip(run.params.tensors, was, strict=True)):
        expected = q.double() - 0.01 * sum(
            mu * z_i[j].double() for mu, z_i in zip(mean, z, strict=True)
        )
        torch.testing.assert_close(p.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("HiZOO", "rademacher", "z², which is 1"),
        ("LOZO", "rademacher", "U and V"),
        ("BSZO", "uniform", "one of gaussian, rademacher"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(name, value, why):
    with pytest.raises(ValueError, match=f"directions={value}: must be .*{why}"):
        getattr(zo, name)(nn.Linear(2, 2), lr=0.1, directions=value)


def test_the_library_takes_the_setting():
    model = nn.Linear(6, 5)
    optimizer = zo.BSZO(model, lr=1e-3, directions="rademacher")
    optimizer.step(lambda: model.weight.square().sum())
    assert type(optimizer.method.direction()) is Rademacher
