"""The sweeps of docs/your-own-sweep.md: composed, run with few steps, and tabulated as the page shows."""

import re

import pytest

from analysis.report import command
from launch import ROOT, multirun
from launch.sweep import Sweep
from zo import config
from zo.config import command_line
from zo.optim import OPTIMIZERS

PAGE = (ROOT / "docs" / "your-own-sweep.md").read_text(encoding="utf-8")
FILES = re.findall(r"`conf/sweep/(\w+)\.yaml`.*?```yaml\n(.*?)```", PAGE, re.DOTALL)
FEW = {r"^steps: \d+": "steps: 6", r"^eval_every: \d+": "eval_every: 3"}
FEW |= {"^hydra:": "task: {train_size: 16, validation_size: 16, test_size: 16}\nhydra:"}
"""What makes the sweeps' runs short."""


@pytest.fixture
def written(own_conf, tmp_path, monkeypatch):
    """A directory with the pages' files, in a copy of conf/ and beside it."""
    for name, text in FILES:
        for long, short in FEW.items():
            text = re.sub(long, short, text, count=1, flags=re.MULTILINE)
        (own_conf / "sweep" / f"{name}.yaml").write_text(text, encoding="utf-8")
    page = (ROOT / "docs" / "adding-an-optimizer.md").read_text(encoding="utf-8")
    (method,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_method.py").write_text(method, encoding="utf-8")
    config.register()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    OPTIMIZERS.pop("MeZOClip", None)


def first_cells(text: str) -> list[list[str]]:
    """Returns the rows of the last table in Markdown, up to the column of the learning rate or setting."""
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    cut = next(i for i, head in enumerate(rows[0]) if head.strip() in ("lr", "setting"))
    names = ([cell.strip().lstrip("→ ") for cell in row[:cut]] for row in rows[2:])
    return sorted(names)


def tables() -> list[str]:
    return re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)


def test_the_pages_sweeps_ask_for_the_runs_that_it_says(written):
    ablation, mine = (
        Sweep.of(of).runs for of in (["sweep=ablation"], ["sweep=mine", "stage=tune"])
    )
    settings = [(run.cfg.optimizer.k, run.cfg.optimizer.m) for run in ablation]
    assert settings == [pair for pair in ((1, 2), (1, 4), (2, 2), (2, 4)) for _ in range(3)]
    assert [run.cfg.optimizer.name for run in mine] == ["mezo"] * 3 + ["MeZOClip"] * 3 + [
        "zero_shot"
    ]


@pytest.mark.process
@pytest.mark.parametrize("name", ["ablation", "mine"])
def test_the_pages_sweeps_end_with_its_tables(written, name):
    common = ["--runs", "out", "--results", "results", "--cache", "cache"]
    for stage in ([], ["stage=tune"], ["stage=report"])[
        slice(0, 1) if name == "ablation" else slice(1, 3)
    ]:
        if stage == ["stage=report"]:
            assert command.main(["choose", name, "--of", "mine_tune", "--best", "1", *common]) == 0
        assert (
            multirun.make(command_line.read([f"sweep={name}", *stage, "tracking.mode=offline"]))
            == 0
        )
    assert command.main(["tables", name, *common]) == 0
    file, shown = {"ablation": ("table", 0), "mine": ("comparison", 1)}[name]
    made = (written / "results" / name / f"{file}.md").read_text(encoding="utf-8")
    assert first_cells(made) == first_cells(tables()[shown])
