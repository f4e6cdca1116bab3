"""Offloaded weights: the bits of those in memory, two modules on the device, files that are watched and kept."""

import copy
import gc
import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from weakref import WeakSet

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

import zo
from tests.support import accelerator
from tests.support.quadratic import Interrupted, same
from tests.support.tiny_models import MODELS, opt
from tests.weights.test_streamed import Z, as_it_was
from zo.noise import NOISES
from zo.optim import OPTIMIZERS
from zo.weights.executor import Executor
from zo.weights.offload.backing_store import OnDisk, WeightsFile
from zo.weights.offload.transfer_stream import TransferStream
from zo.weights.offloaded import OffloadError
from zo.weights.restore import RestoreError
from zo.weights.space import ParameterSpace

IDS = torch.arange(20).reshape(2, 10) + 5
TRAINING = {n: m for n, m in OPTIMIZERS.items() if m.config.replays}
METHODS = [n for n, m in TRAINING.items() if not m.config.state_tensors]


def loss_of(model: nn.Module) -> Tensor:
    return model(input_ids=IDS, labels=IDS).loss


def trained(model: nn.Module, method: str = "mezo", steps: int = 3, **settings) -> list:
    """Returns losses and weights after some steps."""
    few = {"n": 8, "baseline": "population"} if method == "eggroll" else {}
    settings = {"noise": "philox", "check_closure": False, **few, **settings}
    optimizer = zo.optimizer(method, model, lr=1e-2, restore="streamed", **settings)
    losses = [optimizer.step(lambda: loss_of(model)) for _ in range(steps)]
    return [losses, model.state_dict()]


def left_on_disk(path: Path, model: nn.Module, dtype: torch.dtype = torch.float32):
    """Writes a model in several files and returns it as transformers leaves it there, and the files' digests."""
    model.save_pretrained(path / "model", max_shard_size="60KB")
    kind = transformers.AutoModelForCausalLM
    where = {"device_map": {"": "disk"}, "offload_folder": str(path / "converted")}
    return kind.from_pretrained(path / "model", dtype=dtype, **where).eval(), digests(path)


def digests(path: Path) -> dict[str, str]:
    files = (path / "model").iterdir()
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("noise", NOISES)
def test_whoever_touches_weights_first_in_inference_mode_leaves_them_to_steps(tmp_path, noise):
    """As an evaluation's texts between two steps, and before the first."""
    models, found = [opt() for _ in range(2)], []
    with torch.inference_mode():
        zo.offload(models[1], "disk", device="cpu", directory=tmp_path)
    for model in models:
        with torch.inference_mode():
            loss_of(model)
            optimizer = zo.MeZO(model, lr=1e-2, restore="streamed", noise=noise)
        found.append([])
        for _ in range(3):
            found[-1].append(optimizer.step(lambda model=model: loss_of(model)))
            with torch.inference_mode():
                found[-1].append(loss_of(model).item())
        found[-1].append(model.state_dict())
    assert same(*found)


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_state_is_small(method):
    """Those that are not refused keep at most a tenth of the weights' bytes on the device."""
    model = nn.Linear(2000, 1000, bias=False)
    settings = {"rank": 8} if hasattr(OPTIMIZERS[method].config, "rank") else {}
    optimizer = zo.optimizer(method, model, lr=1e-2, restore="streamed", noise="philox", **settings)
    assert optimizer.method.state_bytes() <= 0.1 * 4 * 2000 * 1000


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_an_accelerator_holds_two_modules(tmp_path, where, monkeypatch):
    """Counted whenever one of eight layers of one size computes; beside them its activations and the noise."""
    accelerator.register()
    held, sizes = WeakSet[Tensor](), []
    monkeypatch.setattr(TransferStream, "record_stream", lambda self, memory: held.add(memory))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers, x = [nn.Linear(64, 64, bias=False) for _ in range(8)], torch.randn(3, 64)
    model, found = nn.Sequential(*layers), []
    twin = copy.deepcopy(model)
    for layer in layers:
        layer.register_forward_hook(lambda *_: sizes.append(sum(map(len, held))))
    zo.offload(model, where, device="pretend:0", directory=tmp_path)
    for of, given in ((twin, x), (model, x.to("pretend:0"))):
        settings = {"noise": "torch", "check_closure": False, "prior_std": 1.0}
        optimizer = zo.BSZO(of, lr=1e-2, restore="streamed", **settings)
        losses = [optimizer.step(lambda of=of, x=given: of(x).square().mean()) for _ in range(3)]
        found.append([losses, of.state_dict()])
    assert same(*found)
    assert sizes == [2 * 64 * 64 * 4] * (3 * 3 * 8)


