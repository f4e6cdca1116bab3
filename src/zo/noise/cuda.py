"""Philox noise on a CUDA GPU: one Triton kernel that reads, draws in registers, adds, rounds and writes.

The arithmetic is that of `zo.noise.philox`, without fused multiply-adds. Coefficients and keys are in a small table in
the GPU's memory, which the tensors of a pass share. A launch costs as much as 10⁷ values: smaller tensors share one.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from zo.noise import compiling, philox
from zo.noise.engines import DTYPES, Move, PhiloxEngine
from zo.noise.keys import NoiseKey

BLOCK = 512
"""Blocks of four values per program."""

ALONE = 2**24
"""Values from which a tensor gets its own launch."""

ROUNDS = tl.constexpr(philox.ROUNDS)
TERM, PLACE = tl.constexpr(6), tl.constexpr(6)
LN2_HIGH, LN2_LOW = tl.constexpr(float(philox.LN2_HIGH)), tl.constexpr(float(philox.LN2_LOW))
ROOT_HALF = tl.constexpr(philox.ROOT_HALF_BITS)
QUARTER_TURN = tl.constexpr(float(philox.QUARTER_TURN))
L0, L1, L2, L3, L4, L5, L6, L7, L8 = (tl.constexpr(float(c)) for c in philox.LOG)
S0, S1, S2 = (tl.constexpr(float(c)) for c in philox.SIN)
C0, C1, C2 = (tl.constexpr(float(c)) for c in philox.COS)
INFINITY = tl.constexpr(0x7F800000)
HALF_NORMAL = tl.constexpr(0x38800000)
HALF_INFINITY = tl.constexpr(0x47800000)


@triton.jit
def _log_uniform(w):
    bits = (w.to(tl.float32) + 0.5).to(tl.int32, bitcast=True) - ROOT_HALF
    e = ((bits >> 23) - 32).to(tl.float32)
    x = ((bits & 0x7FFFFF) + ROOT_HALF).to(tl.float32, bitcast=True) - 1.0
    x2 = x * x
    p = ((((L0 * x + L1) * x + L2) * x + L3) * x + L4) * x + L5
    p = ((p * x + L6) * x + L7) * x + L8
    tail = p * x2 * x + e * LN2_LOW - 0.5 * x2
    return x + tail + e * LN2_HIGH


@triton.jit
def _signed(x, sign):
    return (x.to(tl.uint32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def _box_muller(w0, w1):
    r = tl.sqrt_rn(-2.0 * _log_uniform(w0))
    x = (w1 << 2).to(tl.int32, bitcast=True).to(tl.float32) * QUARTER_TURN
    x2 = x * x
    sin = ((S0 * x2 + S1) * x2 + S2) * x2 * x + x
    cos = ((C0 * x2 + C1) * x2 + C2) * x2 * x2 - 0.5 * x2 + 1.0
    odd = (w1 >> 30) & 1 == 1
    a = r * tl.where(odd, sin, cos)
    b = r * tl.where(odd, cos, sin)
    return _signed(a, (w1 ^ (w1 << 1)) & 0x80000000), _signed(b, w1 & 0x80000000)


@triton.jit
def _in_order(x0, x1, x2, x3):
    """Four values of every counter, (BLOCK,) each, as (4 · BLOCK,) in the order of their positions."""
    return tl.interleave(tl.interleave(x0, x2), tl.interleave(x1, x3))


@triton.jit
def _words(counter, term, tensor):
    """The words of counters, (BLOCK,), under the key in the table's row `term`."""
    seed, place = tl.load(term), tl.load(term + 1) + tensor
    step, direction = tl.load(term + 2), tl.load(term + 3)
    c0 = counter.to(tl.uint32)
    c1 = tl.full(c0.shape, 0, tl.uint32) + place.to(tl.uint32)
    c2 = tl.full(c0.shape, 0, tl.uint32) + step.to(tl.uint32)
    c3 = tl.full(c0.shape, 0, tl.uint32) + direction.to(tl.uint32)
    return tl.philox(seed, c0, c1, c2, c3, ROUNDS)


