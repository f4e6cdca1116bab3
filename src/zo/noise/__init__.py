"""Standard normal noise that is a function of its key: the only code that draws perturbations.

A perturbation is never stored. Whoever needs it again asks again with the same key and gets the same bits, in any
order, from any thread, whatever the parameter's dtype: noise is always drawn in float32. No global random state is
read or written.

There are two kinds, a run's `precision.noise`: `torch`, the generator's own (`torch_generator.py`), and `philox`,
counter based (`philox.py` defines it): a value depends on its key and its position alone, so any part of a tensor can
be drawn, and a pass over the weights draws while it adds. `registry.py` picks what draws on a device: `cpu` (numba),
`cuda.py` (Triton), or `reference.py` (numpy) where numba is missing.
"""

from zo.noise.engines import DTYPES, Engine, KeyedTerms, Move, PhiloxEngine
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
    "engine",
    "is_compiled",
]
