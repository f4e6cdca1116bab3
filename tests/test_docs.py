"""Commands in README and docs: composed, found or run as a reader would type them."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from zo import config
from zo.config import command_line

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
ELSEWHERE = ("model.path=", "adapter.path=", "task.path=", "mezo_clip")
"""Parts of commands about files of the reader's own, or of an example that the page itself adds."""


def commands(start: str) -> list[tuple[str, str]]:
    """Returns (page, command) of every command in a code block that begins with `start`."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.splitlines():
                command = re.split(r"\s+#", line.strip())[0]
                if command.startswith(start):
                    found.append((page.name, command))
    return found


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert len(commands("make ")) > 3
    for page, command in commands("make "):
        named = [word for word in shlex.split(command)[1:] if "=" not in word]
        assert set(named) <= targets, f"{page}: {command}"


@pytest.mark.parametrize(("page", "command"), [*commands("python train.py"), *commands("torchrun")])
def test_every_training_command_composes(page, command):
    words = shlex.split(command)[2:]
    if any(part in command for part in ELSEWHERE):
        pytest.skip("about files of the reader's own")
    overrides = [word for word in words if "=" in word and not word.startswith("hydra")]
    config.register()
    assert command_line.runs(overrides, multirun="-m" in words)


@pytest.mark.process
@pytest.mark.parametrize(
    "module", sorted({c.split()[2] for _, c in commands("python -m ") if len(c.split()) > 2})
)
def test_every_module_answers_help(module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert ended.value.code in (0, None)
    assert len(capsys.readouterr().out) > 80


@pytest.mark.process
def test_a_short_run_from_the_tutorial_ends_with_a_result(tmp_path):
    (command,) = {
        c for _, c in commands("python train.py -m optimizer=bszo,mezo lr=1e-3,1e-4 steps")
    }
    shorter = ("steps=", "eval_every=")
    words = [word for word in shlex.split(command)[1:] if not word.startswith(shorter)]
    words = [sys.executable, *words, "steps=4", "eval_every=4", f"out={tmp_path}"]
    done = subprocess.run(
        [*words, "tracking.mode=disabled", "task.validation_size=20", "task.test_size=20"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*/metrics.jsonl"))) == 4
