"""Runs with adapters: resumed, replayed, exported, and gone on with."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.run.test_export import export, predictions
from zo.lm import load as loading
from zo.lm.config import ModelError
from zo.run.assembly import Assembly
from zo.run.directory import directory_of
from zo.run.loop import Session
from zo.run.replay import replay_to
from zo.run.rows import trajectory_of
from zo.run.runner import run

EXACT = ("optimizer=mezo", "precision.noise=philox", "precision.restore=streamed")
ADAPTERS = [
    "lora",
    pytest.param("prefix", marks=pytest.mark.process),
    pytest.param("ia3", marks=pytest.mark.process),
]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_adapter_of_a_resumed_run_predicts_the_same_in_peft_and_in_a_run_of_its_own(
    make_run, tmp_path, adapter
):
    from peft import PeftModel

    settings = (f"adapter={adapter}", *EXACT, "lr=1e-2", "eval_every=1")
    cfg = make_run(*settings)
    run(make_run(*settings, "steps=2"))
    summary = run(cfg)
    out = export(directory_of(cfg), tmp_path / "adapter")
    files = {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"}
    assert files <= {path.name for path in out.iterdir()}
    session = Session.open(cfg)
    start = session.assembly.weights_hash()
    replay_to(session.assembly, trajectory_of(directory_of(cfg)), summary["best/step"])
    assert session.assembly.weights_hash() == summary["best/weights"] != start
    base = json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, out).eval()
    tokens, own = torch.arange(5, 15)[None], session.assembly.loaded.adapter
    with torch.inference_mode():
        assert torch.equal(model(tokens).logits, own(tokens).logits)
    if adapter != "prefix":
        found = predictions(model.base_model.model, session, cfg)
        assert found == summary["best/test_predictions"]
    after = Assembly.of(make_run(*settings, f"adapter.path={out}", "seed=9"))
    assert after.params.names == session.assembly.params.names
    assert all(map(torch.equal, after.params.tensors, session.assembly.params.tensors))


def test_a_merged_export_loads_in_transformers_and_computes_as_the_run(make_run, tmp_path, capsys):
    cfg = make_run("adapter=lora", *EXACT, "lr=1", "eval_every=1")
    run(cfg)
    assert "adapter=lora: 8,192 parameters are trained, " in capsys.readouterr().out
    out = export(directory_of(cfg), tmp_path / "merged", "--merge", "--step", "4")
    model = AutoModelForCausalLM.from_pretrained(out).eval()
    session = Session.open(cfg)
    tokens, own = torch.arange(5, 15)[None], session.assembly.loaded.adapter
    with torch.inference_mode():
        base = own(tokens).logits
        replay_to(session.assembly, trajectory_of(directory_of(cfg)), 4)
        trained = own(tokens).logits
        found = model(tokens).logits
    torch.testing.assert_close(found, trained, rtol=0, atol=1e-3)
    assert (found - base).abs().max() > 0.05
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    assert not (out / "adapter_config.json").exists()


def test_the_hash_of_the_base_model_holds_its_frozen_weights(make_run, monkeypatch):
    cfg = make_run("adapter=lora", *EXACT)
    base, given = Assembly.of(cfg).base, loading._pretrained

    def altered(*arguments):
        loaded = given(*arguments)
        loaded.model.model.decoder.layers[0].fc1.weight.data[0, 0] += 1
        return loaded

    monkeypatch.setattr(loading, "_pretrained", altered)
    assert Assembly.of(cfg).base != base


def test_a_policy_that_cannot_move_an_adapter_says_so(make_run):
    cfg = make_run("adapter=ia3", "optimizer=lozo", "precision.restore=factors", "lr=1e-3")
    with pytest.raises(ModelError, match=r"^precision\.restore=factors: .*ia3_l.* belongs to no"):
        Assembly.of(cfg)


@pytest.mark.process
@pytest.mark.parametrize(
    "overrides",
    [
        "adapter=lora optimizer=adam lr=1e-3 checkpoint.keep_best=true",
        "adapter=prefix optimizer=sgd lr=1e-2 model.quantization=int4",
        "adapter=lora optimizer=hizoo lr=1e-3 model.quantization=int8 precision=bf16"
        " precision.noise=philox precision.rounding=stochastic",
        "adapter=scales optimizer=mezo precision=fp16 model.quantization=int8",
        "adapter=none optimizer=bszo lr=1e-4 model.quantization=int4",
    ],
)
def test_adapters_quantisation_methods_and_precisions_go_together(make_run, overrides):
    cfg = make_run(*overrides.split(), "steps=2")
    summary = run(cfg)
    assert (summary["run/status"], summary["run/steps"]) == ("finished", 2)
    assembly = Assembly.of(cfg)
    trained = sum(p.numel() for p in assembly.loaded.model.parameters() if p.requires_grad)
    assert assembly.params.numel == trained
