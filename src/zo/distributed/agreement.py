"""Comparisons between the processes of a training: settings and code at the start, weights as it goes on."""

import hashlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zo.distributed.processes import Processes, ProcessesError
from zo.optim.base import ZOOptimizer

CHUNK = 1 << 22
"""Values of a tensor that are widened at once for its digest."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by their bytes."""


class WeightsDifferError(ProcessesError):
    """Processes whose weights are no longer the same.

    Attributes:
        agreed: The last step after which they were.
    """

    def __init__(self, sentence: str, agreed: int):
        super().__init__(sentence)
        self.agreed = agreed


@cache
def code_digest() -> str:
    """Returns a digest of the source files of this package."""
    digest = hashlib.blake2b(digest_size=8)
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)};".encode() + path.read_bytes())
    return digest.hexdigest()


def check_same(processes: Processes, values: Mapping[str, Any], remedy: str) -> None:
    """Compares values of each process with those of process 0 (collective).

    Args:
        processes: All call this.
        values: Values by their names in messages.
        remedy: What to do about a difference.

    Raises:
        ProcessesError: On all processes, naming the first value that differs.
    """
    everybody = processes.exchange((socket.gethostname(), dict(values)))
    _, first = everybody[0]
    for rank, (host, other) in enumerate(everybody):
        for key in (*first, *other):
            mine, its = first.get(key, "not there"), other.get(key, "not there")
            if mine != its:
                who = f"process {rank} on {host}"
                raise ProcessesError(f"{who}: {key} is {its}, and {mine} on process 0; {remedy}")


def tensor_digest(tensor: Tensor) -> int:
    """Returns Σ x_i (2 i + 1) mod 2^64 over a tensor's bits, computed on its device: one changed value changes it."""
    bits = tensor.detach().contiguous().view(-1).view(INTEGERS[tensor.element_size()])
    total = 0
    for start in range(0, len(bits), CHUNK):
        part = bits[start : start + CHUNK].long()
        factors = torch.arange(start, start + len(part), device=part.device).mul_(2).add_(1)
        total += int(part.mul_(factors).sum())
    return total % 2**64


def digests(optimizer: ZOOptimizer) -> tuple[list[str], list[int]]:
    """Returns names and digests of the weights and of all state that the next step depends on."""
    names, tensors = optimizer.params.gathered(collect=False)
    for name, of in optimizer.state.items():
        names = [*names, *(f"{name}[{i}]" for i in range(len(of)))]
        tensors = chain(tensors, of)
    return names, [tensor_digest(tensor) for tensor in tensors]


@dataclass
class Watch:
    """Compares the weights of all processes every so many steps.

    Attributes:
        processes: All make the same calls.
        every: Steps; None never.
        agreed: The last step after which they were the same.
    """

    processes: Processes
    every: int | None
    agreed: int = 0

    def after_step(self, optimizer: ZOOptimizer) -> None:
        """Compares them if that is due.

        Raises:
            WeightsDifferError: As `compare`.
        """
        if self.processes.world > 1 and self.every and optimizer.step_index % self.every == 0:
            self.compare(optimizer)

    def compare(self, optimizer: ZOOptimizer) -> None:
        """Compares them now.

        Raises:
            WeightsDifferError: On all processes, naming the first tensor that differs, and the ranks.
        """
        names, own = digests(optimizer)
        step, found = optimizer.step_index, self.processes.exchange(own)
        for name, *of_tensor in zip(names, *found, strict=True):
            usual = max(of_tensor, key=of_tensor.count)
            if others := [rank for rank, digest in enumerate(of_tensor) if digest != usual]:
                who = f"process {others[0]}" if len(others) == 1 else f"processes {others}"
                rest = self.processes.world - len(others)
                raise WeightsDifferError(
                    f"step {step}: {name} of {who} differs from that of the other"
                    f" {'process' if rest == 1 else 'processes'}; they agreed after step {self.agreed}, from which the"
                    " same command goes on. A difference comes from memory or hardware that fails, or from machines"
                    " that round differently",
                    self.agreed,
                )
        self.agreed = step
