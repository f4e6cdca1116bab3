"""Standard normal noise that is a function of its key: the only code that draws perturbations.

A perturbation is never stored: the same key gives the same bits again, in any order and from any thread. Noise is
always drawn in float32, whatever the parameter's dtype. No global random state is read or written.

There are two kinds, a run's `precision.noise`: `torch`, the generator's own (`torch_generator.py`), and `philox`,
counter based (`philox.py` defines it). A Philox value depends on its key and position alone: any part of a tensor can
be drawn, and a pass over the weights draws while it adds. `registry.py` picks a device's engine: `cpu` (numba),
`cuda` (Triton), or `reference.py` (numpy) where numba is missing.
"""

from zo.noise.engines import (
    DTYPES,
    Engine,
    KeyedTerms,
    Move,
    PhiloxEngine,
    PreparedProgram,
    TensorTable,
)
from zo.noise.keys import PERTURBATION, ROUNDING, SUBSPACE, NoiseKey
from zo.noise.registry import NOISES, engine, is_compiled

__all__ = [
    "DTYPES",
    "NOISES",
    "PERTURBATION",
    "ROUNDING",
    "SUBSPACE",
    "Engine",
    "KeyedTerms",
    "Move",
    "NoiseKey",
    "PhiloxEngine",
    "PreparedProgram",
    "TensorTable",
    "engine",
    "is_compiled",
]
