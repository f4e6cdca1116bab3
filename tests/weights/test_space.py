"""Weights move by exactly the terms asked for, each storage once, whatever they are made of."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor, init_device_mesh

from tests.support.pairwise import pairwise, rotated
from tests.support.quadratic import DTYPES
from zo.noise import NOISES, PERTURBATION, SUBSPACE, NoiseKey, engine
from zo.noise.torch_generator import TorchEngine
from zo.weights.directions import TORCH, Gaussian, LowRank, Stored
from zo.weights.space import ParameterSpace
from zo.weights.updates import LinearUpdate


def weights(dtype: torch.dtype = torch.float32) -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    shapes = {"w": (48, 40), "b": (48,), "v": (7, 3, 2)}
    return [(n, torch.randn(s, generator=generator).to(dtype)) for n, s in shapes.items()]


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("noise", NOISES)
def test_an_update_is_the_sum_of_its_terms_and_of_decay_rounded_once(dtype, noise):
    space = ParameterSpace(weights(dtype), exempt=["b"], noise=noise)
    start = [p.double() for p in space.tensors]
    z = [Gaussian(NoiseKey(1, PERTURBATION, 0, i), space.engine) for i in range(2)]
    space.carry_out(LinearUpdate([(0.5, z[0]), (-0.25, z[1])]), 0.125)
    for i, (p, was, decays) in enumerate(zip(space.tensors, start, [1, 0, 1], strict=True)):
        exact = (1 - 0.125 * decays) * was + 0.5 * z[0].sample(i, p) - 0.25 * z[1].sample(i, p)
        assert (p != exact.to(dtype)).float().mean() < 0.005  # ties that float32 decides


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
    space.carry_out(LinearUpdate([(0.5, Stored([torch.ones(p.shape) for p in space.tensors]))]))
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


REFUSED = {
    "restore='hope': must be one of": {"restore": "hope"},
    "rounding='up': must be one of": {"rounding": "up"},
    "noise='dice': must be one of": {"noise": "dice"},
    "rounding='stochastic': .*philox": {"rounding": "stochastic"},
    "rounding='compensated': .*adds updates up in float32": {
        "restore": "factors",
        "rounding": "compensated",
    },
}


@pytest.mark.parametrize("why", REFUSED)
def test_settings_that_do_not_go_together_are_refused(why):
    with pytest.raises(ValueError, match=why):
        ParameterSpace(weights(torch.bfloat16), **REFUSED[why])


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ([], "at least one is needed"),
        ([("w", torch.ones(3, device="meta"))], "w: is a meta tensor without memory of its own"),
        ([("w", torch.ones(3, dtype=torch.int8))], "w: has the dtype torch.int8"),
        ([("w", torch.ones(1, 3).expand(4, 3))], "w: is expanded: several of its values share"),
    ],
)
def test_tensors_that_cannot_be_moved_in_place_are_refused_by_name(named, why):
    with pytest.raises(ValueError, match=why):
        ParameterSpace([*named, ("first", torch.ones(2))] if named else [])


def test_low_rank_is_rows_by_the_rest_and_plain_noise_without_columns():
    u, v = (NoiseKey(3, stream, 0, 0) for stream in (PERTURBATION, SUBSPACE))
    z = LowRank(u, v, rank=2, scale=0.5)
    left = TORCH.draw_(torch.empty(2, 6), u, 4).T
    right = TORCH.draw_(torch.empty(2, 9), v, 4).T
    found = z.sample(4, torch.zeros(6, 3, 3, dtype=torch.bfloat16))
    torch.testing.assert_close(found.view(6, 9), left @ right.T / 2, rtol=1e-6, atol=1e-6)
    assert torch.equal(z.sample(1, torch.zeros(7)), TORCH.draw_(torch.empty(7), u, 1))


KEY = NoiseKey(seed=1, stream=0, step=0, direction=0)


@pytest.fixture
def sharded(monkeypatch, tmp_path):
    """Makes DTensors of one process."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    yield lambda t: distribute_tensor(t, mesh)
    torch.distributed.destroy_process_group()


def test_dtensors_are_told_apart_and_moved_in_place(sharded):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    for layer in model:
        layer.weight = nn.Parameter(sharded(layer.weight.detach()))
    assert isinstance(model[0].weight, DTensor)
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    space = ParameterSpace.of(model)
    assert space.names == names
    before = [p.full_tensor().clone() for p in (model[0].weight, model[1].weight)]
    space.carry_out(LinearUpdate([(1.0, Gaussian(KEY, space.engine))]))
    after = [p.full_tensor() for p in (model[0].weight, model[1].weight)]
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with pytest.raises(ValueError, match=r"0\.weight is sharded; snapshot or merged move it"):
        ParameterSpace.of(model, "streamed")
    frozen = model.requires_grad_(False)
    frozen[1].bias.requires_grad_(True)  # trained beside them
    for restore in ("merged", "snapshot", "streamed"):
        assert ParameterSpace.of(frozen, restore).names == ["1.bias"]


def test_tensors_that_share_a_beginning_but_not_a_size_are_refused():
    whole = torch.ones(4)
    with pytest.raises(ValueError, match="whole: begins in memory where part does"):
        ParameterSpace([("part", whole[:2]), ("whole", whole)])
    assert ParameterSpace([("a", whole[:2]), ("b", whole[2:])]).names == ["a", "b"]


@pytest.mark.parametrize(
    ("restore", "noise"), rotated(["subtract", "merged", "snapshot", "streamed"], NOISES)
)
def test_float64_moves_in_float64(restore, noise):
    """Noise is float32; what it adds to is not rounded through float32."""
    model = nn.Linear(40, 30).double()
    space, start = ParameterSpace.of(model, restore, noise), model.weight.detach().clone()
    z = Gaussian(KEY, engine(noise))
    x = torch.randn(2, 40, dtype=torch.float64)
    moved = start + 0.1 * z.sample(0, start).double()
    bias = model.bias.detach() + 0.1 * z.sample(1, model.bias).double()
    with space.excursion() as probe, torch.no_grad():
        probe.to([(0.1, z)])
        torch.testing.assert_close(model(x), x @ moved.T + bias, rtol=1e-14, atol=1e-14)
    space.carry_out(LinearUpdate([(0.1, z)]))
    space.settle()
    torch.testing.assert_close(space.tensors[0], moved, rtol=1e-14, atol=1e-14)


def test_the_name_of_torchs_noise_on_a_gpu_holds_its_model_and_torchs_version(monkeypatch):
    gpus = {"cuda:0": "NVIDIA A100", "cuda:1": "NVIDIA H100"}
    monkeypatch.setattr(torch.cuda, "get_device_name", gpus.get)
    one, other = (TorchEngine(device).backend for device in gpus)
    assert one == f"torch-cuda (NVIDIA A100, torch {torch.__version__})"
    assert one != other
    assert TorchEngine(*gpus).backend == f"{one} + {other}"
    assert TorchEngine().backend == "torch-cpu"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_quantised_weight_that_is_to_be_trained_is_refused_by_name():
    torchao = pytest.importorskip("torchao.quantization")
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    for layer in model:
        layer.weight = nn.Parameter(layer.weight.detach(), requires_grad=True)
    with pytest.raises(ValueError, match=r"0\.weight: is a Int8Tensor without memory of its own"):
        ParameterSpace.of(model)
