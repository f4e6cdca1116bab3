"""Weights move by exactly the terms asked for, each storage once, and come back."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from tests.support.pairwise import pairwise
from tests.support.quadratic import DTYPES
from zo.noise import NoiseKey
from zo.weights.directions import Gaussian
from zo.weights.space import ParameterSpace

Z = [Gaussian(NoiseKey(seed=1, stream=0, step=0, direction=i)) for i in range(3)]
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
POLICIES = ["subtract", "merged", "snapshot"]


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


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def sum_in_float64(start: list[Tensor], terms) -> list[Tensor]:
    return [
        p.double() + sum(c * z.sample(i, p).double() for c, z in terms) for i, p in enumerate(start)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_add_moves_by_the_sum_of_its_terms(dtype):
    space = ParameterSpace(weights(dtype))
    start = copies(space)
    terms = [(0.5, Z[0]), (-0.25, Z[1]), (0.125, Z[2])]
    space.add_(terms)
    for p, exact in zip(space.tensors, sum_in_float64(start, terms), strict=True):
        assert p.dtype == dtype
        # one rounding to the dtype, and three of float32 arithmetic on the way
        allowed = UNIT_ROUNDOFF[dtype] * exact.abs() + 4 * 2.0**-24 * (exact.abs() + 4)
        assert (p.double() - exact).abs().le(allowed).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_add_of_several_terms_rounds_once(dtype):
    """Half-precision results equal the exact sum rounded once, but for near-ties of float32."""
    space = ParameterSpace(weights(dtype))
    start = copies(space)
    terms = [(0.01, Z[0]), (-0.003, Z[1]), (0.002, Z[2])]
    space.add_(terms)
    once = [exact.to(dtype) for exact in sum_in_float64(start, terms)]

    each = ParameterSpace(weights(dtype))
    for term in terms:
        each.add_([term])

    def differ(a: list[Tensor], b: list[Tensor]) -> int:
        return sum(int((x != y).sum()) for x, y in zip(a, b, strict=True))

    assert differ(space.tensors, once) <= space.numel * 0.002
    assert differ(each.tensors, once) >= space.numel * 0.05, (
        "the terms tell one rounding from three"
    )


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)


def test_tied_tensors_move_once():
    model = Tied()
    start = model.embed.weight.detach().clone()
    space = ParameterSpace.of(model)
    assert space.names == ["embed.weight", "norm.weight", "norm.bias"]
    assert space.numel == 6 * 4 + 4 + 4
    space.add_([(1.0, Constant(0.5))])
    assert torch.equal(model.embed.weight, start + 0.5)
    assert model.head.weight is model.embed.weight
    assert model.frozen.eq(0).all()


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


def test_biases_and_norms_do_not_decay_whatever_their_names():
    space = ParameterSpace.of(Layers())
    decayed = {name for name, does in zip(space.names, space.decays, strict=True) if does}
    assert decayed == {"norm_in.weight", "bias_table.weight", "gain"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_decay_takes_its_share_where_it_applies_and_in_the_same_rounding(dtype):
    space = ParameterSpace(weights(dtype), exempt=["b"])
    assert space.decays == [True, False, True]
    start, decay, terms = copies(space), 0.125, [(0.01, Z[0]), (0.02, Z[1])]
    space.add_(terms, decay)
    moved = sum_in_float64(start, terms)
    for p, exact, was, does in zip(space.tensors, moved, start, space.decays, strict=True):
        expected = exact - decay * was.double() if does else exact
        allowed = UNIT_ROUNDOFF[dtype] * expected.abs() + 4 * 2.0**-24 * (was.double().abs() + 1)
        assert (p.double() - expected).abs().le(allowed).all()


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fails", [False, True])
def test_excursion_ends_at_theta(policy, dtype, fails):
    """Bit for bit under snapshot; otherwise within half a unit in the last place per move."""
    space = ParameterSpace(weights(dtype), policy)
    start = copies(space)

    def probe() -> None:
        with space.excursion() as trip:
            trip.to([(0.02, Z[0])])
            assert not equal(space.tensors, start)
            trip.to([(-0.02, Z[0])])
            if fails:
                raise ArithmeticError

    if fails:
        with pytest.raises(ArithmeticError):
            probe()
    else:
        probe()
    if policy == "merged":
        assert not equal(space.tensors, start), "the way back is owed"
    space.settle()
    if policy == "snapshot":
        assert equal(space.tensors, start)
    moves = 3
    for i, (p, was) in enumerate(zip(space.tensors, start, strict=True)):
        reach = was.double().abs() + 0.02 * Z[0].sample(i, p).double().abs()
        allowed = moves * 1.01 * UNIT_ROUNDOFF[dtype] * reach
        assert (p.double() - was.double()).abs().le(allowed).all()
