"""What θ may be made of: tensors without memory of their own, float64, shared memory, LoRA beside quantised weights."""

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor, init_device_mesh

from tests.support.pairwise import rotated
from zo.noise import NOISES, NoiseKey, engine
from zo.noise.engines import TorchEngine
from zo.weights.directions import Gaussian
from zo.weights.space import ParameterSpace

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
    space.add_([(1.0, Gaussian(KEY, space.engine))])
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
    space.add_([(0.1, z)])
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
