"""Peak memory of a run: the GPU's where there is one, otherwise the process's resident memory."""

import ctypes
import gc
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

GIB = 2**30


def reset_peak(device: torch.device) -> None:
    """Starts a new measurement of the peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # Linux alone; elsewhere the peak is since the process started
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_gib(device: torch.device) -> float:
    """Returns the peak since `reset_peak`, GiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    status = Path("/proc/self/status")
    text = status.read_text(encoding="utf-8") if status.exists() else ""
    if peak := re.search(r"^VmHWM:\s*(\d+) kB", text, re.MULTILINE):
        return int(peak[1]) * 1024 / GIB
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def release() -> None:
    """Gives memory of a run that has ended back to the operating system, so that the next run starts without it."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)
