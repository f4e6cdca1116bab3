"""Which engine draws on a device."""

import importlib.util
import warnings
from functools import lru_cache

from zo.noise.engines import Engine, TorchEngine

NOISES = ("torch", "philox")


@lru_cache
def engine(noise: str, device: str = "cpu") -> Engine:
    """Returns what draws on a device.

    Args:
        noise: `torch` or `philox`.
        device: Type of the device.

    Raises:
        ValueError: On an unknown noise, or a device that it cannot be had on.
    """
    if noise not in NOISES:
        raise ValueError(f"noise={noise!r}: must be one of {', '.join(NOISES)}")
    if noise == "torch":
        return TorchEngine(device)
    if device == "cuda":
        from zo.noise.cuda import TritonEngine

        return TritonEngine()
    if device != "cpu":
        raise ValueError(f"noise='philox': there is none for {device}, only for cpu and cuda")
    if importlib.util.find_spec("numba"):
        from zo.noise.cpu import NumbaEngine

        return NumbaEngine()
    from zo.noise.reference import NumpyEngine

    warnings.warn(
        "noise=philox is drawn by numpy, the same numbers some thirty times slower than by numba: "
        "pip install -e '.[fast]'",
        stacklevel=2,
    )
    return NumpyEngine()
