"""What the tools that pretrain small models share: a recipe's options, batches, the learning rate, and files."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def option(default: float, text: str) -> Any:
    """A recipe's field together with the help text of its command-line option."""
    return field(default=default, metadata={"help": text})


def draw_weights(model: PreTrainedModel, seed: int) -> None:
    """Draw matrices from N(0, 0.02²); set norms' weights to 1 and biases to 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, 0.02, generator=generator)
            else:
                parameter.fill_(float("norm" in name and name.endswith("weight")))


def adamw(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices alone."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), weight_decay=weight_decay)


def schedule(step: int, steps: int, warmup: int) -> float:
    """Share of the peak learning rate: linear warmup, then a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return 0.5 * (1.0 + math.cos(math.pi * done))


def pad_right(rows: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack rows of ids: (batch, time) and lengths (batch,)."""
    ids = torch.full((len(rows), max(map(len, rows))), pad)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids, torch.tensor([len(row) for row in rows])


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a directory that ``from_pretrained`` loads, weights as float16, and SHA256SUMS."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach().half() for name, p in model.named_parameters()}  # tied ones once
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    model.config.dtype = "float16"
    model.config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    # The class name that every version of transformers knows.
    path = out / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    sums = "".join(f"{sha256(out / name)}  {name}\n" for name in FILES)
    (out / "SHA256SUMS").write_text(sums, encoding="utf-8")


def sha256(path: Path) -> str:
    """Checksum of a file, as sha256sum prints it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(
    tool: str,
    recipe: type[Any],
    pretrain: Callable[[Any, Path], list[str]],
    argv: Sequence[str] | None,
) -> None:
    """Parse the options of a recipe, run it, and say what came out.

    Args:
        tool: Module of the tool, whose docstring's first line describes it.
        recipe: Dataclass of `option` fields.
        pretrain: Writes the model and returns what there is to say of it.
        argv: Command line; None takes the process's own.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {tool}", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; part of the result")
    for f in fields(recipe):
        name = "--" + f.name.replace("_", "-")
        parser.add_argument(name, type=type(f.default), default=f.default, help=f.metadata["help"])
    options = vars(parser.parse_args(argv))
    out: Path = options.pop("out")
    torch.set_num_threads(options.pop("threads"))
    begin = time.monotonic()
    found = pretrain(recipe(**options), out)
    for line in (out / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split()
        print(f"{out / name}  {(out / name).stat().st_size:,} bytes  sha256 {digest}")
    for line in found:
        print(line)
    print(f"duration: {(time.monotonic() - begin) / 60:.1f} minutes")
