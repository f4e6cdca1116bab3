"""A path of one's own: the model's name, its revision, and whose learning rates it is offered."""

import re
from pathlib import Path

import pytest
import yaml

from zo import config
from zo.config import command_line, notes
from zo.config.origin import CONFIG_DIR, name_of

BASE = ["task=phrases", "steps=1"]


@pytest.fixture(autouse=True)
def schemas():
    config.register()


def run(*overrides):
    (found,) = command_line.runs([*BASE, *overrides])
    return found


def test_a_model_of_ones_own_is_named_after_its_path_unless_a_name_is_given():
    assert run().model.name == "reviews-tiny"
    own = run("model.path=/models/My Model")
    assert own.model.name == "My-Model"
    assert "My-Model" in config.describe(own)
    assert run("model.path=/models/mine", "model.name=ours").model.name == "ours"
    again = config.from_yaml(config.to_yaml(run("model.path=/models/mine", "model.name=ours")))
    assert again.model.name == "ours"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
        ("/a/b/", "b"),
        ("/hub/models--facebook--opt-1.3b/snapshots/3f5c25d0", "opt-1.3b"),
        (".", Path.cwd().name),
    ],
)
def test_a_name_is_the_last_component_that_means_something(path, name):
    assert name_of(path) == name


@pytest.mark.parametrize("name", [[], ["model.name=ours"]])
def test_learning_rates_of_another_model_are_said_once(name):
    own = run("model.path=/models/mine", *name)
    (note,) = notes(own)
    assert note.startswith("lr=0.0003 is one of the learning rates of reviews-tiny (0.0001, 0.0003")
    assert own.model.name in note
    assert notes(run("model.path=/models/mine", "lr=2e-5", *name)) == []
    assert notes(run()) == []
    assert notes(run("model=opt-1.3b", "model.path=/copies/opt-1.3b")) == []


def test_another_dtype_than_that_of_the_weights_is_said(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]}'
    )
    given = [f"model.path={tmp_path}", "lr=1e-6"]
    (note,) = notes(run(*given))
    assert note.startswith("precision.dtype=float32: the weights of ")
    assert note.endswith("are stored in bfloat16; precision.dtype=bfloat16 keeps that")
    assert notes(run(*given, "precision=bf16")) == []


def test_a_pinned_revision_belongs_to_its_own_repository():
    assert run("model=opt-1.3b").model.revision
    assert run("model=opt-1.3b", "model.path=Qwen/Qwen3-0.6B").model.revision is None
    assert run("model=opt-1.3b", "model.path=a/b", "model.revision=dev").model.revision == "dev"
    assert run("task=sst2").task.revision
    assert run("task=rotten_tomatoes").task.install
    assert run("task=rotten_tomatoes", "task.data_files.train=/a.csv").task.install is None
    assert run("task=sst2", "task.path=stanfordnlp/sst2").task.revision is None


def test_what_comes_from_the_hub_is_pinned_to_a_commit():
    unpinned = []
    for file in [*CONFIG_DIR.glob("model/*.yaml"), *CONFIG_DIR.glob("task/*.yaml")]:
        values = yaml.safe_load(file.read_text())
        if re.fullmatch(r"[\w-]+/[\w.-]+", values["path"]):
            pinned = re.fullmatch("[0-9a-f]{40}", values.get("revision") or "")
            unpinned += [] if pinned else [file.stem]
    assert unpinned == []
