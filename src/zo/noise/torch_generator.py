"""Noise from torch's own generator: one seeding per tensor, and the stream of the device's sampler.

The stream depends on the device type and on a CPU's vector instructions; on torch's version only if its sampler
changes. On the CPU torch keeps 32 bits of a seed, so two keys of a 20,000-step run can share a stream. Then two
far-apart tensors have equal noise, which biases nothing.
"""

import hashlib
import struct
import threading
from functools import lru_cache

import torch
from torch import Generator, Tensor

from zo.noise.engines import Engine
from zo.noise.keys import NoiseKey

SAME_VALUES = ("AVX2", "AVX512")
"""CPU capabilities under which torch's sampler gives the same normals; others differ by some 1e-6."""


class _Generators(threading.local):
    """One generator per device and thread, so that no other thread seeds it before the draw."""

    def __init__(self) -> None:
        self.of: dict[str, Generator] = {}


_generators = _Generators()


class TorchEngine(Engine):
    """Noise of torch's generator, for full tensors only.

    On CUDA the order of the values depends on the GPU's number of multiprocessors and on torch's sampler. `backend`
    therefore holds the GPU's model and torch's version there.

    Args:
        devices: Of the tensors, as `cpu` or `cuda:1`; none is `cpu`.
    """

    def __init__(self, *devices: str):
        self.backend = " + ".join(sorted({_sampler(device) for device in devices or ("cpu",)}))

    def draw_(self, out: Tensor, key: NoiseKey, tensor: int, signs: bool = False) -> Tensor:
        """As `Engine.draw_`. Each 32-bit number gives 32 signs, lowest bit first, where a set bit is −1."""
        generator = _seeded(out.device, key, tensor)
        if not signs:
            return out.normal_(generator=generator)
        words = torch.empty(-(-out.numel() // 32), dtype=torch.int32, device=out.device)
        octets = words.random_(-(2**31), 2**31, generator=generator).view(torch.uint8)
        drawn = _signs_of_octets(out.device).index_select(0, octets.int())
        out.view(-1).copy_(drawn.view(-1)[: out.numel()])
        return out


@lru_cache
def _signs_of_octets(device: torch.device) -> Tensor:
    """Returns the eight signs of each octet, (256, 8), float32."""
    bits = torch.arange(256, device="cpu")[:, None] >> torch.arange(8, device="cpu") & 1
    return (1 - 2 * bits).to(device, torch.float32)


def _seeded(device: torch.device, key: NoiseKey, tensor: int) -> Generator:
    """Returns this thread's generator of a device, seeded by a key and a tensor's position."""
    digest = hashlib.blake2b(struct.pack("<5q", *key, tensor), digest_size=8).digest()
    name = str(device)
    if name not in _generators.of:
        _generators.of[name] = Generator(device=device)
    return _generators.of[name].manual_seed(int.from_bytes(digest, "little", signed=True))


def _sampler(device: str) -> str:
    """Returns the name of torch's sampler on a device."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        capability = torch.backends.cpu.get_cpu_capability()
        return "torch-cpu" if capability in SAME_VALUES else f"torch-cpu ({capability})"
    if kind != "cuda":
        return f"torch-{kind}"
    return f"torch-cuda ({torch.cuda.get_device_name(device)}, torch {torch.__version__})"
