"""Which cells the sweeps in conf/sweep consist of, asked of the suite itself in a process of its own.

The answer takes nine seconds for all sweeps (the suite composes and checks 3,500 configurations), so it
is kept, under a name made from everything that can change it.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from analysis.logs.fragments import whole
from analysis.logs.run_file import LogError

ROOT = Path(__file__).resolve().parents[2]
DECIDING = (
    *("conf/**/*.yaml", "src/zo/optim/*.py", "src/zo/tasks/config.py", "launch/expected.py"),
    "src/zo/config/*.py",
    "src/zo/lm/config.py",
    *("src/zo/weights/**/*.py", "src/zo/noise/**/*.py"),
)
METHOD_CODE = ("src/zo/optim", "src/zo/weights", "src/zo/noise")
"""As `zo.config.method_code` has them."""

COLUMNS = (
    *("sweep", "run_id", "model", "task", "optimizer", "precision"),
    *("seed", "lr", "steps", "variant", "command", "line", "role"),
)


def sweep_names() -> list[str]:
    """The sweeps that there are: the names of the files in conf/sweep, sorted."""
    return sorted(path.stem for path in (ROOT / "conf" / "sweep").glob("*.yaml"))


def cells(sweeps: Sequence[str] = (), cache_dir: Path | None = None) -> pd.DataFrame:
    """Every cell of some sweeps, or of all: one row per sweep and run, in the order in which the runs are made.

    Args:
        sweeps: names of files in conf/sweep; none for all of them.
        cache_dir: where the answer is kept; None asks anew.

    Returns:
        `sweep`; `run_id`, of the run that fills the cell: one that two sweeps share has two rows; `model`, `task`,
        `optimizer`, `precision` as in conf/; `seed`, `steps`; `lr`, 0 for a method that does not train; `variant`,
        what else the sweep varies, as JSON text: `{"optimizer.k": 4}`, mostly `{}`; `command`, what runs this cell
        alone; `line` and `role` in a comparison, else empty.
    """
    there = sweep_names()
    wanted = tuple(dict.fromkeys(sweeps)) or tuple(there)
    for name in wanted:
        if name not in there:
            raise LogError(f"there is no sweep {name}: there are {', '.join(there)}")
    kept = None if cache_dir is None else cache_dir / "expected" / f"{_state()}.json"
    known: dict[str, list[dict[str, Any]]] = {}
    with suppress(OSError, ValueError):  # another process may remove it
        known = (
            json.loads(kept.read_text(encoding="utf-8"))
            if kept is not None and kept.is_file()
            else {}
        )
    missing = [name for name in wanted if name not in known]
    if missing:
        known |= {name: [] for name in missing}
        for cell in _ask(missing):
            known[cell["sweep"]].append(cell)
    if missing and kept is not None:
        with whole(kept) as partial:
            partial.write_text(json.dumps(known), encoding="utf-8")
        for earlier in set(kept.parent.glob("*.json")) - {kept}:
            earlier.unlink(missing_ok=True)
    rows = [cell for name in wanted for cell in known[name]]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame["variant"] = [json.dumps(variant, sort_keys=True) for variant in frame["variant"]]
    return frame.astype({"seed": "int64", "steps": "int64", "lr": "float64"})


def _ask(sweeps: Sequence[str]) -> list[dict[str, Any]]:
    """What `launch.expected` prints."""
    command = [sys.executable, "-m", "launch.expected", *sweeps]
    paths = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with Console(stderr=True).status("composing what the sweeps ask for"):
        done = subprocess.run(command, cwd=ROOT, env=paths, capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise LogError(f"the cells of {', '.join(sweeps)} cannot be listed: {said[-1]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _state() -> str:
    """A hash of every file that decides which cells there are and what their ids are.

    A method's code is part of an id where it is not committed, so that a commit changes ids and no file.
    """
    digest = hashlib.sha256()
    with suppress(
        OSError, subprocess.SubprocessError
    ):  # without git no code is told from a commit's
        edited = ["git", "status", "--porcelain", "--untracked-files=all", "--", *METHOD_CODE]
        digest.update(subprocess.run(edited, cwd=ROOT, capture_output=True, timeout=10).stdout)
    for pattern in DECIDING:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]
