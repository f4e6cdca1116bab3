"""Initial weights, read again from a model's files if a copy on the host would be large."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from zo.lm.config import ModelConfig
from zo.lm.source import source_of
from zo.tasks import hub

HOST_SHARE = 0.25  # Weights above this share of the machine's memory are read again, not copied


def rereads(
    cfg: ModelConfig, names: Sequence[str], tensors: Sequence[Tensor]
) -> dict[int, Callable[[], Tensor]]:
    """Returns functions that read tensors again, by position, for those that a safetensors file has with the same bits.

    Empty if all tensors together are small relative to the machine's memory.
    """
    size = sum(t.numel() * t.element_size() for t in tensors)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size <= HOST_SHARE * memory or cfg.weights != "pretrained":
        return {}
    files = _files(cfg)
    found: dict[int, Callable[[], Tensor]] = {}
    for i, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
        _, _, inner = name.partition(".")
        for key in (name, inner, f"model.{name}", f"transformer.{name}"):
            if key in files and _same(
                read := partial(_read, files[key], key, tensor.dtype), tensor
            ):
                found[i] = read
                break
    return found


def _files(cfg: ModelConfig) -> dict[str, Path]:
    """Returns tensor name -> safetensors file; empty if there are none."""
    from safetensors import safe_open

    source, _ = source_of(cfg)
    directory = Path(source)
    if not directory.is_dir():
        directory = Path(hub.file(cfg.path, "config.json", cfg.revision)).parent
    found: dict[str, Path] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    return found


def _read(path: Path, key: str, dtype: torch.dtype) -> Tensor:
    """Returns a tensor of a file, which stays in the page cache."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        tensor: Tensor = file.get_tensor(key)
        return tensor.to(dtype)


def _same(read: Callable[[], Tensor], tensor: Tensor) -> bool:
    """Returns whether a file's tensor equals the trained one."""
    found = read()
    return found.shape == tensor.shape and torch.equal(found, tensor.cpu())
