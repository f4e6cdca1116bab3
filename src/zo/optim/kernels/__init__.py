"""Updates that move θ and a method's own state in one pass, their noise drawn on the way: HiZOO's and Adam's.

`rules.py` says what is done to one element of state. Three modules make the passes: `reference.py` for numpy's engine,
`cpu.py` for numba's, `cuda.py` for Triton's. Each engine names its module in `PhiloxEngine.kernels`.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from torch import Tensor

from zo.noise import KeyedTerms, NoiseKey, PhiloxEngine
from zo.weights.sharded import Part, PhiloxPartsEngine
from zo.weights.updates import UpdateTarget


class HiZOOScalars(NamedTuple):
    """HiZOO's, of one step.

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
    """Adam's, of one step.

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


class FusedKernels(Protocol):
    """The passes of one engine; θ and state are contiguous, float32, bfloat16 or float16."""

    def hizoo(self, at: UpdateTarget, h: Tensor, key: NoiseKey, scalars: HiZOOScalars) -> None:
        """Adds the pending displacement, moves H, then θ by step · z/√H."""

    def adam(
        self,
        at: UpdateTarget,
        m: Tensor,
        v: Tensor,
        gradient: KeyedTerms,
        scalars: AdamScalars,
        signs: bool = False,
    ) -> None:
        """Adds the pending displacement, moves the moments by the gradient Σ c_j z_j, then θ by step · m̂ / (√v̂ + δ).

        With `signs` all z_j are signs, else standard normals.
        """


class PartsKernels:
    """The passes over this process's parts of sharded tensors: over whole ones with the parts in their places.

    Args:
        kernels: What makes the passes over whole tensors.
        parts: Of the sharded tensors, by position.
    """

    def __init__(self, kernels: FusedKernels, parts: Mapping[int, Part]):
        self._kernels = kernels
        self._parts = parts

    def hizoo(self, at: UpdateTarget, h: Tensor, *rest: Any) -> None:
        """As `FusedKernels.hizoo`."""
        self._run(self._kernels.hizoo, at, [h], *rest)

    def adam(self, at: UpdateTarget, m: Tensor, v: Tensor, *rest: Any) -> None:
        """As `FusedKernels.adam`."""
        self._run(self._kernels.adam, at, [m, v], *rest)

    def _run(self, run: Any, at: UpdateTarget, state: list[Tensor], *rest: Any) -> None:
        part = self._parts.get(at.i)
        if part is None:
            run(at, *state, *rest)
            return
        p, *wholes = (part.in_whole(t) for t in (at.p, *state))
        run(at._replace(p=p), *wholes, *rest)
        for t, moved in zip((at.p, *state), (p, *wholes), strict=True):
            t.copy_(moved[part.place])


def kernels(engine: PhiloxEngine) -> FusedKernels:
    """Returns the passes that draw as the engine does."""
    if isinstance(engine, PhiloxPartsEngine):
        return PartsKernels(kernels(engine.engine), engine.parts)
    return cast(FusedKernels, import_module(f"{__name__}.{engine.kernels}"))