@torch.no_grad()
def test_a_block_comes_by_one_transfer_and_its_layer_alone_where_that_is_called(
    tmp_path, monkeypatch
):
    """The second pass calls a block's layer by itself, twice, between the blocks that were prefetched."""
    twin = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(3))
    blocks, x, works = copy.deepcopy(twin), torch.randn(2, 4), []
    own = TransferStream.submit
    monkeypatch.setattr(TransferStream, "submit", lambda *of: works.append(of) or own(*of))
    with zo.offload(blocks, "disk", device="cpu", directory=tmp_path) as offload:
        assert offload.budget == 2 * 2 * (64 + 64)
        assert torch.equal(blocks[2](blocks[1](blocks[0](x))), twin[2](twin[1](twin[0](x))))
        assert len(works) == 3
        for of in (0, 0):
            found, expected = (m[2](m[1][of](m[0](m[1][of](x)))) for m in (blocks, twin))
            assert torch.equal(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_a_gpu_computes_with_offloaded_weights_as_with_its_own(tmp_path, where, noise):
    models = [MODELS["opt, untied"]() for _ in range(2)]
    models[0].to("cuda")
    zo.offload(models[1], where, device="cuda", directory=tmp_path)
    found = []
    for model in models:
        optimizer = zo.BSZO(model, lr=1e-2, restore="streamed", noise=noise, prior_std=1.0)
        ids = IDS.to("cuda")
        losses = [
            optimizer.step(lambda m=model, x=ids: m(input_ids=x, labels=x).loss) for _ in range(3)
        ]
        found.append([losses, {name: t.cpu() for name, t in model.state_dict().items()}])
    assert same(*found)


def test_a_step_reads_the_weights_twice_and_writes_them_once(tmp_path, monkeypatch):
    """An embedding: once whole, for the update, and then the rows that are looked up."""
    model = MODELS["opt, untied"]()
    offload = zo.offload(model, "disk", device="cpu", directory=tmp_path)
    optimizer = zo.MeZO(model, lr=1e-2, restore="streamed", check_closure=False)
    names = dict(zip(map(id, offload.stores), offload.names, strict=True))
    counts = {"read": Counter[str](), "write": Counter[str]()}
    for way, count in counts.items():
        own = getattr(OnDisk, way)

        def counted(self, t, own=own, count=count):
            count[names[id(self)]] += 1
            own(self, t)

        monkeypatch.setattr(OnDisk, way, counted)
    for _ in range(2):
        optimizer.step(lambda: loss_of(model))
    assert model.lm_head.weight.sum() != 0  # a reader, for whom the last update is written, too
    assert {*counts["write"].values()} == {2}
    rows = "model.decoder.embed_tokens.weight"
    assert counts["read"][rows] == 2
    ahead = 2  # what was fetched before an update is fetched again
    assert all(4 <= n <= 6 + ahead for name, n in counts["read"].items() if name != rows)


def test_a_transfer_that_has_begun_may_apply_the_last_of_an_update(tmp_path):
    """Whoever applies the rest may find that nothing is left."""
    model = opt()
    offload = zo.offload(model, "disk", device="cpu", directory=tmp_path)
    with torch.no_grad():
        for _ in range(2):  # the second finds out what follows the last
            loss_of(model)
    offload.make_writable(range(len(offload.names)))
    for i, name in enumerate(offload.names):
        before = offload.parameters[i].clone()

        def slow(_: int, p: Tensor) -> None:
            time.sleep(0.01)
            p += 1

        offload.defer_update([i], slow)
        offload.apply_deferred()
        assert torch.equal(offload.parameters[i], before + 1), name


def test_everybody_who_reads_gets_the_updated_weights(tmp_path):
    models = [opt() for _ in range(2)]
    offload = zo.offload(models[1], "disk", device="cpu", directory=tmp_path)
    (_, weights), _ = (trained(model) for model in models)
    head = models[1].lm_head.weight
    assert torch.equal(head.detach(), weights["lm_head.weight"])
    models[1].save_pretrained(tmp_path / "saved")
    again = type(models[1]).from_pretrained(tmp_path / "saved").state_dict()
    assert same({**again}, {**weights})
    plain = copy.deepcopy(models[1])
    assert type(plain.lm_head.weight) is nn.Parameter
    with torch.no_grad():
        assert torch.equal(loss_of(plain), loss_of(models[0]))
        head.zero_()  # a writer
        assert loss_of(models[1]) != loss_of(models[0])
    models[1].load_state_dict(weights)
    assert same(*(trained(model) for model in models))
    with pytest.raises(TypeError, match="pickle its state_dict"):
        torch.save(models[1], tmp_path / "whole.pt")
    offload.close()
    assert same(*(trained(model) for model in models))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_was_left_on_disk_trains_in_a_copy(tmp_path, dtype):
    """The files stay as they are, also those of another dtype; a record makes the steps again."""
    model, before = left_on_disk(tmp_path, opt(), dtype)
    head = model.model.decoder.embed_tokens.weight
    offload = zo.offload(model, "disk", device="cpu", directory=tmp_path / "copy")
    assert model.model.decoder.embed_tokens.weight is head
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    twin = opt().to(dtype)
    record = tmp_path / "record.bin"
    found = trained(model, record=record)
    assert same(found, trained(twin))
    assert digests(tmp_path) == before
    kept = "trained-0" if dtype == torch.float32 else "model"
    assert [path.stem for path in (tmp_path / "copy").iterdir()] == [kept]
    offload.close()
    again = opt().to(dtype)
    zo.replay(again, record)
    assert same(again.state_dict(), found[1])


@pytest.mark.parametrize("where", ["disk", "cpu"])
@pytest.mark.parametrize("kind", ["bin", "safetensors"])
@pytest.mark.parametrize("equal", [True, False])
def test_both_names_of_a_tied_pair_in_the_files_train_as_in_memory(tmp_path, where, kind, equal):
    """As every pytorch_model.bin of a tied model has them. Pairs with different values stay apart."""
    model, folder = opt(), tmp_path / "model"
    model.save_pretrained(folder)
    weights = {name: t.clone() for name, t in model.state_dict().items()}
    weights["lm_head.weight"] += 0 if equal else 0.1
    (folder / "model.safetensors").unlink()
    if kind == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load = transformers.AutoModelForCausalLM.from_pretrained
    place = {"device_map": {"": "disk"}, "offload_folder": str(tmp_path / "converted")}
    models = [load(folder, dtype=torch.float32, **more).eval() for more in ({}, place)]
    if where == "cpu":
        accelerator.register()
    device = "cpu" if where == "disk" else "pretend:0"
    zo.offload(models[1], where, device=device, directory=tmp_path / "copy")
    head, table = models[1].lm_head.weight, models[1].model.decoder.embed_tokens.weight
    assert (head is table) == equal
    if where == "disk":
        assert same(*(trained(model) for model in models))


def test_a_model_in_more_files_than_a_process_may_open_trains(tmp_path):
    model, _ = left_on_disk(tmp_path, opt())
    gc.collect()  # of earlier tests, which may close files
    before = len(os.listdir("/proc/self/fd"))
    zo.offload(model, "disk", device="cpu", directory=tmp_path / "copy")
    trained(model)
    assert len(os.listdir("/proc/self/fd")) == before


def test_lora_trains_over_files_that_nobody_copies(tmp_path):
    peft = pytest.importorskip("peft")
    on_disk, before = left_on_disk(tmp_path, opt())
    zo.offload(on_disk, "disk", device="cpu", directory=tmp_path / "copy")
    found = []
    for model in (opt(), on_disk):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "fc1"]))
        adapted = adapted.eval()
        losses = []
        for restore in ("streamed", "merged", "snapshot"):
            optimizer = zo.BSZO(adapted, lr=1e-1, restore=restore, prior_std=1.0)
            losses += [optimizer.step(lambda m=adapted: loss_of(m)) for _ in range(2)]
        found.append([losses, peft.get_peft_model_state_dict(adapted)])
    assert same(*found)
    assert not (tmp_path / "copy").exists()
    assert digests(tmp_path) == before
    with pytest.raises(RuntimeError, match="nothing can be backpropagated"):
        loss_of(adapted)


