"""Peak memory of a run: the GPU's where there is one, otherwise the process's resident memory."""

import ctypes
import gc
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
    try:
        # Linux: peak = current resident size
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return  # elsewhere the peak is that of the process since it started


def peak_gib(device: torch.device) -> float:
    """Returns the peak since `reset_peak`, GiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / GIB
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def release() -> None:
    """Gives memory of a run that has ended back to the operating system, so that the next run starts without it."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)
