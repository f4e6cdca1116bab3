"""The instructions of a noise pass, counted in what is compiled without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process


def test_a_pass_spends_its_instructions_on_noise():
    """Of a process of its own, since Triton compiles nothing in one that interprets; red with masks on every value."""
    triton = pytest.importorskip("triton")
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    if not all((tools / name).exists() for name in ("ptxas", "nvdisasm")):
        pytest.skip("Triton's wheel has no ptxas or nvdisasm")
    command = [sys.executable, "-m", "benchmarks.instructions", "bf16"]
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    printed = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    found = [float(line.split()[2]) for line in printed.splitlines()]
    assert found[0] <= 68, printed
    assert found[1] <= 18, printed