def test_a_file_larger_than_all_memory_is_read_where_it_is(tmp_path):
    path, count = tmp_path / "model.safetensors", os.sysconf("SC_PHYS_PAGES") * 4096
    described = {"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}
    header = json.dumps(described).encode()
    with path.open("wb") as file:  # sparse: its zeros take no room
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + 4 * count)
    found = WeightsFile(path).tensors()["w"]
    found.tensor[-1] = 2.0
    assert found.tensor[-1] == 2.0
    assert found.piece(count - 2, count).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("where", ["memory", "disk"])
@torch.no_grad()
def test_the_probe_after_an_interrupt_at_any_line_finds_the_model_as_it_was(tmp_path, where):
    """Every seventh line of the room, of two probes through two blocks."""
    blocks, x = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2)), torch.ones(2, 4)
    if where == "disk":
        zo.offload(blocks, "disk", device="cpu", directory=tmp_path)
    space, lines, last = ParameterSpace.of(blocks, "streamed", noise="philox"), 0, 0
    loss = Executor.of(lambda: blocks[1](blocks[0](x)).sum())

    def traced(frame, event, _):
        nonlocal lines
        if "/zo/weights/" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        if lines == last:
            raise Interrupted
        return traced

    def probe(at: int) -> list[float]:
        nonlocal lines, last
        lines, last, before = 0, at, sys.gettrace()
        sys.settrace(traced if at else None)
        try:
            return space.measure(loss, [[[(0.5, Z[0])], [(-0.5, Z[0])]]])
        finally:
            sys.settrace(before)

    expected, before = probe(0), as_it_was(blocks)
    probe(-1)
    for at in range(1, lines, 7):
        with pytest.raises(Interrupted):
            probe(at)
        assert probe(0) == expected
        assert as_it_was(blocks) == before


