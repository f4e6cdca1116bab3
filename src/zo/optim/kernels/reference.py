"""The passes by numpy, tensor by tensor: the fallback without numba, and the reference of tests."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from zo.noise import KeyedTerms, Move, NoiseKey, philox
from zo.noise.engines import flat_array
from zo.noise.reference import NumpyEngine
from zo.optim.kernels import AdamScalars, HiZOOScalars, rules
from zo.weights.updates import UpdateTarget

F = np.float32
ENGINE = NumpyEngine()


def hizoo(at: UpdateTarget, h: Tensor, key: NoiseKey, scalars: HiZOOScalars) -> None:
    """See `zo.optim.kernels`."""
    with np.errstate(all="ignore"):
        z, x, a = philox.normals(key, at.i, 0, at.p.numel()), _values(at.p), _values(h)
        if scalars.pending is not None:
            x = rules.rounded(x + F(scalars.pending) * (z / np.sqrt(a)), flat_array(at.p))
        difference, s, divisor = scalars.difference, scalars.smooth, scalars.divisor
        if scalars.in_float32:
            a = rules.next_hessian_float32(a, z, F(difference * s / divisor), F(s))
        else:
            a = rules.next_hessian(a, z, flat_array(h), F(difference), F(s), F(1 - s), F(divisor))
        h.view(-1).copy_(torch.from_numpy(a))
        _put(at, F(1.0 - at.decay) * x + F(scalars.step) * (z / np.sqrt(a)))


def adam(
    at: UpdateTarget,
    m: Tensor,
    v: Tensor,
    gradient: KeyedTerms,
    scalars: AdamScalars,
    signs: bool = False,
) -> None:
    """See `zo.optim.kernels`."""
    with np.errstate(all="ignore"):
        x, like = _values(at.p), flat_array(m)
        g: Any = np.zeros(at.p.numel(), F)
        for c, key in gradient:
            z = philox.values(key, at.i, 0, at.p.numel(), signs)
            g = g + F(c) * z
        if scalars.pending is not None:
            x = rules.rounded(x + F(scalars.pending) * z, flat_array(at.p))
        beta1, beta2, root1, root2, eps, step = map(F, scalars[1:])
        complement1, complement2 = complements(scalars, m)
        new_m = rules.first_moment(_values(m), g, like, beta1, complement1)
        new_v = rules.second_moment(_values(v), g, like, beta2, complement2)
        m.view(-1).copy_(torch.from_numpy(new_m))
        v.view(-1).copy_(torch.from_numpy(new_v))
        _put(
            at,
            F(1.0 - at.decay) * x + step * rules.adam_step(new_m, new_v, like, root1, root2, eps),
        )


def complements(scalars: AdamScalars, m: Tensor) -> tuple[Any, Any]:
    """Returns 1 − β₁, rounded to the moments' dtype, as torch rounds a factor of `add_`, and 1 − β₂."""
    complement1 = (
        torch.tensor(1 - scalars.beta1, dtype=torch.float64, device="cpu")
        .to(m.dtype)
        .float()
        .item()
    )
    return F(complement1), F(1 - scalars.beta2)


def _values(tensor: Tensor) -> Any:
    """Returns a tensor's values, float32."""
    return tensor.reshape(-1).float().numpy()


def _put(at: UpdateTarget, total: Any) -> None:
    """Rounds θ's new values into it."""
    flat, new = at.p.view(-1), torch.from_numpy(total)
    if at.bits is None:
        flat.copy_(new)
    else:
        ENGINE.add_(flat, new, Move(at.i, [], rounding=at.bits))
