"""Provenance of a run: code revision, library versions, device, hash of the weights."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from zo.config import digests
from zo.weights.tensors import hash_of

SOURCES = ("lm/scoring", "noise", "optim", "weights")  # Packages whose code decides a run's numbers
HERE = Path(__file__).parent
LIBRARIES = ("torch", "transformers", "datasets", "tokenizers", "numpy", "wandb", "hydra-core")


def weights_hash(names: Sequence[str], tensors: Iterable[Tensor]) -> str:
    """Returns a hash of names, shapes, dtypes and bits: equal for equal weights, on any device."""
    pairs = zip(names, tensors, strict=True)
    described = ((f"{name} {tuple(t.shape)} {t.dtype};", t) for name, t in pairs)
    return f"xxh3_128:{hash_of(described, xxhash.xxh3_128())}"


def provenance(device: torch.device) -> dict[str, Any]:
    """Returns code, library versions, machine and time of start."""
    return {
        "git_revision": git_revision(),
        "git_dirty": bool(digests.git(HERE, "status", "--porcelain", "--untracked-files=no")),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in LIBRARIES},
        },
        "sources": sources(),
        "device": device_name(device),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "host_cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def sources(package: Path = Path(__file__).parents[1]) -> str:
    """Returns the code that decides a run's numbers, as `noise:0123456789ab optim:...`: trees as git names them.

    Without git the names are the same.
    """
    return " ".join(f"{name}:{digests.of_tree(package / name)[:12]}" for name in SOURCES)


def git_revision() -> str:
    """Returns the commit of this source tree, `unknown` outside of one."""
    return digests.git(HERE, "rev-parse", "HEAD").strip() or "unknown"


def device_name(device: torch.device) -> str:
    """Returns the name of the GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*: *(.*?) *$", text, re.MULTILINE)
    return f"cpu: {model[1] if model else platform.processor() or platform.machine()}"
