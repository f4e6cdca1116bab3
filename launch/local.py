"""Several runs at once on this machine, n on each GPU, from one process that holds the list of those that wait.

python -m launch.local FOLDER        what launch.submit starts, detached; FOLDER/runs.json lists the runs
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launch import python_path
from launch.pool import INTERRUPTED, Pool, slots
from zo.extras import print_every_character
from zo.run.store.lock import held, holder

STARTS_WITHIN_S = 60.0


class StartError(RuntimeError):
    """The process that makes the runs does not start."""


def prepare(folder: Path, directories: Sequence[Path], processes: int, threads: int | None) -> None:
    """Writes the list of runs for `work` to read."""
    folder.mkdir(parents=True)
    plan = {"directories": [*map(str, directories)], "processes": processes, "threads": threads}
    (folder / "runs.json").write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")


def start_detached(folder: Path, environment: dict[str, str]) -> None:
    """Starts the process that makes the runs of a folder; it outlives this one and its terminal.

    Raises:
        StartError: If it does not start; its log says why.
    """
    with (folder / "log.txt").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "launch.local", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, "PYTHONPATH": python_path()},
            start_new_session=True,
        )
    deadline = time.monotonic() + STARTS_WITHIN_S
    while holder(folder) is None and child.poll() is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    else:
        if child.poll() in (None, 0):
            return
    raise StartError(f"the runs could not be started, see {folder / 'log.txt'}")


def work(folder: Path, changed: Callable[[], None] = lambda: None) -> int:
    """Makes the runs of a folder, whose lock the caller holds; calls `changed` after every start and end of a run.

    Returns:
        0 if all finished, 1 if one failed, 143 if this process was told to stop; the runs have saved.
    """
    plan = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    gpus = visible_gpus()
    places = slots(gpus, plan["processes"] * max(1, len(gpus)), plan["threads"])
    pool = Pool([Path(path) for path in plan["directories"]], places, True, changed)
    pool.run()
    if pool.failures:
        print("\n  ".join([f"{len(pool.failures)} runs failed", *pool.failures]), file=sys.stderr)
    return INTERRUPTED if pool.unfinished else int(bool(pool.failures))


def visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [gpu for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if gpu.strip()]
    return of_gpus("index")


def of_gpus(field: str) -> list[str]:
    """Returns a property of every GPU of this machine, as nvidia-smi names and tells it; none without a driver."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.split()


if __name__ == "__main__":
    print_every_character()
    with held(Path(sys.argv[1])):
        sys.exit(work(Path(sys.argv[1])))
