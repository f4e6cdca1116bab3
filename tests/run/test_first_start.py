"""First starts: in a terminal, with empty caches, in the environment that `make setup` makes."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SHORT = [
    "steps=2", "eval_every=2", "task.test_size=20", "task.validation_size=20", "tracking.mode=disabled", "threads=1",
]  # fmt: skip
OWN = """
import torch, zo
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Flatten(), torch.nn.Linear(24, 2))
optimizer = zo.MeZO(model, lr=1e-3, restore="streamed", noise="philox")
rows, labels = torch.arange(12).reshape(4, 3), torch.tensor([0, 1, 0, 1])
for _ in range(3):
    optimizer.step(lambda: torch.nn.functional.cross_entropy(model(rows), labels))
"""
COMMANDS = {
    "train.py": ["train.py", *SHORT],
    "a multirun": ["train.py", "-m", "optimizer=bszo,mezo", *SHORT],
    "an own loop": ["-c", OWN],
}


def in_a_terminal(command: list[str], **variables: str) -> tuple[int, str]:
    """Runs Python with a pseudo-terminal as its input and output; returns the exit status and what it wrote."""
    python = os.environ.get("ZO_PLAIN_PYTHON", sys.executable)
    lead, follow = pty.openpty()
    with subprocess.Popen(
        [python, *command], cwd=ROOT, stdin=follow, stdout=follow, stderr=follow,
        env=os.environ | {"COLUMNS": "100"} | variables,
    ) as process:  # fmt: skip
        os.close(follow)
        written = b""
        try:
            while part := os.read(lead, 65536):
                written += part
        except OSError:  # the other end is closed
            pass
        status = process.wait(300)
    os.close(lead)
    return status, written.decode(errors="replace")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_first_start_in_a_terminal_ends_well(command, tmp_path):
    """`.ci/run` gives the Python of an environment without the dev extras, in which starts once failed."""
    words = COMMANDS[command]
    for n in range(int(os.environ.get("ZO_FIRST_STARTS", "1"))):
        given = [*words, f"out={tmp_path / f'out{n}'}"] if "train.py" in words else words
        status, written = in_a_terminal(given, NUMBA_CACHE_DIR=str(tmp_path / f"numba{n}"))
        assert status == 0, written
        assert "Traceback" not in written
