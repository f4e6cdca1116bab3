"""What this machine has: GPUs that PyTorch can use, their memory, cores; and how many runs share it."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from launch.local import visible_gpus
from launch.measured.stages import Stage
from launch.pool import cpu_slots, gpu_slots

MIB_PER_GIB = 1024


@dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes:
        gpus: As CUDA_VISIBLE_DEVICES names them.
        gib: Memory of the smallest of them; 0 if it cannot be known.
        cores: That this process may use.
    """

    gpus: tuple[str, ...]
    gib: float
    cores: int

    @classmethod
    def this(cls) -> "Machine":
        """Returns this one; a GPU that the installed PyTorch cannot use counts for none."""
        gpus = tuple(visible_gpus()) if torch.cuda.is_available() else ()
        return cls(gpus, _memory_gib() if gpus else 0.0, len(os.sched_getaffinity(0)))

    def at_once(self, stage: Stage, processes: int | None = None) -> int:
        """Returns how many runs of a stage share a GPU, or the processor.

        Args:
            stage: One that is timed has the machine for itself.
            processes: What was asked for instead of the default: a core and the memory that a run takes.
        """
        if stage.alone:
            return 1
        if processes is not None:
            return processes
        share = max(1, self.cores // max(1, len(self.gpus)))
        fit = int(self.gib // stage.gib) if stage.gpu else share
        return max(1, min(share, fit))

    def slots(self, stage: Stage, processes: int | None = None) -> list[Mapping[str, str]]:
        """Returns the slots of a stage's pool; see `launch.pool`."""
        count = self.at_once(stage, processes)
        if not stage.gpu:
            return list(cpu_slots(count))
        gpus = self.gpus[:1] if stage.alone else self.gpus
        return list(gpu_slots(gpus, count * len(gpus)))


def _memory_gib() -> float:
    """Returns the memory of the GPU that has least; asked of the driver, since PyTorch would take some to answer."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return min(float(line) for line in done.stdout.split()) / MIB_PER_GIB
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0.0
