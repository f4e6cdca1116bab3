"""The passes for a CUDA GPU: Triton kernels that do what `rules.py` says, in registers, with no fused multiply-add."""

from typing import Any

import numpy as np
import triton
import triton.language as tl
from torch import Tensor
from torch.cuda import device_of

from zo.noise import KeyedTerms, NoiseKey
from zo.noise.cuda import BLOCK, TERM, draw_normals, draw_values, store_rounded, term_table
from zo.optim.kernels import AdamScalars, HiZOOScalars
from zo.optim.kernels.reference import complements
from zo.weights.updates import UpdateTarget


@triton.jit
def _rounded(x, like):
    """Returns x rounded to what `like` points to, and back."""
    if (
        like.dtype.element_ty == tl.bfloat16
    ):  # by its bits, since the interpreter's own cast cuts off
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    return x.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def _positions(count, BLOCK: tl.constexpr):
    """Returns the counters of a program, (BLOCK,), their positions, (4 · BLOCK,), and which of these there are."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    position = 4 * first + tl.arange(0, 4 * BLOCK)
    return first + tl.arange(0, BLOCK), position, position < count


@triton.jit
def _put(to, total, inside, counter, term, tensor, AT_RANDOM: tl.constexpr):
    """Writes θ: rounded to nearest, or by the words of the key in the table's row `term`."""
    if not AT_RANDOM:
        total = _rounded(total, to)
    store_rounded(to, total, inside, counter, term, tensor, AT_RANDOM)


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
    counter, at, inside = _positions(count, BLOCK)
    z = draw_normals(counter, table, tensor)
    x = tl.load(p + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(h + at, mask=inside, other=1.0).to(tl.float32)
    if PENDING:
        x = _rounded(x + pending * tl.div_rn(z, tl.sqrt_rn(b)), p)
    if IN_FLOAT32:
        b = b + b * (z * z * gain - smooth)
    else:
        r = _rounded(z, h)
        new = _rounded(_rounded(b * r, h) * r, h)
        new = _rounded(_rounded(new * difference, h) * smooth, h)
        new = _rounded(tl.div_rn(new, divisor + tl.zeros_like(new)), h)
        b = _rounded(_rounded(b * kept, h) + new, h)
    tl.store(h + at, b.to(h.dtype.element_ty), mask=inside)
    total = keep * x + step * tl.div_rn(z, tl.sqrt_rn(b))
    _put(p + at, total, inside, counter, table + TERM, tensor, AT_RANDOM)


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
    counter, at, inside = _positions(count, BLOCK)
    x = tl.load(p + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.zeros_like(x)
    z = g
    for j in range(directions):
        z = draw_values(
            tl.program_id(0).to(tl.int64) * BLOCK, table + TERM * j, tensor, SIGNS, BLOCK
        )
        c = tl.load(table + TERM * j + 4).to(tl.int32).to(tl.float32, bitcast=True)
        g = g + c * z
    if PENDING:
        x = _rounded(x + pending * z, p)
    g = _rounded(g, m)
    a = tl.load(m + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(v + at, mask=inside, other=1.0).to(tl.float32)
    a = _rounded(_rounded(a * beta1, m) + complement1 * g, m)
    b = _rounded(_rounded(b * beta2, m) + complement2 * g * g, m)
    tl.store(m + at, a.to(m.dtype.element_ty), mask=inside)
    tl.store(v + at, b.to(v.dtype.element_ty), mask=inside)
    one = tl.full(x.shape, 1.0, tl.float32)
    below = _rounded(tl.div_rn(_rounded(tl.sqrt_rn(b), m), root2 * one), m)
    below = _rounded(below + eps, m)
    way = _rounded(tl.div_rn(_rounded(tl.div_rn(a, root1 * one), m), below), m)
    _put(
        p + at, keep * x + step * way, inside, counter, table + TERM * directions, tensor, AT_RANDOM
    )


def hizoo(at: UpdateTarget, h: Tensor, key: NoiseKey, scalars: HiZOOScalars) -> None:
    """See `zo.optim.kernels`."""
    difference, s, divisor = scalars.difference, scalars.smooth, scalars.divisor
    gain = difference * s / divisor if scalars.in_float32 else 0.0
    numbers = (
        scalars.pending or 0.0,
        scalars.step,
        gain,
        s,
        1 - s,
        difference,
        divisor,
        1.0 - at.decay,
    )
    _launch(
        *(_hizoo, at, (at.p, h), ((1.0, key),), (), numbers),
        PENDING=scalars.pending is not None,
        IN_FLOAT32=scalars.in_float32,
    )


def adam(
    at: UpdateTarget,
    m: Tensor,
    v: Tensor,
    gradient: KeyedTerms,
    scalars: AdamScalars,
    signs: bool = False,
) -> None:
    """See `zo.optim.kernels`."""
    pending, beta1, beta2, *others = scalars
    numbers = (pending or 0.0, beta1, beta2, *complements(scalars, m), *others, 1.0 - at.decay)
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
