"""The registry of noise engines."""

import importlib.util
import os
import warnings
from functools import lru_cache

from zo.noise.engines import Engine

NOISES = ("torch", "philox")


OLDEST_TRITON = (3, 6)
"""Earlier ones flush the smallest quotients and roots to zero, or compile no kernel."""


def is_compiled(*devices: str) -> bool:
    """Returns whether Philox noise is compiled for devices: by numba on the CPU, by Triton on CUDA."""
    kinds = {device.partition(":")[0] for device in devices} or {"cpu"}
    compiler = {"cpu": "numba", "cuda": "triton"}.get("".join(kinds)) if len(kinds) == 1 else None
    if compiler is None or importlib.util.find_spec(compiler) is None:
        return False
    if compiler == "numba":
        return os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
    version = importlib.import_module(compiler).__version__
    return (*map(int, version.split(".")[:2]),) >= OLDEST_TRITON


@lru_cache
def engine(noise: str, *devices: str) -> Engine:
    """Returns the noise engine for devices.

    Args:
        noise: `torch` or `philox`.
        devices: As `cpu` or `cuda:1`; none is `cpu`.

    Raises:
        ValueError: If the noise is unknown or does not support a device, or on CUDA Triton is missing or too old.
    """
    if noise not in NOISES:
        raise ValueError(f"noise={noise!r}: must be one of {', '.join(NOISES)}")
    if noise == "torch":
        from zo.noise.torch_generator import TorchEngine

        return TorchEngine(*devices)
    kinds = sorted({device.partition(":")[0] for device in devices}) or ["cpu"]
    if kinds == ["cuda"]:
        if not is_compiled(*devices):
            raise ValueError(
                "noise='philox': on cuda it needs Triton 3.6 or later, which torch 2.10 brings; use torch"
            )
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
