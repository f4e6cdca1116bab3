"""Times steps of a model that lies on disk, under a limit of memory, and of the same model in memory, in turns.

    python -m benchmarks.offload [--shape opt-1.3b] [--limit 2.0] [--turns 5] [--scratch DIR]

The weights are random, float32, written shard by shard. Two processes make the same steps in turns, with one thread
each: one holds the model in memory, the other has `model.offload=disk`. Before each turn of the latter its weights
leave the page cache, and the time to read them once is measured.

**The limit** is a memory cgroup (version 1 or 2): anonymous memory, and pages of files that the process has read or
written and that are still cached. Where no cgroup can be made, nothing limits, and the peaks alone are reported. They
are those of the whole process, from its start: **resident** counts memory-mapped pages of files, **anonymous** does
not. **ratio** is a step from disk over the larger of a step in memory and the time to read the weights twice.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analysis.report.table import Column, Table, console, markdown, show
from benchmarks.steps.cases import SHAPES, Case
from zo.config import command_line, register

GIB = 2**30
CGROUPS = {
    Path("/sys/fs/cgroup"): "memory.max",
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
}
"""Roots of version 2 and of version 1, and what a limit is called there."""

TOGETHER = 3
"""Steps of one process in a row: what it fetches while the other one works spares it less than a third of its reads."""

SHARD = GIB // 2
"""Bytes of a file of weights."""

COLUMNS: dict[str, Column] = {
    "weights": "where",
    **{
        name: (name, ".3g")
        for name in ("step, s", "forward, s", "weights, s", "read twice, s", "ratio")
    },
    **{name: (name, ".3f") for name in ("resident, GiB", "anonymous, GiB", "limit, GiB")},
    **{name: (name, ".3f") for name in ("read, GiB", "written, GiB")},
    "weights after the steps": "weights hash",
}


def write_model(directory: Path, shape: Sequence[str]) -> int:
    """Writes a model with random weights, a shard at a time; returns the bytes of its weights."""
    from accelerate import init_empty_weights
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    from zo.lm.tokenizer import stand_in

    cfg = command_line.runs([*shape, "model.weights=random", "task=sst2"])[0].model
    directory.mkdir(parents=True)
    stand_in(cfg).save_pretrained(directory)
    config = AutoConfig.for_model(**cfg.architecture)
    config.architectures, config.pad_token_id = ["OPTForCausalLM"], 1
    config.save_pretrained(directory)
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()
    random = torch.Generator().manual_seed(0)
    index: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}

    def flush() -> None:
        name = f"model-{len({*index.values()}) + 1:05d}.safetensors"
        save_file(shard, directory / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, p in model.named_parameters():
        values = torch.ones(p.shape) if "norm.weight" in name else torch.zeros(p.shape)
        shard[name] = values if p.dim() < 2 else values.normal_(0, 0.02, generator=random)
        if sum(t.numel() * 4 for t in shard.values()) > SHARD:
            flush()
    flush()
    size = sum(p.numel() * 4 for p in model.parameters())
    content = {"metadata": {"total_size": size}, "weight_map": index}
    (directory / "model.safetensors.index.json").write_text(json.dumps(content), encoding="utf-8")
    return size


def answer(pipe: Connection, overrides: list[str], scratch: Path, case: Case) -> None:
    """Loads a run's model and makes steps for each message; answers with the figures of one."""
    pipe.recv()  # the limit is set
    register()
    torch.set_num_threads(1)
    from zo.lm.scoring.candidates import CandidateScorer
    from zo.run.assembly import Assembly
    from zo.run.losses import BatchLoss

    anonymous = _watch_anonymous()
    start = time.perf_counter()
    assembly = Assembly.of(command_line.runs(overrides)[0], scratch)
    params, optimizer = assembly.params, assembly.optimizer
    scorer = CandidateScorer(assembly.loaded.model, assembly.loaded.tokenizer.pad_token_id)
    pipe.send({"loaded, s": time.perf_counter() - start})
    while (turn := pipe.recv()) is not None:
        before = time.perf_counter(), params.measuring_seconds, params.seconds, *_io()
        losses: list[float] = []
        for step in range(TOGETHER):
            batch = scorer.collate(case.batch(TOGETHER * turn + step))
            losses += optimizer.step(BatchLoss(scorer, batch, params)).losses
        after = time.perf_counter(), params.measuring_seconds, params.seconds, *_io()
        names = "step, s", "forward, s", "weights, s", "read, GiB", "written, GiB"
        spent = np.subtract(after, before) / TOGETHER
        pipe.send({**dict(zip(names, spent.tolist(), strict=True)), "losses": losses})
    peaks = {"resident, GiB": _status("VmHWM"), "anonymous, GiB": max(anonymous)}
    pipe.send({**peaks, "weights hash": assembly.weights_hash()})


def _status(key: str) -> float:
    """Returns an entry of this process's status, GiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith(key))


def _io() -> tuple[float, float]:
    """Returns what this process has read from disks and written to them, GiB."""
    found = dict(
        line.split(": ") for line in Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    )
    return int(found["read_bytes"]) / GIB, int(found["write_bytes"]) / GIB


def _watch_anonymous() -> list[float]:
    """Returns a list to which a thread appends the process's anonymous memory, GiB, fifty times a second."""
    found = [_status("RssAnon")]

    def watch() -> None:
        while True:
            time.sleep(0.02)
            found.append(_status("RssAnon"))

    threading.Thread(target=watch, daemon=True).start()
    return found


