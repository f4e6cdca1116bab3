"""Models that lie on several devices: two pretended accelerators, see tests.support.accelerator."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zo
from tests.support import accelerator
from tests.support.tiny_models import DECODERS
from zo.distributed.agreement import tensor_digest
from zo.optim import OPTIMIZERS

METHODS = [n for n, m in OPTIMIZERS.items() if m.config.trains and m.config.replays]
LOW_RANK = [name for name in METHODS if OPTIMIZERS[name].config().restore_needs()["low_rank"]]
IDS = torch.arange(20).reshape(2, 10) + 5
CASES = [
    *((name, restore) for name in METHODS for restore in ("snapshot", "streamed")),
    *((name, "merged") for name in ("mezo", "bszo", "hizoo", "mezo_adam", "lozo")),
    *((name, "factors") for name in LOW_RANK),
]


@pytest.fixture(autouse=True)
def _devices():
    accelerator.register()


class Layers(nn.Sequential):
    """Layers that fetch their input onto their own device."""

    def __init__(self, *devices: str):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = nn.Embedding(30, 16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 30)
        super().__init__(*(layer.to(d) for layer, d in zip(layers, devices, strict=True)))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x.to(layer.weight.device))
        return F.cross_entropy(x[:, :-1].flatten(0, 1), IDS[:, 1:].flatten().to(x.device))


def trained(model: nn.Module, name: str, restore: str, loss) -> tuple[list[float], list[int]]:
    """Returns losses, and digests of all weights and of the method's state, after three steps."""
    optimizer = zo.optimizer(name, model, lr=1e-2, restore=restore, check_closure=False)
    losses = [optimizer.step(loss) for _ in range(3)]
    state = [t for of in optimizer.method.state.values() for t in of]
    return losses, [tensor_digest(t) for t in [*model.parameters(), *state]]


@pytest.mark.parametrize(("name", "restore"), CASES)
def test_a_model_on_several_devices_trains_as_on_one(name, restore):
    one = Layers(*["cpu"] * 4)
    many = Layers("cpu", "pretend:0", "pretend:1", "pretend:0")
    assert {str(p.device) for p in many.parameters()} == {"cpu", "pretend:0", "pretend:1"}
    found = [trained(model, name, restore, lambda m=model: m(IDS)) for model in (one, many)]
    assert found[0] == found[1]
    assert len(set(found[0][0])) == 3


@pytest.mark.parametrize("name", METHODS)
def test_a_step_waits_for_the_device_where_it_reads_a_loss(name):
    model, ids = Layers(*["pretend:0"] * 4), IDS.to("pretend:0")
    optimizer = zo.optimizer(name, model, lr=1e-2, restore="snapshot", check_closure=False)
    optimizer.step(lambda: model(ids))
    with accelerator.copies_to_host() as copies:
        optimizer.step(lambda: model(ids))
    elsewhere = [line for line in copies if "float(loss)" not in line]
    assert len(copies) - len(elsewhere) == optimizer.method.forwards_per_step
    assert elsewhere == [line for line in copies if name == "conmezo" and "conmezo.py" in line][:1]


@pytest.mark.parametrize("restore", ["merged", "snapshot", "streamed"])
@pytest.mark.parametrize("kind", ["llama", "opt"])
def test_a_model_under_a_device_map_trains_as_on_one_device(kind, restore):
    """Of transformers, divided by accelerate, whose hooks move activations; OPT's embedding is tied to its head."""
    accelerate = pytest.importorskip("accelerate")

    def losses(*devices: str) -> tuple[list[float], list[int]]:
        model = DECODERS[kind](attn_implementation="eager", tie_word_embeddings=kind == "opt")
        if devices:
            first, last = devices
            paths = [n for n, m in model.named_modules() if n.endswith(".1") or not [*m.children()]]
            places = {path: last if ".layers.1" in path else first for path in paths}
            model = accelerate.dispatch_model(model, places, last)  # ids are moved to `last`
            assert {str(p.device) for p in model.parameters()} == {*devices}
        return trained(model, "bszo", restore, lambda: model(input_ids=IDS, labels=IDS).loss)

    assert losses("pretend:0", "pretend:1") == losses()


def test_what_lies_on_no_device_or_on_devices_of_several_kinds_is_refused_by_name():
    model = Layers("cpu", *["pretend:0"] * 3)
    with pytest.raises(
        ValueError, match="draws on cpu or on cuda, not on cpu and pretend; use tor"
    ):
        zo.MeZO(model, lr=1e-2, noise="philox")
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(Layers(*["cpu"] * 4), "pretend:0")
    with pytest.raises(ValueError, match=r"0\.weight: is a meta tensor without memory of its own"):
        zo.MeZO(model, lr=1e-2)
