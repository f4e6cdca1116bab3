"""Every block of Python on docs/library.md runs, from the first to the last."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[1] / "docs" / "library.md"


@pytest.mark.process
def test_every_snippet_runs(tmp_path, monkeypatch):
    from transformers import LlamaConfig, LlamaForCausalLM

    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, pad_token_id=0,
    )  # fmt: skip
    tokens = torch.randint(0, 32, (3, 2, 6))
    given = {
        "model": LlamaForCausalLM(config),
        "loader": [{"input_ids": t, "labels": t} for t in tokens],
        "data": [{"input_ids": t, "labels": t} for t in tokens.flatten(0, 1)],
    }
    before = [p.detach().clone() for p in given["model"].parameters()]
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 9
    assert len([line for line in blocks[0].splitlines() if line]) <= 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), given)
    after = given["model"].parameters()
    assert not all(torch.equal(p, q) for p, q in zip(before, after, strict=True))
    assert (tmp_path / "run.zo").exists()
