"""Several runs at once on this machine, n on each GPU, by a process that holds the list of those that wait.

python -m launch.local FOLDER        what launch.submit starts; FOLDER/runs.json lists the runs
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launch import LaunchError, python_path
from launch.pool import Pool, slots
from launch.profile import LocalProfile
from zo.extras import print_every_character
from zo.run.signals import INTERRUPTED
from zo.run.store.lock import held, holder

STARTS_WITHIN_S = 60.0


def start(
    folder: Path, directories: Sequence[Path], profile: LocalProfile
) -> "subprocess.Popen[bytes]":
    """Starts the process that makes the runs, which outlives this one. Raises LaunchError if it does not start."""
    folder.mkdir(parents=True)
    names = [*map(str, directories)]
    plan = {"directories": names, "processes": profile.processes, "threads": profile.threads}
    (folder / "runs.json").write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    with (folder / "log.txt").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "launch.local", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **profile.environment, "PYTHONPATH": python_path()},
            start_new_session=True,
        )
    deadline = time.monotonic() + STARTS_WITHIN_S
    try:
        while child.poll() is None and time.monotonic() < deadline:
            if holder(folder) is not None:
                return child
            time.sleep(0.05)
    except KeyboardInterrupt:
        child.terminate()
        raise
    if child.poll() != 0:
        child.terminate()
        raise LaunchError(f"the runs could not be started, see {folder / 'log.txt'}")
    return child


def make(folder: Path) -> int:
    """Makes the runs of a folder.

    Returns:
        0 if all finished, 1 if one failed, 143 if this process was told to stop; the runs have saved.
    """
    plan = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    gpus = visible_gpus()
    places = slots(gpus, plan["processes"] * max(1, len(gpus)), plan["threads"])
    pool = Pool([Path(path) for path in plan["directories"]], places)
    with held(folder):
        pool.run()
    if pool.failures:
        print("\n  ".join([f"{len(pool.failures)} runs failed", *pool.failures]), file=sys.stderr)
    return INTERRUPTED if pool.unfinished else int(bool(pool.failures))


def visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; none without a driver."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [gpu for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if gpu.strip()]
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader,nounits"]
    try:
        return subprocess.check_output(
            command, stderr=subprocess.DEVNULL, text=True, timeout=30
        ).split()
    except (OSError, subprocess.SubprocessError):
        return []


if __name__ == "__main__":
    print_every_character()
    sys.exit(make(Path(sys.argv[1])))
