"""The passes for the CPU, compiled by numba: chunks that stay in the first-level cache, as `zo.noise.cpu`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload
from torch import Tensor

from zo.noise import KeyedTerms, NoiseKey, philox
from zo.noise.cpu.compiled import F, U, compiler
from zo.noise.cpu.draws import CHUNK, draw, draw_normals, scratch, scratch_words
from zo.noise.cpu.engine import in_parts, key_words
from zo.noise.cpu.formats import load, nearest
from zo.noise.cpu.passes import write
from zo.noise.engines import flat_array
from zo.optim.kernels import AdamScalars, HiZOOScalars, rules
from zo.optim.kernels.reference import complements
from zo.weights.updates import UpdateTarget

compiled = compiler(rules.__file__)


@overload(rules.rounded)
def _of_rounded(x: Any, like: Any) -> Any:
    return _rounded


def _rounded(x: Any, like: Any) -> Any:
    return load(nearest(x, like))


_rule = njit(nogil=True, error_model="numpy")
next_hessian, next_hessian_float32 = _rule(rules.next_hessian), _rule(rules.next_hessian_float32)
first_moment, second_moment = _rule(rules.first_moment), _rule(rules.second_moment)
adam_step = _rule(rules.adam_step)


@compiled
def _hizoo(
    p: Any, h: Any, at: Any, key: Any, pending: Any, gain: Any, scalars: Any, rounding: Any
) -> None:
    step, s, kept, difference, divisor, keep = scalars
    drawn, sums, words = scratch(), scratch(), scratch_words()
    for i in range(0, len(p), CHUNK):
        x, a, block = p[i : i + CHUNK], h[i : i + CHUNK], (at + i) // 4
        z, total = drawn[: len(x)], sums[: len(x)]
        draw_normals(drawn, words, block, (len(x) + 3) // 4, key)
        for k in range(len(x)):
            total[k], b = load(x[k]), load(a[k])
            if pending is not None:
                total[k] = load(nearest(total[k] + pending * (z[k] / np.sqrt(b)), p[0]))
            if gain is None:
                b = next_hessian(b, z[k], h[0], difference, s, kept, divisor)
            else:
                b = next_hessian_float32(b, z[k], gain, s)
            a[k] = nearest(b, h[0])
            total[k] = keep * total[k] + step * (z[k] / np.sqrt(b))
        write(x, total, 0, block, rounding)


@compiled
def _adam(
    p: Any,
    m: Any,
    v: Any,
    at: Any,
    keys: Any,
    gradient: Any,
    pending: Any,
    scalars: Any,
    rounding: Any,
    signs: Any,
) -> None:
    beta1, beta2, complement1, complement2, root1, root2, eps, step, keep = scalars
    drawn, slopes, sums, words = scratch(), scratch(), scratch(), scratch_words()
    for i in range(0, len(p), CHUNK):
        x, a, b = p[i : i + CHUNK], m[i : i + CHUNK], v[i : i + CHUNK]
        z, g, total = drawn[: len(x)], slopes[: len(x)], sums[: len(x)]
        g[:] = F(0.0)
        for j in range(len(keys)):
            c = gradient[j]
            draw(drawn, words, at + i, len(x), keys[j], signs)
            for k in range(len(x)):
                g[k] += c * z[k]
        for k in range(len(x)):
            total[k] = load(x[k])
            if pending is not None:
                total[k] = load(nearest(total[k] + pending * z[k], p[0]))
            m_k = first_moment(load(a[k]), g[k], m[0], beta1, complement1)
            v_k = second_moment(load(b[k]), g[k], v[0], beta2, complement2)
            a[k], b[k] = nearest(m_k, m[0]), nearest(v_k, v[0])
            total[k] = keep * total[k] + step * adam_step(m_k, v_k, m[0], root1, root2, eps)
        write(x, total, 0, (at + i) // 4, rounding)


def hizoo(at: UpdateTarget, h: Tensor, key: NoiseKey, scalars: HiZOOScalars) -> None:
    """See `zo.optim.kernels`."""
    p, h_, words = flat_array(at.p), flat_array(h), key_words(key, at.i)
    difference, s, divisor = scalars.difference, scalars.smooth, scalars.divisor
    gain = difference * s / divisor if scalars.in_float32 else None
    numbers = _float32((scalars.step, s, 1 - s, difference, divisor, 1.0 - at.decay))
    more = *_float32((scalars.pending, gain)), numbers, key_words(at.bits, at.i)
    in_parts(len(p), lambda a, b: _hizoo(p[a:b], h_[a:b], a, words, *more))


def adam(
    at: UpdateTarget,
    m: Tensor,
    v: Tensor,
    gradient: KeyedTerms,
    scalars: AdamScalars,
    signs: bool = False,
) -> None:
    """See `zo.optim.kernels`."""
    p, m_, v_ = (flat_array(t) for t in (at.p, m, v))
    keys = np.array([philox.counter(key, at.i) for _, key in gradient], U)
    coefficients = np.array([c for c, _ in gradient], F)
    pending, beta1, beta2, *others = scalars
    numbers = _float32((beta1, beta2, *complements(scalars, m), *others, 1.0 - at.decay))
    more = (
        keys,
        coefficients,
        *_float32([pending]),
        numbers,
        key_words(at.bits, at.i),
        signs or None,
    )
    in_parts(len(p), lambda a, b: _adam(p[a:b], m_[a:b], v_[a:b], a, *more))


def _float32(scalars: Sequence[float | None]) -> tuple[Any, ...]:
    return tuple(None if x is None else F(x) for x in scalars)
