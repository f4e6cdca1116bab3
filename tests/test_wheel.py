"""The wheel alone: what pip brings with it, and that the library works with no more than that."""

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

EXAMPLE = """
import sys
for name in "datasets hydra omegaconf pandas rich scipy tokenizers transformers wandb xxhash yaml".split():
    sys.modules[name] = None  # importing it fails, as where it is not installed

import torch
from torch import nn
import zo

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
x = torch.randn(16, 4)
y = x.sum(1, keepdim=True)

optimizer = zo.BSZO(model, lr=1e-2, k=2, prior_std=1.0, record="run.zo")
for _ in range(30):
    loss = optimizer.step(lambda: nn.functional.mse_loss(model(x), y))
print(type(loss).__name__, optimizer.info.forwards, zo.__file__)

torch.manual_seed(0)
again = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
zo.replay(again, "run.zo")
assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))
"""


@pytest.mark.process
def test_the_wheel_without_extras_trains_and_replays(tmp_path):
    """Built from a copy of what is under version control."""
    copy, site = tmp_path / "source", tmp_path / "site"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip"]
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(copy)]
    subprocess.run([*pip, *build], check=True, timeout=300)
    (wheel,) = tmp_path.glob("zo_suite-*.whl")
    install = ["install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run([*pip, *install], check=True, timeout=300)

    (info,) = site.glob("zo_suite-*.dist-info")
    needs = metadata.PathDistribution(info).requires or []
    plain = {Requirement(r).name for r in needs if "extra ==" not in r}
    assert plain == {"torch", "numpy", "safetensors"}

    done = subprocess.run(
        [sys.executable, "-c", EXAMPLE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kind, forwards, where = done.stdout.split()
    assert (kind, forwards) == ("float", "3")
    assert Path(where).is_relative_to(site)
