"""A model on disk trains in less memory than it takes, with the bits of the same model in memory."""

import json
import multiprocessing
import threading
import time
from pathlib import Path

import pytest
import torch

from benchmarks.steps.cases import SHAPES, Case
from zo.config import command_line, register

SMALL = [
    *SHAPES["opt-125m"],
    "model.architecture.num_hidden_layers=6",
    "model.architecture.vocab_size=9000",
]
GIB, SHARD, STEPS = 2**30, 2**29, 3
CASE = Case("opt-125m", "float32", "sst2", "mezo", "streamed", "philox", 16, 1, "cpu", 1)


def write_model(directory: Path, shape: list[str]) -> int:
    """Write a model with random weights, a shard at a time; the bytes of its weights."""
    from accelerate import init_empty_weights
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    from zo.lm.source import stand_in

    register()
    cfg = command_line.runs([*shape, "model.weights=random", "task=sst2"])[0].model
    directory.mkdir(parents=True)
    stand_in(cfg).save_pretrained(directory)
    config = AutoConfig.for_model(**cfg.architecture)
    config.architectures, config.pad_token_id = ["OPTForCausalLM"], 1
    config.save_pretrained(directory)
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()
    random, index, shard = torch.Generator().manual_seed(0), {}, {}

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
    (directory / "model.safetensors.index.json").write_text(json.dumps(content))
    return size


def status(key: str) -> float:
    """An entry of this process's status, GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith(key))


def train(pipe, overrides: list[str], scratch: Path) -> None:
    """Make a few steps; send the losses, a hash of the weights and the peaks of this process's memory."""
    register()
    torch.set_num_threads(1)
    from zo.lm.scoring.candidates import CandidateScorer
    from zo.run.assembly import Assembly
    from zo.run.losses import BatchLoss

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
    pipe.send((same, {"anonymous": max(anonymous), "resident": status("VmHWM")}))


def measured(scratch: Path, shape: list[str]):
    """The bytes of the weights; what processes with the weights in memory and on disk sent."""
    size, found = write_model(scratch / "model", shape), []
    common = [
        *(*shape, f"model.path={scratch / 'model'}", "model.revision=null", "task=sst2"),
        *("precision.restore=streamed", "precision.noise=philox", "lr=1e-6", "threads=1"),
        *("device=cpu", "optimizer=mezo"),
    ]
    context = multiprocessing.get_context("spawn")
    for offload in ("null", "disk"):
        mine, theirs = context.Pipe()
        given = theirs, [*common, f"model.offload={offload}"], scratch / offload
        child = context.Process(target=train, args=given, daemon=True)
        child.start()
        theirs.close()
        found.append(mine.recv())
        child.join()
    return size, *found


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
