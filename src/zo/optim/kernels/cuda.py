"""The passes for a CUDA GPU: Triton kernels with the arithmetic of a CPU's programs, in registers."""

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.cuda import device_of

from zo.noise import KeyedTerms, NoiseKey
from zo.noise.cuda import (
    TERM,
    coefficient,
    draw_values,
    rounded,
    store_rounded,
    term_table,
    tile_offsets,
)
from zo.optim.kernels import AdamScalars, HiZOOScalars
from zo.weights.updates import UpdateTarget

BLOCK = 512
"""Blocks of four values per program: fewer than a noise pass has, since state takes registers, too."""


@triton.jit
def _positions(count, SIGNS: tl.constexpr, BLOCK: tl.constexpr):
    """Returns a program's first counter, the positions of its values as a tile, and which of these there are."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    position = 4 * first + tile_offsets(SIGNS, BLOCK)
    return first, position, position < count


@triton.jit(do_not_specialize=["tensor", "count"])
def _hizoo(
    p,
    h,
    table,
    count,
    tensor,
    pending,
    step,
    gain,
    smooth,
    kept,
    difference,
    divisor,
    keep,
    PENDING: tl.constexpr,
    IN_FLOAT32: tl.constexpr,
    AT_RANDOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first, at, inside = _positions(count, False, BLOCK)
    z = draw_values(first, table, tensor, False, BLOCK)
    x = tl.load(p + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(h + at, mask=inside, other=1.0).to(tl.float32)
    if PENDING:
        x = rounded(x + pending * tl.div_rn(z, tl.sqrt_rn(b)), p)
    if IN_FLOAT32:
        b = b + b * (z * z * gain - smooth)
    else:
        r = rounded(z, h)
        new = rounded(rounded(b * r, h) * r, h)
        new = rounded(rounded(new * difference, h) * smooth, h)
        new = rounded(tl.div_rn(new, divisor + tl.zeros_like(new)), h)
        b = rounded(rounded(b * kept, h) + new, h)
    tl.store(h + at, b.to(h.dtype.element_ty), mask=inside)
    total = keep * x + step * tl.div_rn(z, tl.sqrt_rn(b))
    store_rounded(p + at, total, inside, first, table + TERM, tensor, False, AT_RANDOM)


@triton.jit(do_not_specialize=["tensor", "count", "directions"])
def _adam(
    p,
    m,
    v,
    table,
    count,
    directions,
    tensor,
    pending,
    beta1,
    beta2,
    complement1,
    complement2,
    root1,
    root2,
    eps,
    step,
    keep,
    PENDING: tl.constexpr,
    SIGNS: tl.constexpr,
    AT_RANDOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first, at, inside = _positions(count, SIGNS, BLOCK)
    x = tl.load(p + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.zeros_like(x)
    z = g
    for j in range(directions):
        z = draw_values(first, table + TERM * j, tensor, SIGNS, BLOCK)
        g = g + coefficient(table + TERM * j) * z
    if PENDING:
        x = rounded(x + pending * z, p)
    g = rounded(g, m)
    a = tl.load(m + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(v + at, mask=inside, other=1.0).to(tl.float32)
    a = rounded(rounded(a * beta1, m) + complement1 * g, m)
    b = rounded(rounded(b * beta2, m) + complement2 * g * g, m)
    tl.store(m + at, a.to(m.dtype.element_ty), mask=inside)
    tl.store(v + at, b.to(v.dtype.element_ty), mask=inside)
    one = tl.full(x.shape, 1.0, tl.float32)
    below = rounded(tl.div_rn(rounded(tl.sqrt_rn(b), m), root2 * one), m)
    below = rounded(below + eps, m)
    way = rounded(tl.div_rn(rounded(tl.div_rn(a, root1 * one), m), below), m)
    total = keep * x + step * way
    bits = table + TERM * directions
    store_rounded(p + at, total, inside, first, bits, tensor, SIGNS, AT_RANDOM)


def hizoo(
    at: UpdateTarget, h: Tensor, key: NoiseKey, pending: float | None, scalars: HiZOOScalars
) -> None:
    """See `zo.optim.kernels`; `pending` is the coefficient of z/√H, with the H that is read."""
    step, difference, s, divisor, in_float32 = scalars
    gain = difference * s / divisor if in_float32 else 0.0
    numbers = (pending or 0.0, step, gain, s, 1 - s, difference, divisor, 1.0 - at.decay)
    _launch(
        *(_hizoo, at, (at.p, h), ((1.0, key),), (), numbers),
        PENDING=pending is not None,
        IN_FLOAT32=in_float32,
    )


def adam(
    at: UpdateTarget,
    m: Tensor,
    v: Tensor,
    gradient: KeyedTerms,
    signs: bool,
    pending: float | None,
    scalars: AdamScalars,
) -> None:
    """See `zo.optim.kernels`; `pending` is the coefficient of the gradient's last direction."""
    beta1, beta2, *others = scalars
    # as torch rounds a factor of `add_`
    complement1 = float(torch.tensor(1 - beta1, dtype=torch.float64, device="cpu").to(m.dtype))
    betas = beta1, beta2, complement1, 1 - beta2
    numbers = (pending or 0.0, *betas, *others, 1.0 - at.decay)
    _launch(
        *(_adam, at, (at.p, m, v), tuple(gradient), (len(gradient),), numbers),
        PENDING=pending is not None,
        SIGNS=signs,
    )


def _launch(
    kernel: Any,
    at: UpdateTarget,
    tensors: tuple[Tensor, ...],
    terms: tuple[tuple[float, NoiseKey], ...],
    counts: tuple[int, ...],
    numbers: tuple[Any, ...],
    **switches: bool,
) -> None:
    """Runs a kernel over all of a tensor, on its device."""
    count, keys = at.p.numel(), terms if at.bits is None else (*terms, (0.0, at.bits))
    table = term_table(keys, at.p.device)
    with device_of(at.p):
        kernel[(triton.cdiv(count, 4 * BLOCK),)](
            *(*tensors, table, count, *counts, at.i, *(float(np.float32(x)) for x in numbers)),
            **switches,
            AT_RANDOM=at.bits is not None,
            BLOCK=BLOCK,
            enable_fp_fusion=False,
        )
    increment_version(tensors)
