"""Exports: the model or adapter of a step as transformers and peft load it, which answers as the run did."""

import json
import os
import re
import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from tests.support.runs import REVIEWS_TINY
from tests.support.tiny_models import VOCABULARY, llama, random_model, tokenizer
from zo import export as export_command
from zo.run import provenance
from zo.run.assembly import Assembly, load_adapted
from zo.run.provenance import weights_hash
from zo.run.results.replay import replay_to
from zo.run.runner import run
from zo.run.store import checkpoint
from zo.run.store.directory import Inputs, directory_of
from zo.run.store.rows import trajectory_of
from zo.weights.space import ParameterSpace

EXACT = ("optimizer=mezo", "precision.noise=philox", "precision.restore=streamed")
TOKENS = torch.arange(5, 15)[None]


def export(directory: Path, out: Path, *arguments: str) -> Path:
    assert export_command.main([str(directory), "--out", str(out), *arguments]) == 0
    return out


def exported(directory: Path, out: Path, *arguments: str) -> AutoModelForCausalLM:
    model = AutoModelForCausalLM.from_pretrained(export(directory, out, *arguments)).eval()
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight, "tied, as in the run"
    return model


def hash_of(model: torch.nn.Module) -> str:
    return weights_hash(*ParameterSpace.of(model).gathered())


FACTORS = ("optimizer=lozo", "precision.restore=factors", "lr=1e-3")
"""LOZO's interval does not end within the run: its factors stand beside the weights."""
KEEPS_BEST = "checkpoint.keep_best=true"


BSZO, SGD = ("optimizer=bszo", "precision=bf16"), ("optimizer=sgd", "lr=1e-2", KEEPS_BEST)
ADAM = "optimizer=adam", "lr=1e-3"


@pytest.mark.parametrize("overrides", [BSZO, SGD, ADAM, FACTORS, (*FACTORS, KEEPS_BEST)])
@pytest.mark.process
def test_the_best_steps_model_is_that_of_the_run(make_run, tmp_path, overrides):
    """Replayed, or from the best step's checkpoint."""
    cfg = make_run(*overrides, "eval_every=1")
    summary, directory, assembly = run(cfg), directory_of(cfg), Assembly.of(cfg)
    model, step = exported(directory, tmp_path / "weights"), summary["best/step"]
    assert checkpoint.steps(directory) == [step] * cfg.checkpoint.keeps_best(cfg.optimizer)
    if cfg.optimizer.replays:
        replay_to(assembly, trajectory_of(directory), step)
    else:
        assert checkpoint.load_newest(directory, assembly.optimizer, step) == step
    assert assembly.weights_hash() == summary["best/weights"]
    with torch.inference_mode():
        answers = assembly.loaded.model(TOKENS).logits
        torch.testing.assert_close(model(TOKENS).logits, answers)
    assembly.params.policy.merge_factors()
    assert hash_of(model) == assembly.weights_hash()


def test_rows_that_were_lost_never_give_another_steps_model(make_run, tmp_path, refused):
    """The trajectory file beside cut rows has the best step; without it the steps that are there have to be named."""
    cfg = make_run(*EXACT, "eval_every=1")
    summary, directory = run(cfg), directory_of(cfg)
    last = hash_of(exported(directory, tmp_path / "whole", "--step", "last"))
    rows = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
    (directory / "metrics.jsonl").write_text(rows[0])
    assert hash_of(exported(directory, tmp_path / "last", "--step", "last")) == last
    assert hash_of(exported(directory, tmp_path / "best")) == summary["best/weights"]
    (directory / "trajectory.bin").unlink()
    for step in ("best", "last"):
        said = refused(export_command.main, directory, "--out", tmp_path / "c", "--step", step)
        assert "is cut off or was altered; ask for step 1, or one before it" in said


def test_step_0_is_the_base_model_and_a_run_may_have_been_moved(finished, tmp_path):
    moved = tmp_path / "elsewhere" / directory_of(finished).name
    moved.parent.mkdir()
    directory_of(finished).rename(moved)
    model = exported(moved, tmp_path / "weights", "--step", "0")
    assert hash_of(model) == Assembly.of(finished).weights_hash()


