"""How fast W&B run files are read: all at once, and again when nothing has changed.

    python -m benchmarks.reading --runs 1500 --steps 20000 --directory /somewhere/with/40/GB

W&B writes one run file in offline mode, with the keys of a BSZO run at every step. The others are copies of it in which
the run record has another id: the same records, blocks and checksums as W&B's own. All is removed afterwards.
"""

import argparse
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import numpy as np
import wandb
from rich.progress import track
from wandb.proto import wandb_internal_pb2 as pb

from analysis.logs import sources
from analysis.logs.run_file import CHUNK_HEADER, FILE_HEADER, read_run_file

EVAL_EVERY = 500
SIGNALS = ("slope", "noise_std", "shrinkage", "posterior_trace", "residual_rms", "mu_norm")
CONFIG = {"optimizer": {"name": "bszo"}, "model": {"name": "m"}, "lr": 1e-6, "seed": 0}
BEST = {"best/step": 0, "best/val_n": 500, "best/val_accuracy": 0.5, "best/test_accuracy": 0.5}
BEST |= {"best/test_n": 1000, "best/test_predictions": "01" * 500, "test/labels": "10" * 500}


def rows(steps: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields rows such as a BSZO run logs (docs/reference/run-directory.md)."""
    noise = np.random.default_rng(0)
    for step in range(steps + 1):
        row: dict[str, float] = {}
        if step > 0:
            row |= {"train/loss": 0.6 + 0.05 * noise.standard_normal(), "train/forwards": 3 * step}
            row |= {f"optim/{name}": noise.standard_normal() for name in SIGNALS}
            row |= {f"time/{n}_s": 0.1 * noise.random() for n in ("step", "forward", "perturb")}
        if step % EVAL_EVERY == 0:
            row |= {"eval/val_accuracy": float(noise.integers(500) / 500)}
            row |= {"eval/val_loss": noise.random(), "time/eval_s": 1.2, "mem/peak_gib": 2.5}
        yield step, row


def write_one(directory: Path, steps: int) -> Path:
    """Writes a run file by W&B; returns its path."""
    settings = wandb.Settings(silent=True, x_transaction_log_flush_interval=1.0)
    where = {"mode": "offline", "dir": directory, "project": "zo", "group": "table1"}
    run = wandb.init(id=_run_id(0), config=CONFIG, settings=settings, **where)
    for step, row in rows(steps):
        run.log(row, step=step)
    run.summary.update({"run/status": "finished", "run/steps": steps, **BEST})
    run.finish()
    (path,) = directory.glob(f"wandb/offline-run-*/run-{_run_id(0)}.wandb")
    while read_run_file(path).exit_code is None:  # W&B's own process may still be writing
        time.sleep(0.1)
    return path


def copy_with_id(original: bytes, run_id: str) -> bytes:
    """Returns the run file with another id in its run record, which stands in the first block."""
    copy, position = bytearray(original), len(FILE_HEADER)
    while True:
        _, length, kind = CHUNK_HEADER.unpack_from(copy, position)
        start = position + CHUNK_HEADER.size
        record = pb.Record()  # type: ignore[attr-defined]
        record.ParseFromString(bytes(copy[start : start + length]))
        if record.WhichOneof("record_type") == "run":
            break
        position = start + length
    record.run.run_id = run_id
    body = record.SerializeToString()
    assert len(body) == length
    checksum = zlib.crc32(body, zlib.crc32(bytes([kind])))
    copy[position : start + length] = CHUNK_HEADER.pack(checksum, length, kind) + body
    return bytes(copy)


def generate(directory: Path, runs: int, steps: int) -> int:
    """Writes the run files; returns their size in bytes."""
    original = write_one(directory, steps).read_bytes()
    for i in track(range(1, runs), "writing"):
        place = directory / _run_id(i) / "wandb" / f"offline-run-20260131_120000-{_run_id(i)}"
        place.mkdir(parents=True)
        (place / f"run-{_run_id(i)}.wandb").write_bytes(copy_with_id(original, _run_id(i)))
    return runs * len(original)


def measure(directory: Path, cache_dir: Path, jobs: int | None) -> str:
    """Reads all; returns how many rows in what time, processor time and memory of the largest process."""
    start, busy = time.perf_counter(), sum(os.times()[:4])
    frames = sources.load([directory], cache_dir=cache_dir, jobs=jobs)
    seconds, busy = time.perf_counter() - start, sum(os.times()[:4]) - busy
    rows = int(frames.runs["rows"].sum())
    kib = max(getrusage(who).ru_maxrss for who in (RUSAGE_SELF, RUSAGE_CHILDREN))
    return (
        f"{rows:,} rows in {seconds:.1f} s = {rows / seconds:,.0f} rows/s; "
        f"{busy:.1f} s of processor time; {kib / 2**20:.2f} GiB"
    )


def _run_id(i: int) -> str:
    return f"bszo-{i:06d}"  # all of one length, so that a copy keeps its blocks


def main() -> None:
    """Runs the command; see the module."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.reading", None, __doc__, formatter_class=layout
    )
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, help="processes (default: one per processor)")
    parser.add_argument("--directory", type=Path, help="where the files go for a while")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reading-", dir=arguments.directory) as name:
        size = generate(Path(name, "out"), arguments.runs, arguments.steps)
        print(f"{arguments.runs} runs of {arguments.steps:,} steps: {size / 1e9:.1f} GB")
        for which in ("first", "again"):
            said = measure(Path(name, "out"), Path(name, "cache"), arguments.jobs)
            print(f"{which}: {said}", flush=True)
        kept = sum(path.stat().st_size for path in Path(name, "cache").rglob("*.parquet"))
        print(f"cache: {kept / 1e9:.2f} GB; processors: {os.cpu_count()}")


if __name__ == "__main__":
    main()
