"""Models that lie on several devices: two pretended accelerators, see tests.support.accelerator."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zo
from tests.support import accelerator
from tests.support.tiny_models import opt
from zo.distributed.agreement import tensor_digest
from zo.optim import OPTIMIZERS

METHODS = [n for n, m in OPTIMIZERS.items() if m.config.replays]
LOW_RANK = [name for name in METHODS if OPTIMIZERS[name].config().restore_needs()["low_rank"]]
IDS = torch.arange(20).reshape(2, 10) + 5
FEW = {"eggroll": {"n": 8, "baseline": "population"}}
CASES = [
    *((name, restore) for name in METHODS for restore in ("snapshot", "streamed")),
    *((name, "merged") for name in ("mezo", "bszo", "hizoo", "mezo_adam", "lozo")),
    *((name, "factors") for name in LOW_RANK),
]


@pytest.fixture(autouse=True)
def _devices():
    accelerator.register()


def layers(*devices: str) -> nn.Sequential:
    """Returns layers that fetch their input onto their own device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = nn.Embedding(30, 16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 30)
    for layer, device in zip(made, devices, strict=True):
        layer.to(device).register_forward_pre_hook(lambda of, x: x[0].to(of.weight.device))
    return nn.Sequential(*made)


def loss_of(model: nn.Sequential) -> Tensor:
    found = model(IDS)[:, :-1].flatten(0, 1)
    return F.cross_entropy(found, IDS[:, 1:].flatten().to(found.device))


def trained(model: nn.Module, name: str, restore: str, loss) -> tuple[list[float], list[int]]:
    """Returns losses, and digests of all weights and of the method's state, after three steps."""
    settings = {"lr": 1e-2, "noise": "torch", "check_closure": False, **FEW.get(name, {})}
    optimizer = zo.optimizer(name, model, restore=restore, **settings)
    losses = [optimizer.step(loss) for _ in range(3)]
    state = [t for of in optimizer.method.state.values() for t in of]
    return losses, [tensor_digest(t) for t in [*model.parameters(), *state]]


@pytest.mark.parametrize(
    ("name", "restore"),
    [pytest.param(*of, marks=[pytest.mark.process] * (i % 2)) for i, of in enumerate(CASES)],
)
def test_a_model_trains_alike_on_several_devices_and_under_the_users_default_dtype_and_device(
    name, restore
):
    one, other = (layers(*["cpu"] * 4) for _ in range(2))
    many = layers("cpu", "pretend:0", "pretend:1", "pretend:0")
    assert {str(p.device) for p in many.parameters()} == {"cpu", "pretend:0", "pretend:1"}
    expected = trained(one, name, restore, partial(loss_of, one))
    assert len({*expected[0]}) == 3
    assert trained(many, name, restore, partial(loss_of, many)) == expected
    try:
        torch.set_default_dtype(torch.bfloat16)
        torch.set_default_device("meta")
        assert trained(other, name, restore, partial(loss_of, other)) == expected
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_waits_for_the_device_where_it_reads_a_loss(name):
    model = layers(*["pretend:0"] * 4)
    settings = {"check_closure": False, **FEW.get(name, {})}
    optimizer = zo.optimizer(name, model, lr=1e-2, restore="snapshot", **settings)
    optimizer.step(partial(loss_of, model))
    accelerator.COPIES.clear()
    optimizer.step(partial(loss_of, model))
    own = 1 if name == "conmezo" else 0  # its momentum's length
    assert len(accelerator.COPIES) == optimizer.method.config.forwards_per_step + own


@pytest.mark.parametrize("restore", ["merged", "snapshot", "streamed"])
def test_a_model_under_a_device_map_trains_as_on_one_device(restore):
    """Of transformers, divided by accelerate, whose hooks move activations; its embedding is tied to its head."""
    accelerate = pytest.importorskip("accelerate")
    one, many = (opt(attn_implementation="eager") for _ in range(2))
    paths = [n for n, m in many.named_modules() if n.endswith(".1") or not [*m.children()]]
    places = {path: f"pretend:{int('.layers.1' in path)}" for path in paths}
    accelerate.dispatch_model(many, places, "pretend:1")  # ids are moved there
    assert {str(p.device) for p in many.parameters()} == {"pretend:0", "pretend:1"}
    found = [
        trained(model, "bszo", restore, lambda m=model: m(input_ids=IDS, labels=IDS).loss)
        for model in (one, many)
    ]
    assert found[0] == found[1]


def test_what_lies_on_no_device_or_on_devices_of_several_kinds_is_refused_by_name():
    model = layers(*["pretend:0"] * 4)
    assert zo.MeZO(model, lr=1e-2).method.params.engine.backend == "torch-pretend"
    model = layers("cpu", *["pretend:0"] * 3)
    with pytest.raises(ValueError, match="not on cpu and pretend; use torch"):
        zo.MeZO(model, lr=1e-2, noise="philox")
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(layers(*["cpu"] * 4), "pretend:0")
    with pytest.raises(ValueError, match=r"0\.weight: is a meta tensor"):
        zo.MeZO(model, lr=1e-2)
