"""The method that docs/adding-an-optimizer.md adds: its code is taken from the page and passes the contract."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding-an-optimizer.md"

TYPED_IN = """
import sys, types
import pytest
from zo.optim import OPTIMIZERS, Method, config_spsa

settings, method, tests = sys.argv[1:]
exec(settings, vars(config_spsa))
sys.modules["zo.optim.mezo_clip"] = module = types.ModuleType("zo.optim.mezo_clip")
exec(method, vars(module))
OPTIMIZERS["mezo_clip"] = Method(config_spsa.MeZOClipConfig)

import torch
import zo
from zo import config
from zo.config import command_line

config.register()
(run,) = command_line.runs(["optimizer=mezo_clip", "lr=1e-4", "optimizer.clip=2"])
assert run.optimizer == config_spsa.MeZOClipConfig(clip=2.0)
assert " mezo_clip," in command_line.help_text()
w = torch.nn.Parameter(torch.ones(3))
zo.MeZOClip([w], 1e-3, clip=2.0).step(lambda: 1e9 * w.square().sum())
assert 0 < (w - 1).abs().max() < 0.1 and "clip: C > 0" in zo.MeZOClip.__doc__
files = [f"{tests}/test_contract.py", f"{tests}/test_combinations.py"]
sys.exit(pytest.main(["-p", "no:xdist", "-k", "mezo_clip or MeZOClip", *files]))
"""


@pytest.mark.process
def test_the_pages_method_is_an_option_a_class_and_passes_the_contract_of_all_methods():
    page = PAGE.read_text(encoding="utf-8")
    assert "`config_spsa.MeZOClipConfig,` in `OPTIMIZERS`" in page
    settings, method = re.findall(r"```python\n(.*?)```", page, re.S)
    command = [sys.executable, "-c", TYPED_IN, settings, method, str(Path(__file__).parent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(re.findall(r"^\.+", done.stdout, re.M)[0]) >= 10
