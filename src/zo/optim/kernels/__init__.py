"""Updates that move θ and a method's own state in one pass, their noise drawn on the way: HiZOO's and Adam's.

`rules.py` says what is done to one element of state. Three modules make the passes: `reference.py` for numpy's engine,
`cpu.py` for numba's, `cuda.py` for Triton's. Each engine names its module in `PhiloxEngine.kernels`. Each module has

- `hizoo(at, h, key, scalars)`: adds the pending displacement, moves H, then θ by step · z/√H
- `adam(at, m, v, gradient, scalars, signs)`: adds the pending displacement, moves the moments by the gradient
  Σ c_j z_j, then θ by step · m̂ / (√v̂ + δ); with `signs` all z_j are signs, else standard normals
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor

from zo.noise import PhiloxEngine
from zo.weights.sharded import PhiloxPartsEngine
from zo.weights.updates import UpdateTarget


class HiZOOScalars(NamedTuple):
    """Scalars of a step of HiZOO.

    Attributes:
        pending: Coefficient of z/√H, with the H that is read, of a displacement that is added first; None without.
        step: Coefficient of z/√H, with the H that is written, by which θ then moves.
        difference: |ℓ₊ + ℓ₋ − 2 ℓ₀|.
        smooth: s.
        divisor: 2ε².
        in_float32: Whether the arithmetic on H is float32, not its own dtype's.
    """

    pending: float | None
    step: float
    difference: float
    smooth: float
    divisor: float
    in_float32: bool


class AdamScalars(NamedTuple):
    """Scalars of a step of Adam.

    Attributes:
        pending: Coefficient of the gradient's last direction, of a displacement that is added first; None without.
        beta1: β₁.
        beta2: β₂.
        root1: 1 − β₁ᵗ.
        root2: √(1 − β₂ᵗ).
        eps: δ.
        step: Coefficient of m̂ / (√v̂ + δ).
    """

    pending: float | None
    beta1: float
    beta2: float
    root1: float
    root2: float
    eps: float
    step: float


def run_pass(
    name: str, engine: PhiloxEngine, at: UpdateTarget, state: Sequence[Tensor], *rest: Any
) -> None:
    """Runs a pass with an engine's noise; of a sharded tensor on a full tensor that holds this process's part.

    Args:
        name: `hizoo` or `adam`.
        engine: The noise engine.
        at: A contiguous tensor of θ, float32, bfloat16 or float16.
        state: The method's state of this tensor: H, or both moments, contiguous.
        rest: The other arguments of the pass.
    """
    part = None
    if isinstance(engine, PhiloxPartsEngine):
        part, engine = engine.parts.get(at.i), engine.engine
    run = getattr(import_module(f"{__name__}.{engine.kernels}"), name)
    if part is None:
        run(at, *state, *rest)
        return
    p, *wholes = (part.in_whole(t) for t in (at.p, *state))
    run(at._replace(p=p), *wholes, *rest)
    for t, moved in zip((at.p, *state), (p, *wholes), strict=True):
        t.copy_(moved[part.place])
