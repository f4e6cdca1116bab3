"""Weights move by exactly the terms asked for, each storage once, and come back."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from tests.support.pairwise import pairwise
from tests.support.quadratic import DTYPES, POLICIES, UNIT_ROUNDOFF
from zo.noise import NoiseKey
from zo.weights.directions import Gaussian
from zo.weights.space import ParameterSpace

Z = [Gaussian(NoiseKey(seed=1, stream=0, step=0, direction=i)) for i in range(3)]


@dataclass(frozen=True)
class Constant:
    """Every entry the same."""

    value: float

    def sample(self, i: int, p: Tensor) -> Tensor:
        return torch.full(p.shape, self.value)


def weights(dtype: torch.dtype = torch.float32) -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    shapes = {"w": (48, 40), "b": (48,), "v": (7, 3, 2)}
    return [(n, torch.randn(s, generator=generator).to(dtype)) for n, s in shapes.items()]


def copies(space: ParameterSpace) -> list[Tensor]:
    return [t.clone() for t in space.tensors]


def sum_in_float64(start: list[Tensor], terms) -> list[Tensor]:
    return [
        p.double() + sum(c * z.sample(i, p).double() for c, z in terms) for i, p in enumerate(start)
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_update_is_the_sum_of_its_terms_and_of_decay_rounded_once(dtype):
    """One rounding to the dtype, and a few of float32 arithmetic on the way."""
    space = ParameterSpace(weights(dtype), exempt=["b"])
    assert space.decays == [True, False, True]
    start, decay = copies(space), 0.125
    terms = [(0.5, Z[0]), (-0.25, Z[1]), (0.002, Z[2])]
    space.add_(terms, decay)
    moved = sum_in_float64(start, terms)
    for p, exact, was, does in zip(space.tensors, moved, start, space.decays, strict=True):
        expected = exact - decay * was.double() if does else exact
        allowed = UNIT_ROUNDOFF[dtype] * expected.abs() + 4 * 2.0**-24 * (was.double().abs() + 4)
        assert (p.double() - expected).abs().le(allowed).all()
        assert dtype == torch.float32 or (p != expected.to(dtype)).float().mean() < 0.005


class RMSNorm(nn.Module):
    """Named as every library names its own; of no common base class."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


class Scaled(nn.LayerNorm):
    """A normalisation layer whose own name does not say so."""


class Layers(nn.Module):
    """Names that mislead: `norm_in` is a linear layer, `first` and `second` are normalisation."""

    def __init__(self):
        super().__init__()
        self.norm_in = nn.Linear(4, 4)
        self.first = nn.LayerNorm(4)
        self.second = RMSNorm()
        self.third = Scaled(4)
        self.bias_table = nn.Embedding(2, 4)
        self.gain = nn.Parameter(torch.ones(4))
        self.bias = nn.Parameter(torch.zeros(4))
        self.head = nn.Linear(4, 2, bias=False)
        self.head.weight = self.bias_table.weight
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)


def test_tied_tensors_move_once_and_frozen_ones_not_at_all():
    model = Layers()
    start = model.head.weight.detach().clone()
    space = ParameterSpace.of(model)
    assert not [name for name in space.names if "head" in name or "frozen" in name]
    space.add_([(1.0, Constant(0.5))])
    assert torch.equal(model.bias_table.weight, start + 0.5)
    assert model.head.weight is model.bias_table.weight
    assert model.frozen.eq(0).all()


def test_biases_and_norms_do_not_decay_whatever_their_names():
    space = ParameterSpace.of(Layers())
    decayed = {name for name, does in zip(space.names, space.decays, strict=True) if does}
    assert decayed == {"norm_in.weight", "bias_table.weight", "gain"}


@pytest.mark.parametrize(
    ("name", "bad", "dtype"),
    pairwise(["w", "b", "v"], [float("nan"), float("inf"), -float("inf")], DTYPES),
)
def test_the_first_tensor_that_is_not_finite_is_named(name, bad, dtype):
    space = ParameterSpace(weights(dtype))
    assert space.non_finite() is None
    space.tensors[space.names.index(name)].view(-1)[-1] = bad
    found, value = space.non_finite()
    assert found == name
    assert value == abs(bad) or (bad != bad and value != value)
    space.tensors[0].view(-1)[0] = bad
    assert space.non_finite()[0] == "w"


def test_unknown_policy_and_empty_space_are_refused():
    with pytest.raises(ValueError, match="restore"):
        ParameterSpace(weights(), restore="hope")
    with pytest.raises(ValueError, match="tensor"):
        ParameterSpace([])


@pytest.mark.parametrize("policy", POLICIES)
def test_excursion_counts_from_theta_and_not_from_its_last_place(policy):
    space = ParameterSpace(weights(), policy)
    start = copies(space)
    eps = 0.01
    stops = [[(eps, Z[0])], [(-eps, Z[0])], [(eps, Z[1]), (eps, Z[0])], [(2 * eps, Z[2])], []]
    with space.excursion() as trip:
        for terms in stops:
            trip.to(terms)
            for p, exact in zip(space.tensors, sum_in_float64(start, terms), strict=True):
                torch.testing.assert_close(p.double(), exact, rtol=0, atol=3e-6)
