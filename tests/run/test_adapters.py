"""Runs with adapters: resumed, replayed, exported, and gone on with."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from zo import export as export_command
from zo.lm import load as loading
from zo.lm.config import ModelError
from zo.lm.scoring import CandidateScorer
from zo.run.assembly import Assembly
from zo.run.directory import directory_of
from zo.run.loop import Session
from zo.run.replay import replay_to
from zo.run.rows import read_rows, trajectory_of
from zo.run.runner import run

EXACT = ("optimizer=mezo", "precision.noise=philox", "precision.restore=streamed", "lr=1e-3")
ADAPTERS = [
    "lora",
    pytest.param("prefix", marks=pytest.mark.process),
    pytest.param("ia3", marks=pytest.mark.process),
]


def exported(directory: Path, out: Path, *arguments: str) -> Path:
    assert export_command.main([str(directory), "--out", str(out), *arguments]) == 0
    return out


def predictions(model, session, cfg) -> str:
    pad = session.assembly.loaded.tokenizer.pad_token_id
    found = CandidateScorer(model, pad).evaluate(session.test, cfg.eval_tokens)
    return "".join(map(str, found.predictions))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_run_that_goes_on_ends_as_one_that_was_made_at_once(make_run, tmp_path, adapter):
    cfg = make_run(f"adapter={adapter}", *EXACT)
    whole = run(cfg)
    rows = read_rows(directory_of(cfg))
    half = make_run(f"adapter={adapter}", *EXACT, "steps=2", f"out={tmp_path / 'again'}")
    run(half)
    rest = make_run(f"adapter={adapter}", *EXACT, f"out={tmp_path / 'again'}")
    found = run(rest)
    again = read_rows(directory_of(rest))
    assert [row["train/losses"] for row in again] == [row["train/losses"] for row in rows]
    for key in ("best/weights", "best/test_predictions", "best/step"):
        assert found[key] == whole[key]
    assembly = Assembly.of(cfg)
    start = assembly.weights_hash()
    replay_to(assembly, trajectory_of(directory_of(cfg)), 4)
    assert assembly.weights_hash() != start, "the steps moved the adapter"


def test_a_run_says_how_much_is_trained_and_checks_the_frozen_weights(
    make_run, monkeypatch, capsys
):
    cfg = make_run("adapter=lora", *EXACT, "steps=1")
    run(cfg)
    said = capsys.readouterr().out
    assert "adapter=lora: 8,192 parameters are trained, " in said
    base = Assembly.of(cfg).base
    given = loading._pretrained

    def altered(*arguments):
        loaded = given(*arguments)
        loaded.model.model.decoder.layers[0].fc1.weight.data[0, 0] += 1
        return loaded

    monkeypatch.setattr(loading, "_pretrained", altered)
    assert Assembly.of(cfg).base != base


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_exported_adapter_predicts_as_the_run_in_peft_and_in_a_run_of_its_own(
    make_run, tmp_path, adapter
):
    from peft import PeftModel

    cfg = make_run(f"adapter={adapter}", *EXACT, "lr=1e-2", "eval_every=1")
    summary = run(cfg)
    out = exported(directory_of(cfg), tmp_path / "adapter")
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {
        p.name for p in out.iterdir()
    }
    session = Session.open(cfg)
    replay_to(session.assembly, trajectory_of(directory_of(cfg)), summary["best/step"])
    base = json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), out
    )
    tokens = torch.arange(5, 15)[None]
    own = session.assembly.loaded.adapter
    with torch.inference_mode():
        assert torch.equal(model.eval()(tokens).logits, own(tokens).logits)
    if adapter != "prefix":
        plain = model.base_model.model
        assert predictions(plain, session, cfg) == summary["best/test_predictions"]
    after = Assembly.of(make_run(f"adapter={adapter}", *EXACT, f"adapter.path={out}", "seed=9"))
    assert after.params.names == session.assembly.params.names
    assert all(map(torch.equal, after.params.tensors, session.assembly.params.tensors))


@pytest.mark.parametrize("adapter", [ADAPTERS[0], ADAPTERS[2]])
def test_a_merged_export_loads_in_transformers_and_computes_as_the_run(make_run, tmp_path, adapter):
    cfg = make_run(f"adapter={adapter}", *EXACT, "lr=1", "eval_every=1")
    run(cfg)
    out = exported(directory_of(cfg), tmp_path / "merged", "--merge", "--step", "4")
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
    own = session.scorer.evaluate(session.test, cfg.eval_tokens).predictions
    assert predictions(model, session, cfg) == "".join(map(str, own))
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    assert not (out / "adapter_config.json").exists()


def test_a_policy_that_cannot_move_an_adapter_says_so(make_run):
    cfg = make_run("adapter=ia3", "optimizer=lozo", "precision.restore=factors", "lr=1e-3")
    with pytest.raises(ModelError, match=r"^precision\.restore=factors: .*ia3_l.* belongs to no"):
        Assembly.of(cfg)


@pytest.mark.process
@pytest.mark.parametrize(
    "overrides",
    [
        ("adapter=lora", "optimizer=adam", "lr=1e-3", "checkpoint.keep_best=true"),
        ("adapter=prefix", "optimizer=sgd", "lr=1e-2", "model.quantization=int4"),
        (
            "adapter=lora",
            "optimizer=hizoo",
            "lr=1e-3",
            "precision=bf16",
            "precision.noise=philox",
            "precision.rounding=stochastic",
            "model.quantization=int8",
        ),
        ("adapter=scales", "optimizer=mezo", "precision=fp16", "model.quantization=int8"),
        ("optimizer=bszo", "lr=1e-4", "model.quantization=int4"),
    ],
    ids=lambda given: " ".join(given[:2]),
)
def test_adapters_quantisation_methods_and_precisions_go_together(make_run, overrides):
    cfg = make_run(*overrides, "steps=2")
    summary = run(cfg)
    assert (summary["run/status"], summary["run/steps"]) == ("finished", 2)
    assembly = Assembly.of(cfg)
    trained = sum(p.numel() for p in assembly.loaded.model.parameters() if p.requires_grad)
    assert assembly.params.numel == trained


def test_virtual_tokens_are_not_merged_and_nothing_is_written(make_run, tmp_path, capsys):
    cfg = make_run("adapter=prompt", *EXACT, "steps=1")
    run(cfg)
    capsys.readouterr()
    out = tmp_path / "merged"
    arguments = [str(directory_of(cfg)), "--step", "1", "--merge", "--out", str(out)]
    assert export_command.main(arguments) == 2
    assert capsys.readouterr().err == (
        "--merge: virtual tokens are no weights of the model; export without it\n"
    )
    assert not out.exists()
