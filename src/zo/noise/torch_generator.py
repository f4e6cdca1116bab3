"""Noise from torch's own generator: one seeding per tensor, and the stream of the device's sampler.

Its stream depends on the device type, and on torch's version only if torch changes its sampler. On the CPU torch keeps
32 bits of a seed, so two keys of a 20,000-step run can share a stream; that makes two far-apart tensors' noise equal,
and biases nothing.
"""

import hashlib
import struct
import threading

from torch import Generator, Tensor

from zo.noise.keys import NoiseKey


class _Generators(threading.local):
    """One generator per device and thread: between its seeding and its draw nobody else seeds it."""

    def __init__(self) -> None:
        self.of: dict[str, Generator] = {}


_generators = _Generators()


def normal_(out: Tensor, key: NoiseKey, tensor_index: int) -> Tensor:
    """Fills `out` in place with the standard normals of tensor `tensor_index` under `key`.

    Args:
        out: A contiguous float32 tensor; its shape decides how many values are drawn.
        key: See `NoiseKey`.
        tensor_index: Position of the tensor in its `ParameterSpace`, from 0.

    Returns:
        `out`.
    """
    digest = hashlib.blake2b(struct.pack("<5q", *key, tensor_index), digest_size=8).digest()
    device = str(out.device)
    if device not in _generators.of:
        _generators.of[device] = Generator(device=out.device)
    generator = _generators.of[device].manual_seed(int.from_bytes(digest, "little", signed=True))
    return out.normal_(generator=generator)
