"""Updates that move θ and a method's own state in one pass, their noise drawn on the way: HiZOO's and Adam's.

`rules.py` says what is done to one element of state. A pass per kind of engine reads θ, noise and state, does that, and
writes: `reference.py` for numpy's engine, `cpu.py` for numba's, `cuda.py` for Triton's, with the rules in its words.
"""

from importlib import import_module
from typing import NamedTuple, Protocol, cast

from torch import Tensor

from zo.noise import KeyedTerms, NoiseKey, PhiloxEngine
from zo.weights.updates import UpdateTarget


class HiZOOScalars(NamedTuple):
    """HiZOO's, of one step.

    Attributes:
        back: Coefficient of z/√H, with the H that is read, by which θ first comes back; None if it is there.
        step: Coefficient of z/√H, with the H that is written, by which θ then moves.
        bend: |ℓ₊ + ℓ₋ − 2 ℓ₀|.
        smooth: s.
        divisor: 2ε².
        in_float32: Whether the arithmetic on H is float32, not its own dtype's.
    """

    back: float | None
    step: float
    bend: float
    smooth: float
    divisor: float
    in_float32: bool


class AdamScalars(NamedTuple):
    """Adam's, of one step.

    Attributes:
        back: Coefficient of the gradient's last direction by which θ first comes back; None if it is there.
        beta1: β₁.
        beta2: β₂.
        root1: 1 − β₁ᵗ.
        root2: √(1 − β₂ᵗ).
        eps: δ.
        step: Coefficient of m̂ / (√v̂ + δ).
    """

    back: float | None
    beta1: float
    beta2: float
    root1: float
    root2: float
    eps: float
    step: float


class Passes(Protocol):
    """What each of the files offers; θ and state are contiguous, float32, bfloat16 or float16."""

    def hizoo(self, at: UpdateTarget, h: Tensor, key: NoiseKey, scalars: HiZOOScalars) -> None:
        """Brings θ back, moves H, then θ by step · z/√H."""

    def adam(
        self, at: UpdateTarget, m: Tensor, v: Tensor, gradient: KeyedTerms, scalars: AdamScalars
    ) -> None:
        """Brings θ back, moves the moments by the gradient Σ c_j z_j, then θ by step · m̂ / (√v̂ + δ)."""


def passes(engine: PhiloxEngine) -> Passes:
    """Returns the passes of an engine: they are in the file that is called as the engine's own is."""
    file = type(engine).__module__.rpartition(".")[2]
    return cast(Passes, import_module(f"{__name__}.{file}"))
