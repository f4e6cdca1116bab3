"""What can go wrong with a run's files between two attempts, done to them on purpose."""

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, random.Random], bool]
"""Damages the files of a run's directory; returns whether there was something to damage."""


def flip_bit(path: Path, rng: random.Random) -> None:
    """Flips one bit of a file that is not empty."""
    data = bytearray(path.read_bytes())
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def truncate(path: Path, rng: random.Random) -> None:
    """Cuts off at least one byte of a file that is not empty."""
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def _one_of(pattern: str, how: Callable[[Path, random.Random], None], newest: bool) -> Damage:
    def damage(run: Path, rng: random.Random) -> bool:
        found = sorted(path for path in run.glob(pattern) if path.is_file() and path.stat().st_size)
        if newest:
            found = [path for path in found if path.parent == found[-1].parent]
        if found:
            how(rng.choice(found), rng)
        return bool(found)

    return damage


def _foreign_checkpoint(run: Path, rng: random.Random) -> bool:
    """Puts a whole checkpoint of another run where this run's newest one is, and keeps this one's for others."""
    own = sorted((run / "checkpoints").glob("step-*[0-9]"))
    stash = run.parent.parent / "stash"
    stash.mkdir(exist_ok=True)
    others = sorted(place for place in stash.iterdir() if place.name != run.name)
    if own and not (stash / run.name).exists():
        shutil.copytree(own[-1], stash / run.name)
    if not own or not others:
        return False
    shutil.rmtree(own[-1])
    shutil.copytree(rng.choice(others), own[-1])
    return True


def _remove_inputs(run: Path, rng: random.Random) -> bool:
    there = (run / "inputs.json").exists()
    (run / "inputs.json").unlink(missing_ok=True)
    return there


TARGETS = {
    "checkpoint": ("checkpoints/step-*/*", True),
    "inputs.json": ("inputs.json", False),
    "metrics.jsonl": ("metrics.jsonl", False),
    ".wandb file": ("wandb/offline-run-*/*.wandb", False),
    "status.json": ("status.json", False),
    "attempts.jsonl": ("attempts.jsonl", False),
}

DAMAGES: dict[str, Damage] = {
    **{f"bit flipped: {name}": _one_of(p, flip_bit, n) for name, (p, n) in TARGETS.items()},
    **{f"truncated: {name}": _one_of(p, truncate, n) for name, (p, n) in TARGETS.items()},
    "checkpoint of another run": _foreign_checkpoint,
    "removed: inputs.json": _remove_inputs,
}
"""Name -> what does it."""


class SmallDisk:
    """A file system of a size that can be changed, where the machine allows to mount one.

    Args:
        place: Directory to mount it at; made.
    """

    def __init__(self, place: Path):
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        _mount("-t", "tmpfs", "-o", "size=256m", "tmpfs", str(place))

    def leave(self, kib: int) -> None:
        """Makes it so small that `kib` KiB are free."""
        used = shutil.disk_usage(self.place).used // 1024
        _mount("-o", f"remount,size={used + kib}k", str(self.place))

    def close(self) -> None:
        """Takes it away, with what is on it."""
        subprocess.run(["umount", "-l", str(self.place)], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)
