"""What python -m zo.tasks.show prints: prompts with the borders of their tokens, candidates, mask, labels, lengths."""

import pytest

from tests.support import hub_copies
from zo.tasks.show import main

SIZES = ["task.train_size=12", "task.validation_size=6", "task.split_order=first"]


@pytest.fixture
def rte(tmp_path):
    return [f"task.path={hub_copies.super_glue(tmp_path / 'copy', 'rte')}", "task=rte", *SIZES]


def test_a_decoders_prompt_and_candidates(rte, capsys):
    assert main([*rte, "n=2", "model=reviews-tiny"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert lines[0] == "rte for reviews-tiny, a decoder model: 12 train, 6 validation, 12 test"
    assert lines[1] == "true in the training split: 'Yes' 6, 'No' 6"
    assert lines[2].startswith("tokens per training example, median ")
    assert lines[2].endswith("task.max_length 512")
    assert sum(line.startswith("example ") for line in lines) == 2
    first = lines.index("")
    assert lines[first + 1].startswith("example 0: label 0, ")
    prompt = lines[first + 2]
    assert prompt.startswith("</s>| town| ")
    assert prompt.endswith("| yes| or| no|?|⏎")
    assert prompt.replace("|", "").startswith("</s> town 0 lies in spain.⏎does this mean that ")
    n = int(lines[first + 1].split(", ")[1].split()[0])
    assert prompt.count("|") == n - 1
    assert lines[first + 3].startswith("  0 true  [y][es]  ")
    assert lines[first + 4].startswith("  1 other [no]  ")
    assert lines[first + 6].startswith("example 1: label 1, ")
