"""The examples, as a reader would type them, with fewer steps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICK = ("lora_csv",)
SCRIPTS = [
    pytest.param(
        path, id=path.stem, marks=pytest.mark.process if path.stem in QUICK else pytest.mark.slow
    )
    for path in sorted((ROOT / "examples").glob("*.sh"))
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_ends_with_a_model_that_transformers_loads(script, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", script, tmp_path / "made", "4"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PATH": path},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made" / "model" / "model.safetensors").is_file()
    assert done.stdout.splitlines()[-1].startswith("'a warm and funny story': ")
