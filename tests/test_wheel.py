"""The wheel alone: what pip brings with it, and that the library works with no more than that."""

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

EXAMPLE = """
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
for name in ("hydra", "transformers", "pandas", "wandb", "xxhash", "scipy"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} could be imported")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy of what is under version control."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), str(copy)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, timeout=300)
    (found,) = out.glob("zo_suite-*.whl")
    return found


def required(requirements: list[str], extra: str = "") -> set[str]:
    """Names of the distributions that a list of requirements brings, their own requirements included."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        one = waiting.pop()
        if one.name in found or (one.marker and not one.marker.evaluate({"extra": extra})):
            continue
        try:
            waiting += [Requirement(text) for text in metadata.requires(one.name) or []]
        except metadata.PackageNotFoundError:
            continue  # torch names libraries of GPUs that a CPU build has not
        found.add(one.name)
    return found


@pytest.mark.process
def test_the_wheel_without_extras_trains_and_replays(wheel, tmp_path):
    environment, allowed = tmp_path / "venv", tmp_path / "allowed"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = (environment / "lib").glob("python*/site-packages")
    install = ["install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, timeout=300)

    (info,) = site.glob("zo_suite-*.dist-info")
    needs = metadata.PathDistribution(info).requires or []
    assert {Requirement(r).name for r in needs if "extra ==" not in r} == {
        "torch",
        "numpy",
        "safetensors",
    }
    allowed.mkdir()
    for name in required(needs):  # linked: installing torch again would take minutes
        for file in metadata.files(name) or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (allowed / top).exists():
                (allowed / top).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 2]
                                           if len(file.parts) > 1 else file.locate())  # fmt: skip
    (site / "allowed.pth").write_text(f"{allowed}\n")

    python = environment / "bin" / "python"
    done = subprocess.run(
        [python, "-c", EXAMPLE], cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kind, forwards, where = done.stdout.split()
    assert (kind, forwards) == ("float", "3")
    assert Path(where).is_relative_to(site)
