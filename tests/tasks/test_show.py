"""What python -m zo.tasks.show prints: prompts with the borders of their tokens, candidates, labels, lengths."""

from tests.support import hub_copies
from zo.tasks.show import main


def test_a_decoders_prompt_and_candidates(tmp_path, capsys):
    copy = hub_copies.write(tmp_path / "copy", "rte")
    capsys.readouterr()
    sizes = ["task.train_size=12", "task.validation_size=6", "task.split_order=first", "n=2"]
    assert main(["task=rte", f"task.path={copy}", "model=reviews-tiny", *sizes]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert lines[0] == "rte for reviews-tiny, a decoder model: 12 train, 6 validation, 12 test"
    assert lines[1] == "true in the training split: 'Yes' 6, 'No' 6"
    assert lines[2].startswith("tokens per training example, median ")
    assert lines[2].endswith("task.max_length 512")
    first, second = (i for i, line in enumerate(lines) if line.startswith("example "))
    assert lines[first].startswith("example 0: label 0, ")
    assert lines[second].startswith("example 1: label 1, ")
    prompt, true, other = lines[first + 1 : first + 4]
    assert prompt.replace("|", "").startswith("</s> town 0 lies in spain.⏎does this mean that ")
    assert prompt.endswith("| yes| or| no|?|⏎")
    assert prompt.count("|") == int(lines[first].split(", ")[1].split()[0]) - 1
    assert true.startswith("  0 true  [y][es]  ")
    assert other.startswith("  1 other [no]  ")