@contextmanager
def limited(pid: int, limit: int) -> Iterator[bool]:
    """Limits the memory of a process by a cgroup; yields whether that could be done."""
    for root, key in CGROUPS.items():
        group = root / f"zo-offload-{pid}"
        try:
            if not (root / "cgroup.procs").exists():
                continue
            group.mkdir()
            (group / key).write_text(str(limit), encoding="utf-8")
            (group / "cgroup.procs").write_text(str(pid), encoding="utf-8")
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        try:
            yield True
        finally:
            for _ in range(100):  # until the process is gone
                with suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.1)
        return
    yield False


def read_cold(directory: Path) -> float:
    """Returns the seconds that reading all files of weights takes that are not cached; afterwards they are not."""
    memory = bytearray(16 * 2**20)
    for path in (files := sorted(directory.glob("*.safetensors"))):
        _forget(path)
    start = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(memory):
                pass
    seconds = time.perf_counter() - start
    for path in files:
        _forget(path)
    return seconds


def _forget(path: Path) -> None:
    """Has the operating system drop a file's pages."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measured(
    scratch: Path, shape: Sequence[str], limit: float, turns: int, settings: list[str]
) -> dict[str, Any]:
    """Returns the figures of both processes, by where the weights are, and all step times.

    Args:
        scratch: Directory of the model's files and their copy.
        shape: What chooses the model on a command line.
        limit: Of the memory of the process with the weights on disk, GiB.
        turns: Number of turns; a first one, before them, does not count.
        settings: Of the runs.
    """
    size = write_model(scratch / "model", shape)
    case = Case("opt-125m", "float32", "sst2", "mezo", "streamed", "philox", 16, 1, "cpu", 1)
    common = [
        *(*shape, f"model.path={scratch / 'model'}", "model.revision=null", "task=sst2"),
        *("precision.restore=streamed", "precision.noise=philox", "lr=1e-6", "threads=1"),
        *("device=cpu", *settings),
    ]
    context = multiprocessing.get_context("spawn")
    pipes, children = {}, {}
    for where in ("memory", "disk"):
        offload = "disk" if where == "disk" else "null"
        pipes[where], theirs = context.Pipe()
        given = theirs, [*common, f"model.offload={offload}"], scratch / where, case
        children[where] = context.Process(target=answer, args=given, daemon=True)
        children[where].start()
    with limited(children["disk"].pid or 0, int(limit * GIB)) as is_limited:
        for path in (scratch / "model").glob("*.safetensors"):
            _forget(path)
        found: dict[str, dict[str, Any]] = {}
        for where in ("disk", "memory"):
            pipes[where].send("start")
            found[where] = {"where": where, **pipes[where].recv()}
        lines: list[dict[str, dict[str, Any]]] = []
        for turn in range(turns + 1):
            line = {}
            seconds = read_cold(scratch / "disk")
            for where in ("disk", "memory"):
                pipes[where].send(turn)
                line[where] = pipes[where].recv()
            line["disk"]["read twice, s"] = 2 * seconds
            line["disk"]["ratio"] = line["disk"]["step, s"] / max(
                2 * seconds, line["memory"]["step, s"]
            )
            lines.append(line)
            print(json.dumps(line), flush=True)
        for where in ("disk", "memory"):
            pipes[where].send(None)
            found[where] |= pipes[where].recv()
            for key in lines[0][where]:
                if key != "losses":
                    found[where][key] = float(
                        np.median([line[where][key] for line in lines[1:] or lines])
                    )
            found[where]["losses"] = [line[where]["losses"] for line in lines]
        for child in children.values():
            child.join()
    if is_limited:
        found["disk"]["limit, GiB"] = limit
    return {"bytes": size, **found}


def main() -> None:
    """Measures; prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--shape", default="opt-1.3b", choices=[s for s in SHAPES if "opt" in s])
    parser.add_argument("--limit", type=float, default=2.0, help="GiB")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--scratch", type=Path, help="where 11 GB are free; default: the temporary directory"
    )
    parser.add_argument("--out", type=Path, default=Path("results/local/memory"))
    parser.add_argument("settings", nargs="*", help="of the runs, as optimizer=bszo; default: MeZO")
    args = parser.parse_args()
    register()
    scratch = Path(tempfile.mkdtemp(prefix="zo-offload-", dir=args.scratch))
    try:
        found = measured(
            scratch, SHAPES[args.shape], args.limit, args.turns, args.settings or ["optimizer=mezo"]
        )
    finally:
        shutil.rmtree(scratch)
    from zo.run.provenance import provenance, sentence

    made = provenance(torch.device("cpu"))
    same = all(found["disk"][key] == found["memory"][key] for key in ("losses", "weights hash"))
    caption = (
        f"{made['device']}, one thread per process; {args.shape}, {found['bytes'] / 1e9:.2f} GB of float32 weights,"
        f" mini-batches of 16, {' '.join(args.settings) or 'optimizer=mezo'}, `streamed`, `philox`; medians of"
        f" {args.turns} turns of {TOGETHER} steps. Losses and weights of the two are"
        f" {'equal' if same else 'NOT EQUAL'}, bit for bit; {sentence(made)}"
    )
    table = Table.of(
        "Weights on disk", [found["memory"], found["disk"]], COLUMNS, names=1, caption=[caption]
    )
    show(table, console())
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "offload.md").write_text(markdown(table), encoding="utf-8")


if __name__ == "__main__":
    main()
