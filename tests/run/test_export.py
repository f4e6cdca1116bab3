"""Exports: the model of a step as transformers loads it, which answers as the run did."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from zo import export as export_command
from zo.lm.scoring import CandidateScorer
from zo.run import checkpoint
from zo.run.assembly import Assembly
from zo.run.directory import directory_of
from zo.run.loop import Session
from zo.run.replay import replay_to
from zo.run.rows import trajectory_of
from zo.run.runner import run

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


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer=bszo", "precision=bf16"),
        ("optimizer=sgd", "lr=1e-2", "checkpoint.keep_best=true"),
    ],
    ids=["replayed", "from the best step's checkpoint"],
)
def test_the_best_steps_model_predicts_what_the_run_predicted(make_run, tmp_path, overrides):
    cfg = make_run(*overrides, "eval_every=1")
    summary = run(cfg)
    directory = directory_of(cfg)
    model = exported(directory, tmp_path / "weights")
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight, "tied, as in the run"
    session = Session.open(cfg)
    assert predictions(model, session, cfg) == summary["best/test_predictions"]
    noted = json.loads((directory / "predictions.json").read_text())["test"]
    assert "".join(map(str, noted)) == summary["best/test_predictions"]
    params, tensors = session.assembly.params, dict(model.named_parameters())
    for name, p in zip(params.names, params.tensors, strict=True):
        assert tensors[name].dtype == p.dtype
        p.copy_(tensors[name].detach())
    assert session.assembly.weights_hash() == summary["best/weights"]
    assert checkpoint.steps(directory) == [summary["best/step"]] * cfg.checkpoint.keep_best


@pytest.mark.parametrize("keep_best", [False, pytest.param(True, marks=pytest.mark.process)])
def test_what_stands_beside_the_weights_is_in_the_model(make_run, tmp_path, keep_best):
    """The run never reaches the end of LOZO's interval."""
    lozo = ("optimizer=lozo", "precision.restore=factors", "lr=1e-3", "eval_every=1")
    cfg = make_run(*lozo, f"checkpoint.keep_best={keep_best}")
    summary = run(cfg)
    model = exported(directory_of(cfg), tmp_path / "weights")
    session = Session.open(cfg)
    assembly, params = session.assembly, session.assembly.params
    replay_to(assembly, trajectory_of(directory_of(cfg)), summary["best/step"])
    assert assembly.weights_hash() == summary["best/weights"]
    untouched = [p.clone() for p in params.tensors]
    params.fold()
    tensors = dict(model.named_parameters())
    for name, p, q in zip(params.names, params.tensors, untouched, strict=True):
        assert torch.equal(tensors[name], p)
        assert p.dim() < 2 or not torch.equal(p, q)
    assert predictions(model, session, cfg) == summary["best/test_predictions"]


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