@triton.jit
def draw_normals(counter, term, tensor):
    """The normals of counters, (BLOCK,), under the key in the table's row `term`: (4 · BLOCK,)."""
    w0, w1, w2, w3 = _words(counter, term, tensor)
    z0, z1 = _box_muller(w0, w1)
    z2, z3 = _box_muller(w2, w3)
    return _in_order(z0, z1, z2, z3)


@triton.jit
def _signs(first, term, tensor, BLOCK: tl.constexpr):
    blocks = first // 32 + tl.arange(0, BLOCK // 32)
    w0, w1, w2, w3 = _words(blocks, term, tensor)
    words = tl.expand_dims(_in_order(w0, w1, w2, w3), 1)
    bits = (words >> tl.expand_dims(tl.arange(0, 32), 0)) & 1
    return tl.reshape(1.0 - 2.0 * bits.to(tl.float32), (4 * BLOCK,))


@triton.jit
def draw_values(first, term, tensor, SIGNS: tl.constexpr, BLOCK: tl.constexpr):
    """The normals, or the signs, from position 4 · first on, (4 · BLOCK,); of signs, `first` is a multiple of 32."""
    if SIGNS:
        return _signs(first, term, tensor, BLOCK)
    return draw_normals(first + tl.arange(0, BLOCK), term, tensor)


