"""A model on disk trains in less memory than it takes, with the bits of the same model in memory."""

import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from benchmarks.steps.cases import SHAPES, Case
from zo.config import command_line, register
from zo.lm.load import load
from zo.lm.scoring.candidates import CandidateScorer
from zo.run.assembly import Assembly
from zo.run.losses import BatchLoss

SMALL = [
    *SHAPES["opt-125m"],
    "model.architecture.num_hidden_layers=6",
    "model.architecture.vocab_size=9000",
]
GIB, STEPS = 2**30, 3
CASE = Case("opt-125m", "float32", "sst2", "mezo", "streamed", "philox", 16, 1, "cpu", 1)


def write_model(directory: Path, shape: list[str]) -> int:
    """Writes a model with random weights in several files; returns the bytes of its weights."""
    register()
    cfg = command_line.runs([*shape, "model.weights=random", "task=sst2"])[0].model
    loaded = load(cfg, torch.float32, "cpu")
    loaded.tokenizer.save_pretrained(directory)
    loaded.model.save_pretrained(directory, max_shard_size="500MB")
    return sum(4 * p.numel() for p in loaded.model.parameters())


def status(key: str) -> float:
    """An entry of this process's status, GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith(key))


def train(overrides: list[str], scratch: Path) -> tuple:
    """Makes a few steps; returns losses and a hash of the weights, and the peaks of this process's memory."""
    register()
    torch.set_num_threads(1)
    anonymous = [status("RssAnon")]

    def watch() -> None:
        while True:
            time.sleep(0.02)
            anonymous.append(status("RssAnon"))

    threading.Thread(target=watch, daemon=True).start()
    assembly = Assembly.of(command_line.runs(overrides)[0], scratch)
    loaded, losses = assembly.loaded, []
    scorer = CandidateScorer(loaded.model, loaded.tokenizer.pad_token_id)
    for step in range(STEPS):
        loss = BatchLoss(scorer, scorer.collate(CASE.batch(step)), assembly.params)
        losses += assembly.optimizer.step(loss).losses
    same = losses, assembly.weights_hash()
    return same, {"anonymous": max(anonymous), "resident": status("VmHWM")}


def measured(scratch: Path, shape: list[str]) -> tuple:
    """Returns the bytes of the weights; what processes with the weights in memory and on disk returned."""
    size = write_model(scratch / "model", shape)
    common = [
        *(*shape, f"model.path={scratch / 'model'}", "model.revision=null", "task=sst2"),
        *("precision.restore=streamed", "precision.noise=philox", "lr=1e-6", "threads=1"),
        *("device=cpu", "optimizer=mezo"),
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as processes:
        memory, disk = (
            processes.submit(train, [*common, f"model.offload={of}"], scratch / of).result()
            for of in ("null", "disk")
        )
    return size, memory, disk


@pytest.mark.process
def test_a_model_on_disk_needs_the_memory_of_two_modules(tmp_path):
    """Its process needs less than one with the model in memory, by the model without its two largest modules."""
    size, (same, memory), (other, disk) = measured(tmp_path, SMALL)
    assert same == other
    spared = (size - (9000 + 3072) * 768 * 4) / GIB
    assert disk["anonymous"] < memory["anonymous"] - 0.8 * spared


@pytest.mark.slow
def test_a_model_of_5_gb_trains_from_disk_in_2_gib(tmp_path):
    """OPT-1.3B's shape; 11 GB of disk and 9 GB of memory, for the one in memory, are needed."""
    size, (same, _), (other, disk) = measured(tmp_path, SHAPES["opt-1.3b"])
    assert same == other
    assert size > 5.2e9
    assert disk["resident"] < 2.0
