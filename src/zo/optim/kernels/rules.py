"""Updates of one element of the state of HiZOO and Adam: float32 products, sums and roots, each rounded once.

Written for whole numpy arrays and, compiled, for numba's single numbers alike. `like` is an element, or an array, of
the dtype that state is kept in, by which `rounded` knows what to round to: float32, bfloat16 (as bits, uint16) or
float16 (as bits, int16).
"""

from typing import Any

import numpy as np
import torch


def rounded(x: Any, like: Any) -> Any:
    """Returns x, float32, rounded to like's dtype and back."""
    if like.dtype == np.float32:
        return x
    half = torch.bfloat16 if like.dtype == np.uint16 else torch.float16
    return torch.from_numpy(x).to(half).float().numpy()


def next_hessian(
    h: Any, z: Any, like: Any, difference: Any, smooth: Any, kept: Any, divisor: Any
) -> Any:
    """H ← (1 − s) H + |ℓ₊ + ℓ₋ − 2 ℓ₀| s H z² / 2ε², its products one after another in H's dtype."""
    z = rounded(z, like)
    new = rounded(rounded(h * z, like) * z, like)
    new = rounded(rounded(rounded(new * difference, like) * smooth, like) / divisor, like)
    return rounded(rounded(h * kept, like) + new, like)


def next_hessian_float32(h: Any, z: Any, gain: Any, smooth: Any) -> Any:
    """H ← H + H (gain z² − s), with gain = |ℓ₊ + ℓ₋ − 2 ℓ₀| s / 2ε²."""
    return h + h * (z * z * gain - smooth)


def first_moment(m: Any, g: Any, like: Any, beta: Any, complement: Any) -> Any:
    """M ← β₁ m + (1 − β₁) g."""
    return rounded(rounded(m * beta, like) + complement * rounded(g, like), like)


def second_moment(v: Any, g: Any, like: Any, beta: Any, complement: Any) -> Any:
    """V ← β₂ v + (1 − β₂) g²."""
    g = rounded(g, like)
    return rounded(rounded(v * beta, like) + complement * g * g, like)


def adam_step(m: Any, v: Any, like: Any, root1: Any, root2: Any, eps: Any) -> Any:
    """m̂ / (√v̂ + δ)."""
    denominator = rounded(rounded(rounded(np.sqrt(v), like) / root2, like) + eps, like)
    return rounded(rounded(m / root1, like) / denominator, like)
