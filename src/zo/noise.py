"""Standard normal noise that is a function of its key: the only code that draws perturbations.

A perturbation is never stored. Whoever needs it again asks again with the same key and gets the same bits, in any
order, from any thread, whatever the parameter's dtype: noise is always drawn in float32. No global random state is
read or written.

The generator is torch's own (`torch.Generator`, one seeding per tensor). Its stream depends on the device type, and
on torch's version only if torch changes its sampler. On the CPU torch keeps 32 bits of a seed, so two keys of a
20,000-step run can share a stream; that makes two far-apart tensors' noise equal, and biases nothing.
"""

import hashlib
import struct
import threading
from typing import NamedTuple

import torch
from torch import Generator, Tensor

PERTURBATION = 0
"""Stream of the directions that a method moves along."""

SUBSPACE = 1
"""Stream of what is redrawn only every so often and holds for the steps between: LOZO's V."""


class NoiseKey(NamedTuple):
    """What a noise vector depends on.

    Attributes:
        seed: The run's seed, any 64-bit integer.
        stream: Purpose of the draw; different purposes never share noise.
        step: Optimizer step, from 0.
        direction: Index of the direction within its step, from 0.
    """

    seed: int
    stream: int
    step: int
    direction: int


class _Generators(threading.local):
    """One generator per device and thread: between its seeding and its draw nobody else seeds it."""

    def __init__(self) -> None:
        self.of: dict[str, Generator] = {}


_generators = _Generators()


def backend(device: str | torch.device) -> str:
    """Returns the name of what draws on a device; another name means other numbers."""
    return f"torch-{torch.device(device).type}"


def normal_(out: Tensor, key: NoiseKey, tensor_index: int) -> Tensor:
    """Fills `out` in place with the standard normals of tensor `tensor_index` under `key`.

    Args:
        out: A contiguous float32 tensor; its shape decides how many values are drawn.
        key: See `NoiseKey`.
        tensor_index: Position of the tensor in its `ParamSpace`, from 0.

    Returns:
        `out`.
    """
    digest = hashlib.blake2b(struct.pack("<5q", *key, tensor_index), digest_size=8).digest()
    device = str(out.device)
    if device not in _generators.of:
        _generators.of[device] = Generator(device=out.device)
    generator = _generators.of[device].manual_seed(int.from_bytes(digest, "little", signed=True))
    return out.normal_(generator=generator)
