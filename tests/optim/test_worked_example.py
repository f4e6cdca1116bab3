"""The method that docs/adding-an-optimizer.md adds: its file is taken from the page, used, and passes the contract."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding-an-optimizer.md"
ADDRESS = "my_method.py:MeZOClip"

USED = """
import torch
import zo
from zo import config
from zo.config import arms, command_line, method_code
from zo.config.identity import run_id

config.register()
given = ["optimizer=mezo,my_method.py:MeZOClip", "lr=1e-4"]
ours, mine = command_line.runs(given, multirun=True)
assert (ours.optimizer.name, mine.optimizer.name, mine.optimizer.clip) == ("mezo", "MeZOClip", 10)
assert config.from_yaml(config.to_yaml(mine)) == mine
first, file = run_id(mine), open("my_method.py", "a+")
assert first.startswith("MeZOClip-") and run_id(ours) == "mezo-9bdde3d30d59"

compared = {"mezo": None, "my_method.py:MeZOClip": {"lr": [1e-4]}}
_, arm = arms.expand(arms.staged("mine", arms.SweeperConfig(arms=compared)))
assert (arm.name, arm.values["optimizer"]) == ("MeZOClip", "MeZOClip")

w = torch.nn.Parameter(torch.ones(3))
with zo.optimizer("my_method.py:MeZOClip", [w], 1e-3, clip=2.0, record="steps") as opt:
    opt.step(lambda: 1e9 * w.square().sum())
assert 0 < (w - 1).abs().max() < 0.1 and "clip: C > 0" in type(opt).__doc__
again = torch.nn.Parameter(torch.ones(3))
zo.replay([again], "steps")
assert torch.equal(again, w)

print("# edited", file=file, flush=True)
method_code.option("my_method.py:MeZOClip")
assert run_id(mine) != first
"""


def started(tmp_path: Path, *command: str) -> str:
    """Returns what a process printed beside the page's file; it must succeed."""
    (method,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (tmp_path / "my_method.py").write_text(method, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.process
def test_the_pages_method_is_an_option_of_the_command_line_and_an_optimizer_of_the_library(
    tmp_path,
):
    started(tmp_path, "-c", USED)


@pytest.mark.process
def test_the_pages_method_passes_the_contract_of_all_methods(tmp_path):
    options = ["-p", "no:xdist", "-k", "MeZOClip", "--method", ADDRESS]
    said = started(tmp_path, "-m", "pytest", *options, str(ROOT / "tests" / "optim"))
    assert len(re.findall(r"^\.+", said, re.M)[0]) >= 10
