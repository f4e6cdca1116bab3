"""What the tools that pretrain small models share: a recipe's options, the model, the training, and files."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, PreTrainedTokenizerFast

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def option(default: float, text: str) -> Any:
    """A recipe's field together with the help text of its command-line option."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Recipe:
    """All that decides the weights, beside the machine and its thread count."""

    seed: int = option(0, "of the initial weights and the data's order")
    steps: int = option(1_000, "optimizer steps")
    batch_size: int = option(128, "texts per step")
    lr: float = option(2e-3, "peak learning rate of AdamW")
    warmup: int = option(200, "steps of linear warmup; a cosine to 0 follows")
    weight_decay: float = option(0.1, "of the matrices")
    width: int = option(128, "hidden size")
    layers: int = option(2, "decoder layers")
    heads: int = option(4, "attention heads")


def build_model(
    kind: type[PreTrainedModel], recipe: Recipe, tokenizer: PreTrainedTokenizerFast, **more: Any
) -> Any:
    """A model of the recipe's size: matrices from N(0, 0.02²), norms' weights 1, biases 0.

    Args:
        kind: Class of the model.
        recipe: Has the seed and the size.
        tokenizer: Has the vocabulary and the greatest length.
        more: Settings of the class's own configuration.
    """
    config = kind.config_class(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        max_position_embeddings=tokenizer.model_max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=[kind.__name__],
        **more,
    )
    with torch.random.fork_rng(devices=[]):  # the library's own initialisation draws globally
        model = kind(config)
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, 0.02, generator=generator)
            else:
                parameter.fill_(float("norm" in name and name.endswith("weight")))
    return model


def train(model: nn.Module, recipe: Recipe, measure: Callable[[], tuple[Tensor, float]]) -> None:
    """Trains in place with AdamW, which decays matrices alone, and with a progress line.

    Args:
        model: The model.
        recipe: Has the steps and their learning rates.
        measure: Draws the next mini-batch; returns its loss, and the number that the line shows.
    """
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    decay = recipe.weight_decay
    optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.98), weight_decay=decay)
    rates = LambdaLR(optimizer, lambda step: schedule(step, recipe.steps, recipe.warmup))
    columns = TextColumn("{task.completed}/{task.total} steps, loss {task.fields[loss]:.3f}, left")
    with Progress(columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("train", total=recipe.steps, loss=math.nan)
        for _ in range(recipe.steps):
            loss, shown = measure()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rates.step()
            bar.update(task, advance=1, loss=shown)


def schedule(step: int, steps: int, warmup: int) -> float:
    """Share of the peak learning rate: linear warmup, then a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return 0.5 * (1.0 + math.cos(math.pi * done))


def pad_right(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Stack rows of ids: (batch, time) and lengths (batch,)."""
    tensors = [torch.tensor(row) for row in rows]
    ids = nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=pad)
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


def run(tool: str, recipe: type[Recipe], pretrain: Callable[[Any, Path], list[str]]) -> None:
    """Parse the options of a recipe, run it, and say what came out.

    Args:
        tool: Module of the tool.
        recipe: Dataclass of `option` fields.
        pretrain: Writes the model and returns what there is to say of it.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {tool}", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; part of the result")
    for f in fields(recipe):
        name = "--" + f.name.replace("_", "-")
        parser.add_argument(name, type=type(f.default), default=f.default, help=f.metadata["help"])
    options = vars(parser.parse_args())
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