@pytest.mark.process
def test_what_cannot_be_exported_is_said_in_a_sentence(make_run, tmp_path, refused):
    """A sentence that names what is missing or in the way; nothing is written."""
    sgd = make_run("optimizer=sgd", "steps=1")
    prompt = make_run("optimizer=mezo", "adapter=prompt", "steps=1")
    run(sgd)
    run(prompt)
    directory, out, of_prompt = directory_of(sgd), tmp_path / "weights", directory_of(prompt)
    renamed = shutil.copytree(directory, tmp_path / "my-best-run")
    rowless = shutil.copytree(of_prompt, tmp_path / "rowless" / of_prompt.name)
    (rowless / "metrics.jsonl").unlink()
    (rowless / "trajectory.bin").unlink()
    for arguments, why in (
        ([of_prompt, "--step", "1", "--merge"], "virtual tokens cannot be merged into"),
        ([rowless, "--step", "1"], "metrics.jsonl: no step of "),
        ([renamed], "or rename the directory"),
        ([directory], "steps of sgd cannot be made again"),
        ([directory, "--step", "0", "--out", renamed], "is there and not an empty directory"),
        ([directory, "--step", "two"], "'two' is no step"),
        ([directory, "--step", "0", "--model", tmp_path / "no"], "model.path"),
        ([tmp_path], "give a run's directory, as "),
    ):
        assert why in refused(export_command.main, "--out", out, *arguments)
        assert not out.exists()


@pytest.mark.parametrize("adapter", ["none", "lora"])
@pytest.mark.process
def test_a_model_card_tells_what_the_model_was_made_of_and_how_to_load_it(
    make_run, tmp_path, capsys, adapter
):
    """Whole models with transformers, adapters with peft; the code of the card runs."""
    over = ("model.quantization=int8", "adapter.r=4") * (adapter == "lora")
    cfg = make_run(f"adapter={adapter}", *EXACT, *over, "seed=5", "steps=2")
    summary, directory, out = run(cfg), directory_of(cfg), tmp_path / "weights"
    inputs = Inputs.load(directory)
    export(directory, out)
    text = (out / "README.md").read_text()
    told = dict(re.findall(r"^\| (.*?) \| (.*) \|$", text, re.MULTILINE))
    head = yaml.safe_load(text.split("---\n")[1])
    assert head["library_name"] == ("transformers" if adapter == "none" else "peft")
    assert told["base weights"] == inputs.read["weights"]
    assert told["train examples"] == inputs.read["train"]
    assert told["file model.path"] == inputs.files["model.path"]
    assert told["optimizer.eps"] == str(cfg.optimizer.eps)
    keys = ("lr", "step", "seed", "trained tensors")
    values = (str(cfg.lr), "2 of at most 2", "5", summary["best/weights"])
    assert [told[key] for key in keys] == [*values]
    assert [told[f"precision.{key}"] for key in ("loss", "noise")] == ["float32", "philox"]
    assert f"accuracy {summary['best/val_accuracy']:.1%}, loss" in told["validation"]
    assert f"macro F1 {summary['best/test_macro_f1']:.1%}" in told["test"]
    assert told["trained with commit"] == provenance.git_revision()
    for said in (text, capsys.readouterr().out):
        assert ("trained over int8 weights" in said) == (adapter == "lora")
    code, made = text.split("```python")[1].split("```")[0], {}
    exec(code.replace("this directory", str(out)), made)
    assert isinstance(made["model"], torch.nn.Module)
    for plain in (True, False) if adapter == "lora" else ():
        again = make_run("adapter=lora", f"adapter.path={out}", *EXACT, *(over[:1] * (not plain)))
        notes = load_adapted(again)[1].notes
        told = "adapter.path: it was trained over int8 weights; model.quantization=int8 has them"
        assert (told in notes) == plain


