"""Passes on a GPU that move θ and a method's own state together, their noise drawn on the way: HiZOO's and Adam's.

`cuda.py` has them, written with Triton. On a CPU the same arithmetic is a program, see `ParameterUpdate.change`: every
product, sum, quotient and root is rounded once, and values of state also to its dtype.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor

from zo.noise import PhiloxEngine
from zo.weights.sharded import PhiloxPartsEngine
from zo.weights.updates import UpdateTarget


class HiZOOScalars(NamedTuple):
    """Scalars of a step of HiZOO.

    Attributes:
        step: Coefficient of z/√H, with the H that is written, by which θ then moves.
        difference: |ℓ₊ + ℓ₋ − 2 ℓ₀|.
        smooth: s.
        divisor: 2ε².
        in_float32: Whether the arithmetic on H is float32, not its own dtype's.
    """

    step: float
    difference: float
    smooth: float
    divisor: float
    in_float32: bool


class AdamScalars(NamedTuple):
    """Scalars of a step of Adam.

    Attributes:
        beta1: β₁.
        beta2: β₂.
        root1: 1 − β₁ᵗ.
        root2: √(1 − β₂ᵗ).
        eps: δ.
        step: Coefficient of m̂ / (√v̂ + δ).
    """

    beta1: float
    beta2: float
    root1: float
    root2: float
    eps: float
    step: float


def gpu_pass(
    name: str, engine: PhiloxEngine, at: UpdateTarget, state: Sequence[Tensor], *rest: Any
) -> Callable[[], object] | None:
    """Returns a pass with an engine's noise, or None if there is none for its device.

    Of a sharded tensor it is on a full tensor that holds this process's part.

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
    if not engine.kernels:
        return None
    run, tensors = getattr(import_module(f"{__name__}.{engine.kernels}"), name), (at.p, *state)

    def pass_once() -> None:
        with nullcontext(tensors) if part is None else part.wholes(tensors) as (p, *wholes):
            run(at._replace(p=p), *wholes, *rest)

    return pass_once
