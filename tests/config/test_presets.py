"""A path of one's own: the model's name, its revision, and whose learning rates it is offered."""

import hashlib
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from zo import config
from zo.config import ConfigError, command_line, notes
from zo.config.identity import run_id
from zo.config.presets import CONFIG_DIR, name_of, unknown_copies

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


def copied(root, group, name, cache=False):
    """Makes a copy as `hf download --local-dir` does, or in the hub's cache, of the commit that a file pins."""
    commit = yaml.safe_load((CONFIG_DIR / group / f"{name}.yaml").read_text())["revision"]
    directory = root / "snapshots" / commit if cache else root
    directory.mkdir(parents=True)
    large, small = hashlib.sha256(b"{}").hexdigest(), hashlib.sha1(b"blob 2\0it").hexdigest()
    for file, content, etag in (("config.json", b"{}", large), ("README.md", b"it", small)):
        if cache:
            (root / etag).write_bytes(content)
            (directory / file).symlink_to(root / etag)
            continue
        (directory / file).write_bytes(content)
        noted = directory / ".cache" / "huggingface" / "download" / f"{file}.metadata"
        noted.parent.mkdir(parents=True, exist_ok=True)
        noted.write_text(f"{commit}\n{etag}\n1764000000.0\n")
    return directory


@pytest.mark.parametrize("cache", [False, True])
def test_a_copy_of_the_commit_that_is_pinned_counts_as_the_hubs(cache, tmp_path):
    model = copied(tmp_path / "weights", "model", "opt-1.3b", cache)
    task = copied(tmp_path / "data", "task", "rte", cache)
    hub = run("model=opt-1.3b", "task=rte")
    copy = run("model=opt-1.3b", "task=rte", f"model.path={model}", f"task.path={task}")
    assert run_id(copy) == run_id(hub)
    assert (copy.model.name, copy.task.revision) == (hub.model.name, hub.task.revision)
    assert unknown_copies(copy.model, copy.task) == []
    (task / "README.md").write_text("if")
    other = run("model=opt-1.3b", "task=rte", f"model.path={model}", f"task.path={task}")
    assert run_id(other) != run_id(hub)
    (said,) = unknown_copies(other.model, other.task)
    assert f"task.path={task}: its files are not known to be those of aps/super_glue at " in said
    assert f"hf download --repo-type dataset aps/super_glue --revision {hub.task.revision} " in said


def test_one_copy_for_tasks_of_different_data_is_refused(tmp_path):
    given = ["model=opt-1.3b", "lr=1e-6", f"task.path={tmp_path}"]
    command_line.runs([*given, "task=rte,copa"], multirun=True)
    with pytest.raises(ConfigError, match=r"task.path=.*rte, sst2"):
        command_line.runs([*given, "task=rte,sst2"], multirun=True)


def test_a_run_from_an_export_does_not_repeat_a_seed_of_what_made_it(tmp_path):
    """Nor one of what made the weights before that."""
    for name, before in (("first", "hub/model"), ("second", str(tmp_path / "first"))):
        (tmp_path / name).mkdir()
        seed = {"first": 0, "second": 1}[name]
        made = {"seed": seed, "steps": 9, "model": {"path": before}, "adapter": {"path": None}}
        (tmp_path / name / "zo.yaml").write_text(yaml.safe_dump(made))
    typed = ["lr=1e-4", f"model.path={tmp_path}/second"]
    for seed in (0, 1):
        with pytest.raises(ConfigError, match=rf"seed={seed}: .*; give 2"):
            command_line.runs([*typed, f"seed={seed}"])
    command_line.runs([*typed, "seed=2"])
    command_line.runs([*typed, "optimizer=zero_shot"])