def test_an_export_has_the_base_models_settings_and_usual_file_modes(make_run, tmp_path):
    base = shutil.copytree(REVIEWS_TINY, tmp_path / "base")
    settings = json.loads((base / "config.json").read_text()) | {"use_cache": True, "mine": 1}
    settings.pop("bos_token_id")
    (base / "config.json").write_text(json.dumps(settings))
    (base / "generation_config.json").unlink(missing_ok=True)
    tokens = AutoTokenizer.from_pretrained(base)
    tokens.chat_template = {"default": "A", "tool_use": "B"}
    tokens.save_pretrained(base)
    cfg = make_run("optimizer=mezo", "steps=1", f"model.path={base}", "precision=bf16")
    run(cfg)
    out, before = tmp_path / "weights", os.umask(0o027)
    try:
        model = exported(directory_of(cfg), out, "--step", "1")
    finally:
        os.umask(before)
    dtype = "dtype" if "dtype" in settings else "torch_dtype"
    assert json.loads((out / "config.json").read_text()) == {**settings, dtype: "bfloat16"}
    assert model.dtype == torch.bfloat16
    assert not (out / "generation_config.json").exists()
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in out.rglob("*")}
    assert modes == {(False, 0o640), (True, 0o750)}


def rounded(model, *args, save=PreTrainedModel.save_pretrained, **kwargs):
    name, p = next(iter(model.named_parameters()))
    save(model, *args, state_dict={**model.state_dict(), name: p.half().float()}, **kwargs)


FULL = "No space left on device"
OF_MODEL, OF_TOKENIZER = (
    f"transformers.{of}.save_pretrained" for of in ("PreTrainedModel", "PreTrainedTokenizerBase")
)
OTHER = "transformers would read another model.decoder.embed_tokens.weight than was trained"
FAILING = [
    (OF_TOKENIZER, mock.Mock(side_effect=OSError(28, FULL)), FULL),
    (OF_TOKENIZER, mock.Mock(side_effect=SafetensorError(f"{FULL} (os error 28)")), FULL),
    (OF_MODEL, rounded, OTHER),
]


@pytest.mark.parametrize(("saving", "fails", "why"), FAILING)
def test_an_export_that_fails_leaves_nothing_behind(
    finished, tmp_path, monkeypatch, refused, saving, fails, why
):
    """Where a disk is full, as Python and safetensors raise it, and where transformers would read other weights."""
    out = tmp_path / "there" / "weights"
    out.mkdir(parents=True)
    monkeypatch.setattr(saving, fails)
    said = refused(export_command.main, directory_of(finished), "--step=4", f"--out={out}")
    assert said == f"{out}: {why}; nothing is left of the export"
    assert [*out.parent.rglob("*")] == [out]


ADAPTERS = [
    ("lora", 1, "fp32"),
    pytest.param("lora", 1, "bf16", marks=pytest.mark.process),
    pytest.param("prefix", 1e-2, "bf16", marks=pytest.mark.process),
    pytest.param("ia3", 1e-2, "fp32", marks=pytest.mark.process),
]