def test_a_second_optimizer_of_other_weights_leaves_the_copy_of_the_first(tmp_path):
    on_disk, _ = left_on_disk(tmp_path, opt())
    zo.offload(on_disk, "disk", device="cpu", directory=tmp_path / "copy")
    found = []
    for model in (opt(), on_disk):
        losses = []
        for layer in model.model.decoder.layers:
            model.requires_grad_(False)
            layer.requires_grad_(True)
            losses += trained(model)[0]
        found.append([losses, model.state_dict()])
    assert same(*found)


def removed(path: Path) -> None:
    path.unlink()


def touched(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(("change", "of"), [(removed, "base"), (touched, "base"), (cut, "copy")])
def test_a_file_that_is_removed_or_changed_ends_the_step_and_is_named(tmp_path, change, of):
    model, _ = left_on_disk(tmp_path, opt())
    model.requires_grad_(False).model.decoder.layers[1].requires_grad_(True)
    zo.offload(model, "disk", device="cpu", directory=tmp_path / "copy")
    optimizer = zo.MeZO(model, lr=1e-2, restore="streamed")
    optimizer.step(lambda: loss_of(model))
    path = min((tmp_path / ("model" if of == "base" else "copy")).glob("*.safetensors"))
    change(path)
    with pytest.raises(OffloadError, match=f"{path}: (removed|changed|cut off) while"):
        [optimizer.step(lambda: loss_of(model)) for _ in range(2)]


def test_an_update_that_was_written_in_part_is_never_taken_for_whole(tmp_path, monkeypatch):
    model = opt()
    zo.offload(model, "disk", device="cpu", directory=tmp_path)
    optimizer = zo.MeZO(model, lr=1e-2, restore="streamed")
    optimizer.step(lambda: loss_of(model))

    def full(*_) -> None:
        raise OSError(28, "No space left on device", "file")

    monkeypatch.setattr(WeightsFile, "write", full)
    with pytest.raises(OSError, match="No space left"):
        optimizer.step(lambda: loss_of(model))
    monkeypatch.undo()
    with pytest.raises(OSError, match="No space left"):
        model.state_dict()


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def test_gradients_pass_layers_that_need_no_weight_for_them_and_no_others(tmp_path):
    model, x = nn.Sequential(Shifted(), nn.Tanh(), Shifted()), torch.randn(3, 5, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    zo.offload(model, "disk", device="cpu", directory=tmp_path / "shifted")
    assert torch.equal(torch.autograd.grad(model(x).square().sum(), x)[0], expected)
    linear = nn.Sequential(nn.Linear(5, 5))
    zo.offload(linear, "disk", device="cpu", directory=tmp_path / "linear")
    with pytest.raises(RuntimeError, match="nothing can be backpropagated"):
        linear(x)


def test_an_update_that_fails_in_a_transfer_ahead_is_not_applied_once_more(tmp_path):
    model = opt()
    offload = zo.offload(model, "disk", device="cpu", directory=tmp_path)
    with torch.no_grad():
        for _ in range(2):  # the second finds out what follows the last
            loss_of(model)
    tried, begun = [], threading.Event()

    def failing(i: int, _: Tensor) -> None:
        tried.append(i)
        begun.set()
        time.sleep(0.05)
        raise OSError(28, "No space left on device", "file")

    offload.defer_update(range(len(offload.names)), failing)
    begun.wait(10)
    with pytest.raises(OSError, match="No space left"):
        offload.apply_deferred()
    assert len(tried) == 1


class Keeping(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.weight[:1]
        return super().forward(x)


class Reading(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.layer.weight


def halves(*_):
    return nn.Linear(4, 4, dtype=torch.bfloat16)


REFUSED = [
    (nn.Linear, {"restore": "merged"}, "restore='merged'"),
    (nn.Linear, {"restore": "snapshot"}, "restore='snapshot'"),
    (nn.Linear, {"name": "mezo_adam"}, "mezo_adam keeps 1.6e-07 GB .* take 1.28e-07 GB"),
    (halves, {"rounding": "compensated"}, "rounding='compensated'"),
    (Keeping, {}, "keeps a view of its weights"),
    (lambda *_: Reading(), {}, r"layer\.weight is read outside"),
]


@pytest.mark.parametrize(("make", "settings", "says"), REFUSED)
def test_what_does_not_go_together_is_refused(tmp_path, make, settings, says):
    model = make(4, 4)
    how = {"name": "mezo", "restore": "streamed", "check_closure": False, **settings}
    zo.offload(model, "disk", device="cpu", directory=tmp_path)
    with pytest.raises((ValueError, RestoreError), match=says):
        zo.optimizer(params=model, lr=1e-2, **how).step(lambda: model(torch.ones(2, 4)).sum())


def test_what_cannot_be_offloaded_is_refused(tmp_path, monkeypatch):
    def refuses(message: str, model: nn.Module, where: str = "disk", **more) -> None:
        with pytest.raises(ValueError, match=message):
            zo.offload(model, where, **{"device": "cpu", "directory": tmp_path, **more})

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    refuses("must be cpu or disk", model, "nvme")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refuses("device='cuda': PyTorch finds no CUDA device", model, device="cuda")
    refuses("the CPU computes", model, "cpu")
    refuses("directory: must be given", model, directory=None)
    refuses(r"weight: is on the meta device, and no file is known", nn.Linear(4, 4, device="meta"))
    model[1].weight.data = model[0].weight.data
    refuses("1.weight: shares its memory with 0.weight", model)
    model = nn.Linear(4, 4)
    optimizers = []
    with zo.offload(model, "disk", device="cpu", directory=tmp_path):
        refuses("weight: is offloaded already", model)
        optimizers.append(zo.MeZO(model, lr=1e-2, restore="streamed"))
    with pytest.raises(RuntimeError, match="the offload is closed"):
        optimizers[0].step(lambda: model(torch.ones(2, 4)).sum())
