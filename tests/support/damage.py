"""What can go wrong with a run's files between two attempts, done to them on purpose."""

import random
from pathlib import Path

FILES = (
    "checkpoints/step-*/*",
    "inputs.json",
    "metrics.jsonl",
    "wandb/offline-run-*/*.wandb",
    "status.json",
    "attempts.jsonl",
)


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


def damage(run: Path, rng: random.Random) -> None:
    """Flips a bit of a file of a run's directory, cuts something off it, or removes inputs.json."""
    found = [p for p in run.glob(rng.choice(FILES)) if p.is_file() and p.stat().st_size]
    how = rng.choice((flip_bit, truncate, None))
    if how is None:
        (run / "inputs.json").unlink(missing_ok=True)
    elif found:
        how(rng.choice(found), rng)
