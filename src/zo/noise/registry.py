"""The registry of noise engines."""

import importlib.util
import os
import warnings
from functools import lru_cache

from zo.noise.engines import Engine

NOISES = ("torch", "philox")


def is_compiled(*devices: str) -> bool:
    """Returns whether Philox noise is compiled for devices: by numba on the CPU, by Triton on CUDA."""
    kinds = {device.partition(":")[0] for device in devices} or {"cpu"}
    compiler = {"cpu": "numba", "cuda": "triton"}.get("".join(kinds)) if len(kinds) == 1 else None
    disabled = compiler == "numba" and os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
    return compiler is not None and not disabled and importlib.util.find_spec(compiler) is not None


@lru_cache
def engine(noise: str, *devices: str) -> Engine:
    """Returns the noise engine for devices.

    Args:
        noise: `torch` or `philox`.
        devices: As `cpu` or `cuda:1`; none is `cpu`.

    Raises:
        ValueError: If the noise is unknown or does not support a device.
    """
    if noise not in NOISES:
        raise ValueError(f"noise={noise!r}: must be one of {', '.join(NOISES)}")
    if noise == "torch":
        from zo.noise.torch_generator import TorchEngine

        return TorchEngine(*devices)
    kinds = sorted({device.partition(":")[0] for device in devices}) or ["cpu"]
    if kinds == ["cuda"]:
        from zo.noise.cuda.engine import TritonEngine

        return TritonEngine()
    if kinds != ["cpu"]:
        where = " and ".join(kinds)
        raise ValueError(f"noise='philox': draws on cpu or on cuda, not on {where}; use torch")
    if is_compiled(*devices):
        from zo.noise.cpu.engine import NumbaEngine

        return NumbaEngine()
    from zo.noise.reference import NumpyEngine

    warnings.warn(
        "noise=philox is drawn by numpy, the same numbers some thirty times slower than by numba: "
        + (
            "NUMBA_DISABLE_JIT is set, unset it"
            if importlib.util.find_spec("numba")
            else "pip install -e '.[fast]'"
        ),
        stacklevel=2,
    )
    return NumpyEngine()
