"""Weights move by exactly the terms asked for, each storage once, whatever they are made of."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from tests.support.pairwise import pairwise, rotated
from tests.support.quadratic import DTYPES, same
from zo.library.methods import METHODS
from zo.noise import NOISES, PERTURBATION, SUBSPACE, NoiseKey, engine
from zo.optim import OPTIMIZERS
from zo.weights.directions import TORCH, Gaussian, LowRank, Stored
from zo.weights.space import ParameterSpace, non_finite
from zo.weights.updates import LinearUpdate


def weights(dtype: torch.dtype = torch.float32) -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    shapes = {"w": (48, 40), "b": (48,), "v": (7, 3, 2)}
    return [(n, torch.randn(s, generator=generator).to(dtype)) for n, s in shapes.items()]


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("noise", NOISES)
def test_an_update_is_the_sum_of_its_terms_and_of_decay_rounded_once(dtype, noise):
    space = ParameterSpace(weights(dtype), exempt=["b"], noise=noise)
    start = [p.double() for p in space.local]
    z = [Gaussian(NoiseKey(1, PERTURBATION, 0, i), space.engine) for i in range(2)]
    space.apply_update(LinearUpdate([(0.5, z[0]), (-0.25, z[1])]), 0.125)
    for i, (p, was, decays) in enumerate(zip(space.local, start, [1, 0, 1], strict=True)):
        exact = (1 - 0.125 * decays) * was + 0.5 * z[0].sample(i, p) - 0.25 * z[1].sample(i, p)
        assert (p != exact.to(dtype)).float().mean() < 0.005  # ties that float32 decides


class Scaled(nn.LayerNorm):
    """A normalisation layer whose own name does not say so."""


class Layers(nn.Module):
    """Names that mislead: `norm_in` is a linear layer, `first` and `second` are normalisation."""

    def __init__(self):
        super().__init__()
        self.norm_in = nn.Linear(4, 4)
        self.first, self.second = nn.RMSNorm(4), Scaled(4)
        self.bias_table = nn.Embedding(2, 4)
        self.head = nn.Linear(4, 2)
        self.head.weight = self.bias_table.weight
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)


def test_tied_tensors_move_once_frozen_ones_not_at_all_and_biases_and_norms_do_not_decay():
    model = Layers()
    start, space = model.head.weight.detach().clone(), ParameterSpace.of(model)
    decays = dict(zip(space.names, space.decays, strict=True))
    assert {name for name, does in decays.items() if does} == {
        "norm_in.weight",
        "bias_table.weight",
    }
    still = {"norm_in.bias", "head.bias", "first.weight", "second.weight", "second.bias"}
    assert {name for name, does in decays.items() if not does} == still
    space.apply_update(LinearUpdate([(0.5, Stored([torch.ones(p.shape) for p in space.local]))]))
    assert torch.equal(model.bias_table.weight, start + 0.5)
    assert model.head.weight is model.bias_table.weight


@pytest.mark.parametrize(
    ("name", "bad", "dtype"),
    pairwise(["w", "b", "v"], [float("nan"), float("inf"), -float("inf")], DTYPES),
)
def test_the_first_tensor_that_is_not_finite_is_named(name, bad, dtype):
    space = ParameterSpace(weights(dtype))
    assert non_finite(space) is None
    space.local[space.names.index(name)].view(-1)[-1] = bad
    assert str(non_finite(space)) == str((name, abs(bad)))
    space.local[0].view(-1)[0] = bad
    assert non_finite(space)[0] == "w"


ONES = torch.ones(4)
REFUSED = [
    ("rounding='up': must be one of", ONES, {"rounding": "up"}),
    ("rounding='stochastic': must be nearest", ONES.bfloat16(), {"rounding": "stochastic"}),
    ("w: is a meta tensor without memory of its own", ONES.to("meta"), {}),
    ("w: has the dtype torch.int8", ONES.to(torch.int8), {}),
    ("w: is expanded: several of its values share", ONES.expand(3, 4), {}),
    ("half: begins in memory where w does", ONES, {}),
]


@pytest.mark.parametrize(("why", "tensor", "settings"), REFUSED)
def test_what_cannot_be_moved_and_settings_that_do_not_exist_are_refused(why, tensor, settings):
    with pytest.raises(ValueError, match=why):
        ParameterSpace([("w", tensor), ("half", ONES[:2])], **settings)
    with pytest.raises(ValueError, match="at least one must require a gradient"):
        ParameterSpace([])


def test_low_rank_is_rows_by_the_rest_and_plain_noise_without_columns():
    u, v = (NoiseKey(3, stream, 0, 0) for stream in (PERTURBATION, SUBSPACE))
    z = LowRank(u, v, rank=2, scale=0.5)
    left = TORCH.draw_(torch.empty(2, 6), u, 4).T
    right = TORCH.draw_(torch.empty(2, 9), v, 4).T
    found = z.sample(4, torch.zeros(6, 3, 3, dtype=torch.bfloat16))
    torch.testing.assert_close(found.view(6, 9), left @ right.T / 2, rtol=1e-6, atol=1e-6)
    assert torch.equal(z.sample(1, torch.zeros(7)), TORCH.draw_(torch.empty(7), u, 1))


KEY = NoiseKey(seed=1, stream=0, step=0, direction=0)


@pytest.mark.parametrize(
    ("restore", "noise"), rotated(["subtract", "merged", "snapshot", "streamed"], NOISES)
)
def test_float64_moves_in_float64(restore, noise):
    """Noise is float32; what it adds to is not rounded through float32."""
    model, x = nn.Linear(40, 30, bias=False).double(), torch.randn(2, 40, dtype=torch.float64)
    space, z = ParameterSpace.of(model, restore, noise), Gaussian(KEY, engine(noise))
    moved = model.weight.detach() + 0.1 * z.sample(0, model.weight).double()
    with space.policy.excursion() as probe, torch.no_grad():
        probe.to([(0.1, z)])
        torch.testing.assert_close(model(x), x @ moved.T, rtol=1e-14, atol=1e-14)
    space.apply_update(LinearUpdate([(0.1, z)]))
    space.policy.finish_restore()
    torch.testing.assert_close(space.local[0], moved, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "noise", "restore"), rotated(list(METHODS), NOISES, ["merged", "snapshot", "streamed"])
)
def test_tensors_without_values_are_stepped_over(name, noise, restore):
    """Those with values move as they do alone."""
    if OPTIMIZERS[name].config.reads_weights:
        restore = "streamed"
    given = {"baseline": "population"} if hasattr(OPTIMIZERS[name].config, "baseline") else {}

    def trained(*shapes):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.LayerNorm(5))
        for i, shape in enumerate(shapes):
            tensor = torch.nn.Parameter(torch.zeros(shape))
            model.append(torch.nn.Module()).get_submodule(str(2 + i)).weight = tensor
        optimizer = METHODS[name](model, lr=1e-3, noise=noise, restore=restore, **given)
        for _ in range(2):
            optimizer.step(lambda: model[:2](torch.ones(3, 6)).square().sum())
        return [*model[:2].parameters()]

    assert same(trained((0,), (0, 4), (4, 0), (2, 0, 3)), trained())


@pytest.mark.parametrize("restore", ["streamed", "factors"])
def test_layers_are_freed_with_their_space(restore):
    model = nn.Sequential(nn.Linear(3, 3))
    space, seen = ParameterSpace.of(model, restore), weakref.ref(model[0])
    del model, space
    gc.collect()
    assert seen() is None
