"""Exports: the model or adapter of a step as transformers and peft load it, which answers as the run did."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from tests.support.victims import FINAL, here
from zo import export as export_command
from zo.lm import load as loading
from zo.lm.config import ModelError
from zo.lm.scoring import CandidateScorer
from zo.run import checkpoint
from zo.run.assembly import Assembly, Session
from zo.run.directory import directory_of, freeze
from zo.run.replay import replay_to
from zo.run.rows import trajectory_of
from zo.run.runner import run
from zo.run.tracking import read_status

REVIEWS_TINY = Path(export_command.__file__).parent / "assets" / "reviews-tiny"


def export(directory: Path, out: Path, *arguments: str) -> Path:
    assert export_command.main([str(directory), "--out", str(out), *arguments]) == 0
    return out


def exported(directory: Path, out: Path, *arguments: str) -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(export(directory, out, *arguments)).eval()


def predictions(model, session, cfg) -> str:
    """A model's answers on the test split, as a run's summary has them."""
    pad = session.assembly.loaded.tokenizer.pad_token_id
    scorer = CandidateScorer(model, pad, cfg.precision.loss, cfg.model.kind, cfg.task.objective)
    return "".join(map(str, scorer.evaluate(session.test, cfg.eval_tokens).predictions))


FACTORS = ("optimizer=lozo", "precision.restore=factors", "lr=1e-3")
"""LOZO's interval does not end within the run: its factors stand beside the weights."""
KEEPS_BEST = "checkpoint.keep_best=true"


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer=bszo", "precision=bf16"),
        ("optimizer=sgd", "lr=1e-2", KEEPS_BEST),
        FACTORS,
        pytest.param((*FACTORS, KEEPS_BEST), marks=pytest.mark.process),
    ],
)
def test_the_best_steps_model_predicts_what_the_run_predicted(make_run, tmp_path, overrides):
    """Replayed, or from the best step's checkpoint."""
    cfg = make_run(*overrides, "eval_every=1")
    directory = freeze(cfg)
    assert here(directory) == 0
    summary = read_status(directory)
    step = summary["best/step"]
    model = exported(directory, tmp_path / "weights")
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight, "tied, as in the run"
    assert checkpoint.steps(directory) == [step] * cfg.checkpoint.keep_best
    session = Session.open(cfg)
    assembly, params = session.assembly, session.assembly.params
    if cfg.optimizer.replays:
        replay_to(assembly, trajectory_of(directory), step)
        last, hashes = Assembly.of(cfg), []
        replay_to(
            last, trajectory_of(directory), 4, made=lambda _: hashes.append(last.weights_hash())
        )
        assert hashes[-1] == (directory / FINAL).read_text()
        assert len(set(hashes)) == 5, "every step moves θ"
    else:
        assert checkpoint.load_newest(directory, directory.name, assembly.optimizer, step) == step
    assert assembly.weights_hash() == summary["best/weights"]
    assert predictions(model, session, cfg) == summary["best/test_predictions"]
    noted = json.loads((directory / "predictions.json").read_text())["test"]
    assert "".join(map(str, noted)) == summary["best/test_predictions"]
    unfolded, tensors = [p.clone() for p in params.tensors], dict(model.named_parameters())
    params.fold()
    for name, p, q in zip(params.names, params.tensors, unfolded, strict=True):
        assert tensors[name].dtype == p.dtype
        assert torch.equal(tensors[name], p)
        assert torch.equal(p, q) == (p.dim() < 2 or overrides[: len(FACTORS)] != FACTORS)


def test_step_0_is_the_base_model_and_a_run_may_have_been_moved(finished, tmp_path):
    moved = tmp_path / "elsewhere" / directory_of(finished).name
    moved.parent.mkdir()
    directory_of(finished).rename(moved)
    model = exported(moved, tmp_path / "weights", "--step", "0")
    params = Assembly.of(finished).params
    tied = params.names.index("model.decoder.embed_tokens.weight")
    assert torch.equal(model.lm_head.weight, params.tensors[tied])


def test_what_cannot_be_exported_is_said_in_a_sentence(make_run, tmp_path, capsys):
    """A sentence that names what is missing or in the way; nothing is written."""
    sgd, prompt = make_run("optimizer=sgd", "steps=1"), make_run("adapter=prompt", "steps=1")
    run(sgd)
    run(prompt)
    directory, out, full = directory_of(sgd), tmp_path / "weights", tmp_path / "full"
    renamed = shutil.copytree(directory, tmp_path / "my-best-run")
    name = directory_of(prompt).name
    rowless = shutil.copytree(directory_of(prompt), tmp_path / "rowless" / name)
    (rowless / "metrics.jsonl").unlink()
    full.mkdir()
    (full / "mine").touch()
    capsys.readouterr()
    for arguments, why in (
        ([directory_of(prompt), "--step", "1", "--merge"], "virtual tokens are no weights of the"),
        ([rowless, "--step", "1"], "metrics.jsonl: no step of "),
        ([renamed], "or rename the directory"),
        ([directory], "steps of sgd cannot be made again"),
        ([directory, "--step", "0", "--out", full], "is there and not an empty directory"),
        ([directory, "--step", "two"], "'two' is no step"),
        ([directory, "--step", "0", "--model", tmp_path / "no"], "model.path"),
        ([tmp_path], "a run's directory is wanted"),
    ):
        given = list(map(str, arguments))
        assert export_command.main(given if "--out" in given else [*given, "--out", str(out)]) == 2
        said = capsys.readouterr().err
        assert why in said
        assert len(said.strip().splitlines()) == 1
        assert not out.exists()