@pytest.mark.parametrize(("adapter", "lr", "precision"), ADAPTERS)
def test_an_adapter_answers_the_same_in_peft_merged_and_in_a_run_of_its_own(
    make_run, tmp_path, capsys, adapter, lr, precision
):
    """Of a model in half precision, too: peft keeps the adapter in float32 as the run did."""
    from peft import PeftModel

    settings = (f"adapter={adapter}", *EXACT, f"lr={lr}", "eval_every=1", f"precision={precision}")
    cfg = make_run(*settings)
    summary, directory, assembly = run(cfg), directory_of(cfg), Assembly.of(cfg)
    out, start = export(directory, tmp_path / "adapter"), assembly.weights_hash()
    replay_to(assembly, trajectory_of(directory), summary["best/step"])
    assert assembly.weights_hash() == summary["best/weights"] != start
    base = json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"]
    dtype = getattr(torch, cfg.precision.dtype)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype).eval()
    stored = load_file(out / "adapter_model.safetensors").values()
    assert {t.dtype for t in stored} == {torch.float32}
    with torch.inference_mode():
        untrained, trained = model(TOKENS).logits, assembly.loaded.adapter(TOKENS).logits
        assert torch.equal(PeftModel.from_pretrained(model, out).eval()(TOKENS).logits, trained)
        if adapter == "lora":
            merged = exported(directory, tmp_path / "merged", "--merge")
            atol = 1e-3 if precision == "fp32" else 30 * torch.finfo(dtype).eps
            count = sum(p.numel() for p in merged.parameters())
            own = assembly.params.numel
            merging = f"{count:,} parameters, {own:,} of them trained and merged"
            assert merging in capsys.readouterr().out
            torch.testing.assert_close(merged(TOKENS).logits, trained, rtol=0, atol=atol)
            assert (untrained - trained).abs().max() > 0.05
            assert not (tmp_path / "merged" / "adapter_config.json").exists()
    after = Assembly.of(make_run(*settings, f"adapter.path={out}", "seed=9"))
    assert after.weights_hash() == assembly.weights_hash()


def test_the_hash_of_the_base_model_holds_its_frozen_weights(make_run, tmp_path):
    path = shutil.copytree(REVIEWS_TINY, tmp_path / "model")
    cfg = make_run("adapter=lora", *EXACT, f"model.path={path}")
    base, weights = Assembly.of(cfg).base, load_file(path / "model.safetensors")
    next(t for name, t in weights.items() if "layers.0.fc1.weight" in name)[0, 0] += 1
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    assert Assembly.of(cfg).base != base


def base_of(model, path: Path) -> Path:
    """Writes a tiny model with a tokenizer, as `model.path` takes it."""
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def in_fp8(path: Path) -> Path:
    """Has a checkpoint's projections in 8 bits, a scale per 16 x 16 block, as transformers' FineGrainedFP8."""
    tensors, found = load_file(path / "model.safetensors"), {}
    for name, t in tensors.items():
        found[name] = t.contiguous()
        if "proj" in name:
            blocks = t.unflatten(1, (-1, 16)).unflatten(0, (-1, 16))  # (rows, 16, columns, 16)
            scale = blocks.abs().amax((1, 3)) / 448
            codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
            found |= {name: codes.view(t.shape), f"{name}_scale_inv": scale}
    save_file(found, path / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((path / "config.json").read_text())
    how = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
    settings["quantization_config"] = {**how, "modules_to_not_convert": ["lm_head"]}
    (path / "config.json").write_text(json.dumps(settings))
    return path


RWKV = {"hidden_size": 32, "num_hidden_layers": 3, "rescale_every": 1, "vocab_size": VOCABULARY}


@pytest.mark.parametrize("kind", ["fp8", "rwkv"])
def test_an_export_is_read_with_the_weights_that_were_trained(make_run, tmp_path, capsys, kind):
    """The one's base would round them, the other's first forward pass changes them."""
    if kind == "fp8":
        base = in_fp8(base_of(llama(tie_word_embeddings=True), tmp_path / "base"))
    else:
        base = base_of(random_model("RwkvForCausalLM", **RWKV), tmp_path / "base")
    cfg = make_run(*EXACT, f"model.path={base}", "model.attention=eager", "lr=1e-3", "steps=2")
    run(cfg)
    assembly, directory = Assembly.of(cfg), directory_of(cfg)
    replay_to(assembly, trajectory_of(directory), 2)
    with torch.inference_mode():
        answers = assembly.loaded.model(TOKENS).logits
    capsys.readouterr()
    out = export(directory, tmp_path / "weights", "--step", "2")
    said, card = capsys.readouterr().out, (out / "README.md").read_text()
    assert ("written in float32, as trained: the base is quantised" in said) == (kind == "fp8")
    model = AutoModelForCausalLM.from_pretrained(out).eval()
    assert hash_of(model) in card
    assert "| model.path | base |" in card
    with torch.inference_mode():
        torch.testing.assert_close(model(TOKENS).logits, answers)
