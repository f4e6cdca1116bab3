"""The shipped models are the files that their checksums name, and a tool makes the same bytes twice."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import zo
from tools.pretraining import sha256

ASSETS = Path(zo.__file__).parent / "assets"


@pytest.fixture
def tool():
    pytest.importorskip("reasoning_gym")
    from tools import pretrain_reasoning_tiny

    return pretrain_reasoning_tiny


@pytest.mark.parametrize("model", ["reviews-tiny", "reasoning-tiny"])
def test_shipped_files_have_their_checksums(model):
    folder = ASSETS / model
    sums = (folder / "SHA256SUMS").read_text().split()
    found = {name: sha256(folder / name) for name in sums[1::2]}
    assert [*found.values()] == sums[::2]
    assert found["model.safetensors"] in (folder / "README.md").read_text()


def test_the_model_answers_a_quarter_of_its_sums_or_more(tool):
    path = ASSETS / "reasoning-tiny"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    made = tool.reasoning_gym.create_dataset(
        "chain_sum", size=40, seed=7, **tool.TASKS["chain_sum"]
    )
    rows = [tool.encode(tokenizer, (item["question"], item["answer"])) for item in made]
    assert 0.25 <= tool.exact(model, rows) < 1


def test_the_tool_makes_the_same_bytes_twice(tool, tmp_path):
    recipe = tool.Recipe(steps=3, batch_size=8, problems=40, width=32, layers=1, asked=4)
    said = [tool.pretrain(recipe, tmp_path / name) for name in ("a", "b")]
    assert said[0] == said[1]
    sums = [(tmp_path / name / "SHA256SUMS").read_text() for name in ("a", "b")]
    assert sums[0] == sums[1]
    other = tool.Recipe(seed=1, steps=3, batch_size=8, problems=40, width=32, layers=1, asked=4)
    tool.pretrain(other, tmp_path / "c")
    assert (tmp_path / "c" / "SHA256SUMS").read_text() != sums[0]