def test_an_export_has_the_base_models_settings_and_usual_file_modes(make_run, tmp_path):
    base = shutil.copytree(REVIEWS_TINY, tmp_path / "base")
    settings = json.loads((base / "config.json").read_text()) | {"use_cache": True, "mine": 1}
    settings.pop("bos_token_id")
    (base / "config.json").write_text(json.dumps(settings))
    (base / "generation_config.json").unlink(missing_ok=True)
    cfg = make_run("optimizer=mezo", "steps=1", f"model.path={base}", "precision=bf16")
    run(cfg)
    out = tmp_path / "weights"
    before = os.umask(0o027)
    try:
        model = exported(directory_of(cfg), out, "--step", "1")
    finally:
        os.umask(before)
    dtype = "dtype" if "dtype" in settings else "torch_dtype"
    assert json.loads((out / "config.json").read_text()) == {**settings, dtype: "bfloat16"}
    assert model.dtype == torch.bfloat16
    assert not (out / "generation_config.json").exists()
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o640}


FULL = "No space left on device"


def test_an_export_that_fails_leaves_nothing_behind(finished, tmp_path, monkeypatch, capsys):
    """As Python, safetensors and tokenizers raise it."""
    out = tmp_path / "there" / "weights"
    out.mkdir(parents=True)
    capsys.readouterr()
    for full in (
        OSError(28, FULL),
        SafetensorError(f"Error while serializing: I/O error: {FULL} (os error 28)"),
        Exception(f"{FULL} (os error 28)"),
    ):
        monkeypatch.setattr(
            "transformers.PreTrainedTokenizerBase.save_pretrained",
            lambda *_, full=full, **__: (_ for _ in ()).throw(full),
        )
        assert export_command.main([str(directory_of(finished)), "--step=0", f"--out={out}"]) == 2
        assert capsys.readouterr().err == f"{out}: {FULL}; nothing is left of the export\n"
        assert [*out.parent.iterdir()] == [out]
        assert [*out.iterdir()] == []


EXACT = ("optimizer=mezo", "precision.noise=philox", "precision.restore=streamed")
ADAPTERS = [
    ("lora", 1),
    pytest.param("prefix", 1e-2, marks=pytest.mark.process),
    pytest.param("ia3", 1e-2, marks=pytest.mark.process),
]


@pytest.mark.parametrize(("adapter", "lr"), ADAPTERS)
def test_the_adapter_of_a_resumed_run_predicts_the_same_in_peft_merged_and_in_a_run_of_its_own(
    make_run, tmp_path, adapter, lr
):
    from peft import PeftModel

    settings = (f"adapter={adapter}", *EXACT, f"lr={lr}", "eval_every=1")
    cfg = make_run(*settings)
    run(make_run(*settings, "steps=2"))
    summary = run(cfg)
    out = export(directory_of(cfg), tmp_path / "adapter")
    assert (out / "tokenizer.json").exists()
    session = Session.open(cfg)
    start = session.assembly.weights_hash()
    replay_to(session.assembly, trajectory_of(directory_of(cfg)), summary["best/step"])
    assert session.assembly.weights_hash() == summary["best/weights"] != start
    base = json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    tokens, own = torch.arange(5, 15)[None], session.assembly.loaded.adapter
    with torch.inference_mode():
        untrained, trained = model(tokens).logits, own(tokens).logits
        model = PeftModel.from_pretrained(model, out).eval()
        assert torch.equal(model(tokens).logits, trained)
        if adapter == "lora":
            merged = exported(directory_of(cfg), tmp_path / "merged", "--merge")
            torch.testing.assert_close(merged(tokens).logits, trained, rtol=0, atol=1e-3)
            assert (untrained - trained).abs().max() > 0.05
            assert merged.lm_head.weight is merged.model.decoder.embed_tokens.weight
            assert not (tmp_path / "merged" / "adapter_config.json").exists()
    after = Assembly.of(make_run(*settings, f"adapter.path={out}", "seed=9"))
    assert after.params.names == session.assembly.params.names
    assert all(map(torch.equal, after.params.tensors, session.assembly.params.tensors))


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
