"""The sweeps of docs/your-own-sweep.md: composed, run with few steps, and tabulated as the page shows."""

import re
from functools import reduce

import pandas as pd
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


STAGES = {"ablation": [[]], "mine": [["stage=tune"], ["stage=report"]]}
MORE = {"clip: 3": "clip: 3, lr: [1.0e+30]", "equivalence_": "levels: [10, 0.01]\n    equivalence_"}


@pytest.mark.process
@pytest.mark.parametrize("name", STAGES)
def test_the_pages_sweeps_end_with_its_tables(written, name):
    """And a method with a rate far too large collapses and keeps its row."""
    path = written / "conf" / "sweep" / f"{name}.yaml"
    path.write_text(reduce(lambda text, of: text.replace(*of), MORE.items(), path.read_text()))
    common = ["--runs", "out", "--results", "results", "--cache", "cache"]
    for stage in STAGES[name]:
        if stage == ["stage=report"]:
            assert command.main(["choose", name, "--of", "mine_tune", "--best", "1", *common]) == 0
        typed = [f"sweep={name}", *stage, "tracking.mode=offline"]
        assert multirun.make(command_line.read(typed)) == 0
    assert command.main(["tables", name, *common]) == 0
    file, shown = {"ablation": ("table", 0), "mine": ("comparison", 1)}[name]
    made = written / "results" / name / file
    assert first_cells(made.with_suffix(".md").read_text()) == first_cells(tables()[shown])
    if name == "mine":
        table = pd.read_csv(made.with_suffix(".csv")).set_index("line")
        collapsed, zero = table[table["collapsed"] > 0], table.loc["zero_shot"]
        assert [*collapsed.index] == ["MeZOClip"]
        assert collapsed["collapsed"].item() == collapsed["seeds"].item() == 3
        assert collapsed["loss_100"].item() >= zero["loss_100"] - 1e-9
        assert table.loc["mezo", ["passes_1", "reached_1"]].tolist() == [6, 0]
        assert table.loc["mezo", "passes_0"] <= 2
        assert made.with_name("passes.png").is_file()
