"""Safetensors files that are written and read one tensor at a time, so that the host never holds a copy of all."""

import json
import os
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
BLOCK = 1 << 24
"""Bytes of a file that are read at once."""


def write(path: Path, names: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, Any]:
    """Writes tensors in the order given, waits until the disk has them, and returns length and hash of the file."""
    digest, length = xxhash.xxh3_128(), 0
    with path.open("wb") as file:
        blocks: Iterator[Any] = chain([_header(names, tensors)], map(_bytes, tensors))
        for data in blocks:
            digest.update(data)
            length += file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": length, "xxh3_128": digest.hexdigest()}


def measure(path: Path) -> dict[str, Any]:
    """Returns length and hash of a file, as `write` does."""
    digest, length = xxhash.xxh3_128(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            length += len(block)
    return {"bytes": length, "xxh3_128": digest.hexdigest()}


def _bytes(tensor: Tensor) -> memoryview:
    """Returns the bytes of a tensor; of one on another device or with gaps, those of a copy."""
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return flat.numpy().data


def _header(names: Sequence[str], tensors: Sequence[Tensor]) -> bytes:
    """Returns the file's beginning: the length of a JSON text, and the text, which says where each tensor is."""
    entries: dict[str, Any] = {}
    end = 0
    for name, tensor in zip(names, tensors, strict=True):
        begin, end = end, end + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