@triton.jit
def _random_bfloat16(x, w):
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    up = tl.where(magnitude == INFINITY, bits, bits + (w >> 16)) >> 16
    up = tl.where(magnitude > INFINITY, 0x7FC0, up)
    return up.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _random_float16(x, w):
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    tiny = magnitude < HALF_NORMAL
    normal = tl.minimum((magnitude + (w >> 19) - (112 << 23)) >> 13, 0x7C00)
    small = tl.where(tiny, magnitude, 0).to(tl.float32, bitcast=True) * 16777216.0
    below = small.to(tl.int32)
    above = (w >> 8).to(tl.float32) * (1.0 / 16777216.0) < small - below.to(tl.float32)
    out = tl.where(tiny, (below + above.to(tl.int32)).to(tl.uint32), normal)
    out = tl.where(magnitude >= HALF_INFINITY, 0x7C00, out) | ((bits >> 16) & 0x8000)
    out = tl.where(magnitude > INFINITY, 0x7E00, out)
    return out.to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def _added(
    total,
    root,
    first,
    table,
    count,
    pending,
    tensor,
    keep,
    out,
    SIGNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Keep · total + Σ c_j z_j / root, without a root undivided; see `_pass`."""
    z = total
    if pending == 0:
        total = keep * total
    for j in range(count):
        if j == pending and pending > 0:
            total = keep * total.to(out.dtype.element_ty).to(tl.float32)
        if tl.load(table + TERM * j + 5) != 0:
            z = draw_values(first, table + TERM * j, tensor, SIGNS, BLOCK)
            if root is not None:
                z = tl.div_rn(z, root)
        c = tl.load(table + TERM * j + 4).to(tl.int32).to(tl.float32, bitcast=True)
        total = total + c * z
    if count == pending and pending > 0:
        total = keep * total.to(out.dtype.element_ty).to(tl.float32)
    return total


@triton.jit
def store_rounded(to, total, inside, counter, term, tensor, AT_RANDOM: tl.constexpr):
    """Rounds and writes; stochastically by the words of the key in the table's row `term`."""
    if AT_RANDOM:
        w0, w1, w2, w3 = _words(counter, term, tensor)
        w = _in_order(w0, w1, w2, w3)
        if to.dtype.element_ty == tl.bfloat16:
            tl.store(to, _random_bfloat16(total, w), mask=inside)
        else:
            tl.store(to, _random_float16(total, w), mask=inside)
    else:
        tl.store(to, total.to(to.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tensor", "count", "pending", "parts"])
def _pass(
    out,
    theta,
    scale,
    rows,
    table,
    count,
    pending,
    tensor,
    start,
    width,
    parts,
    keep,
    limit,
    AT_RANDOM: tl.constexpr,
    SIGNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes keep · theta + Σ c_j z_j / √scale; without theta, the first z alone.

    The first `pending` terms are added to theta before that, and their sum is rounded to nearest. A key that comes
    twice in a row is drawn once.

    Program n makes part n mod parts of row n // parts: positions at to at + width. Rows, if any, are those of all that
    theta and scale hold; without, theta, scale and out are one row, which begins at position `start`. With a limit,
    values beyond it get no z.
    """
    row = tl.program_id(0) // parts
    at = tl.cast(start, tl.int64) if rows is None else tl.load(rows + row) * width
    first = (at // 128 * 32 if SIGNS else at // 4) + (tl.program_id(0) % parts) * BLOCK
    counter = first + tl.arange(0, BLOCK)
    position = 4 * first + tl.arange(0, 4 * BLOCK)
    inside = (position >= at) & (position < at + width)
    of = position - at if rows is None else position
    if theta is None:
        total = draw_values(first, table, tensor, SIGNS, BLOCK)
    else:
        total = tl.load(theta + of, mask=inside, other=0.0).to(tl.float32)
        before = total
        root = None
        if scale is not None:
            root = tl.sqrt_rn(tl.load(scale + of, mask=inside, other=1.0).to(tl.float32))
        total = _added(total, root, first, table, count, pending, tensor, keep, out, SIGNS, BLOCK)
        if limit is not None:
            small = tl.abs(before) <= tl.load(limit).to(tl.float32)
            total = tl.where(small, total, keep * before)
    to = out + row.to(tl.int64) * width + (position - at)
    store_rounded(to, total, inside, counter, table + TERM * count, tensor, AT_RANDOM)


@triton.jit(do_not_specialize=["tensors", "count", "pending"])
def _pass_of_many(
    like,
    places,
    table,
    tensors,
    count,
    pending,
    STEPS: tl.constexpr,
    AT_RANDOM: tl.constexpr,
    SIGNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes keep · theta + Σ c_j z_j for several tensors of like's dtype, as `_pass`.

    Rows of `places`: the tensor's first program, the addresses of its result and of theta, its number of values, its
    position in the space, and the bits of keep. Fewer than 2**STEPS tensors.
    """
    program, at = tl.program_id(0), 0
    for step in tl.static_range(
        STEPS
    ):  # finds the last tensor that does not begin after this program
        on = at + (1 << (STEPS - 1 - step))
        begin = tl.load(places + PLACE * on, mask=on < tensors, other=2**31)
        at = tl.where(begin <= program, on, at)
    place = places + PLACE * at
    out = tl.multiple_of(tl.load(place + 1).to(like.dtype), 16)
    theta = tl.multiple_of(tl.load(place + 2).to(like.dtype), 16)
    tensor = tl.load(place + 4)
    keep = tl.load(place + 5).to(tl.int32).to(tl.float32, bitcast=True)
    first = (program - tl.load(place)) * BLOCK
    counter = first + tl.arange(0, BLOCK)
    position = 4 * first + tl.arange(0, 4 * BLOCK)
    inside = position < tl.load(place + 3)
    total = tl.load(theta + position, mask=inside, other=0.0).to(tl.float32)
    total = _added(total, None, first, table, count, pending, tensor, keep, out, SIGNS, BLOCK)
    store_rounded(out + position, total, inside, counter, table + TERM * count, tensor, AT_RANDOM)


class TritonEngine(PhiloxEngine):
    """Philox noise on a CUDA GPU, or through Triton's interpreter."""

    backend = "philox-cuda"
    kernels = "cuda"

    def _run(self, out: Tensor, theta: Tensor | None, move: Move) -> None:
        _launch(out, theta, move)

    def add_to_all_(
        self,
        out: Sequence[Tensor],
        thetas: Sequence[Tensor],
        move: Move,
        keeps: Sequence[float] | None = None,
    ) -> None:
        """As `PhiloxEngine.add_to_all_`, the smaller tensors of a device and a dtype in one launch."""
        together: dict[Any, list[_Place]] = {}
        for i, (to, theta) in enumerate(zip(out, thetas, strict=True)):
            keep = move.keep if keeps is None else keeps[i]
            if _shares(to, theta, move.rounding):
                of = together.setdefault((to.device, to.dtype), [])
                of.append(_Place(to, theta, i, keep))
            else:
                self.add_(to, theta, move._replace(tensor=i, keep=keep))
        for places in together.values():
            _launch_many(places, move._replace(tensor=places[-1].i))


class _Place(NamedTuple):
    out: Tensor
    theta: Tensor
    i: int
    keep: float


def _shares(out: Tensor, theta: Tensor, rounding: NoiseKey | None) -> bool:
    """Returns whether a tensor can share a launch with others; else `add_` updates it, or refuses it."""
    fits = out.shape == theta.shape and out.dtype == theta.dtype and theta.dtype in DTYPES
    plain = rounding is None or theta.dtype != torch.float32
    lies = all(t.is_contiguous() and t.data_ptr() % 16 == 0 for t in (out, theta))
    return fits and plain and lies and 0 < theta.numel() < ALONE


def _launch_many(places: Sequence[_Place], move: Move) -> None:
    """Runs the kernel over tensors of one dtype and device; `move` is what they share."""
    terms, table, like = (*move.pending, *move.terms), _table_of(move, places[0].out), places[0].out
    sizes = np.array([place.theta.numel() for place in places])
    ends = np.cumsum(-(-sizes // (4 * BLOCK)))
    rows = np.empty((len(places), 6), np.int64)
    rows[0, 0], rows[1:, 0], rows[:, 3] = 0, ends[:-1], sizes
    for row, place in zip(rows, places, strict=True):
        row[1], row[2], row[4] = place.out.data_ptr(), place.theta.data_ptr(), place.i
    rows[:, 5] = np.array([place.keep for place in places], np.float32).view(np.int32)
    with compiling.launching(), torch.cuda.device_of(like):
        _pass_of_many[(int(ends[-1]),)](
            *(like, _on(like.device, rows), table, len(places), len(terms), len(move.pending)),
            STEPS=len(places).bit_length(),
            AT_RANDOM=move.rounding is not None,
            SIGNS=move.signs,
            BLOCK=BLOCK,
            enable_fp_fusion=False,
        )


def _launch(out: Tensor, theta: Tensor | None, move: Move) -> None:
    """Runs the kernel over `out`, on its device; without theta, it draws."""
    width = out.numel() if move.rows is None else out.shape[1]
    # A row may begin within a block of four normals, or of 128 signs.
    parts = triton.cdiv(width + (127 if move.signs else 3), 4 * BLOCK)
    terms, table = (*move.pending, *move.terms), _table_of(move, out)
    numbers = len(terms), len(move.pending), move.tensor, move.start, width, parts, move.keep
    with compiling.launching(), torch.cuda.device_of(out):
        _pass[(parts * (1 if move.rows is None else len(move.rows)),)](
            *(out, theta, move.scale, move.rows, table, *numbers, move.limit),
            AT_RANDOM=move.rounding is not None,
            SIGNS=move.signs,
            BLOCK=BLOCK,
            enable_fp_fusion=False,
        )


def _table_of(move: Move, like: Tensor) -> Tensor:
    """Returns the table of a move's terms, and of its rounding's key, on the device of `like`."""
    terms = (*move.pending, *move.terms)
    keys = terms if move.rounding is None else (*terms, (0.0, move.rounding))
    philox.counter(keys[0][1] if keys else NoiseKey(0, 0, 0, 0), move.tensor)
    return term_table(keys, like.device)


def _on(device: torch.device, rows: Any) -> Tensor:
    """Copies a small array to a device, on a GPU asynchronously."""
    found = torch.from_numpy(rows)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found


@lru_cache(maxsize=4)
def term_table(terms: tuple[tuple[float, NoiseKey], ...], device: torch.device) -> Tensor:
    """Returns (len(terms), 6), int64, on the device.

    Seed, stream · 2²⁴, step, direction, bits of the coefficient, and whether the key differs from the previous one.
    """
    lines: list[list[Any]] = []
    before: NoiseKey | None = None
    for c, key in terms:
        low, high, place, step, direction = philox.counter(key, 0)
        seed = int(np.array(high << 32 | low, np.uint64).view(np.int64))
        bits = int(np.float32(c).view(np.int32))
        lines.append([seed, place, step, direction, bits, int(key != before)])
        before = key
    return _on(device, np.array(lines, np.int64).reshape(-1, 6))
