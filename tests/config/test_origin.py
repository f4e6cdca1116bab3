"""A path of one's own: the model's name, its revision, and whose learning rates it is offered."""

import json
from pathlib import Path
from unittest.mock import Mock

from zo import config
from zo.config import command_line, notes
from zo.config.identity import run_id
from zo.config.origin import name_of

BASE = ["task=phrases", "steps=1"]

config.register()


def run(*overrides):
    (found,) = command_line.runs([*BASE, *overrides])
    return found


def test_a_model_of_ones_own_is_named_after_its_path_unless_a_name_is_given():
    """By its last component that means something."""
    assert "My-Model" in config.describe(run("model.path=/models/My Model"))
    own = run("model.path=/models/mine", "model.name=ours")
    assert config.from_yaml(config.to_yaml(own)).model.name == own.model.name == "ours"
    snapshot = "/hub/models--facebook--opt-1.3b/snapshots/3f5c25d0"
    found = [name_of(path) for path in ("Qwen/Qwen3-0.6B", "/a/b/", snapshot, ".")]
    assert found == ["Qwen3-0.6B", "b", "opt-1.3b", Path.cwd().name]


def test_learning_rates_of_another_model_are_said_once():
    (note,) = notes(run("model.path=/models/mine", "model.name=ours"))
    assert note.startswith("lr=0.0003 is one of the learning rates of reviews-tiny (0.0001, 0.0003")
    assert "ours" in note
    for own in ("model.path=/models/mine lr=2e-5", "", "model=opt-1.3b model.path=/opt-1.3b"):
        assert notes(run(*own.split())) == []


def test_a_model_of_ones_own_runs_in_the_dtype_that_it_is_stored_in(tmp_path):
    stored = {"dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    given = [f"model.path={tmp_path}", "lr=1e-6"]
    own = run(*given)
    assert (own.precision.name, own.precision.dtype) == ("bf16", "bfloat16")
    assert run_id(own) == run_id(run(*given, "precision=bf16"))
    assert notes(own)[0].startswith("precision=bf16, as the weights of ")
    assert notes(run(*given, "precision.noise=philox", "precision.rounding=stochastic")) == []
    (note,) = notes(run(*given, "precision=fp32"))
    assert note.endswith("are stored in bfloat16; precision.dtype=bfloat16 keeps that")
    assert run().precision.dtype == run("model=opt-13b").precision.dtype == "float32"


def test_the_copy_of_a_files_model_runs_in_float32_whatever_its_directory_is_called(tmp_path):
    """And a model of one's own as it is stored, also in a directory with the name of the default model."""
    ids = set()
    for name in ("opt-1.3b", "opt_1.3b", "reviews-tiny"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"dtype": "float16"}')
        copy = run("model=opt-1.3b", f"model.path={tmp_path / name}")
        ids.add((copy.precision.dtype, run_id(copy)))
        assert run(f"model.path={tmp_path / name}").precision.dtype == "float16"
    assert len(ids) == 1
    assert "float32" in min(ids)


def test_a_run_has_its_id_before_the_hub_s_cache_has_its_model(monkeypatch, tmp_path):
    stored = {"dtype": "float16", "architectures": ["RobertaForMaskedLM"], "vocab_size": 50265}
    stored |= {"hidden_size": 1024, "num_hidden_layers": 24}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    fetch = Mock(return_value=str(tmp_path / "config.json"))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    monkeypatch.setattr("zo.tasks.hub.answers", lambda: True)
    own = run("model.path=someone/never-loaded", "task.masked_prompt='{text}'")
    fetch.assert_called_once_with("someone/never-loaded", "config.json", revision=None)
    assert (own.model.kind, own.precision.name) == ("masked", "fp16")
    assert own.model.lr_grid_of == "roberta-large"
    stored = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert run("model.path=someone/with-pictures").model.kind == "decoder"


def test_a_pinned_revision_belongs_to_its_own_repository():
    assert run("model=opt-1.3b").model.revision
    assert run("model=opt-1.3b", "model.path=Qwen/Qwen3-0.6B").model.revision is None
    assert run("model=opt-1.3b", "model.path=a/b", "model.revision=dev").model.revision == "dev"
    assert run("task=sst2").task.revision
    assert run("task=rotten_tomatoes").task.install
    assert run("task=rotten_tomatoes", "task.data_files.train=/a.csv").task.install is None
    assert run("task=sst2", "task.path=stanfordnlp/sst2").task.revision is None
