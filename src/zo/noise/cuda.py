"""Philox noise on a CUDA GPU: one Triton kernel that reads, draws in registers, adds, rounds and writes.

The arithmetic is that of `zo.noise.philox`, without fused multiply-adds. Coefficients and keys are in a small table in
the GPU's memory, which the tensors of a pass share; addresses and sizes in another. All tensors of a dtype share a
launch, which costs as much as 10⁷ values. A thread holds neighbouring values, and reads and writes them together.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from zo.noise import compiling, philox
from zo.noise.engines import DTYPES, Move, PhiloxEngine
from zo.noise.keys import NoiseKey

BLOCK = 1024
"""Blocks of four values per program."""

ONE_BITS = int(np.float32(1).view(np.int32))
ROUNDS = tl.constexpr(philox.ROUNDS)
TERM, PLACE = tl.constexpr(6), tl.constexpr(6)
LN2_HIGH, LN2_LOW = tl.constexpr(float(philox.LN2_HIGH)), tl.constexpr(float(philox.LN2_LOW))
ROOT_HALF = tl.constexpr(philox.ROOT_HALF_BITS)
QUARTER_TURN = tl.constexpr(float(philox.QUARTER_TURN))
L0, L1, L2, L3, L4, L5, L6, L7, L8 = (tl.constexpr(float(c)) for c in philox.LOG)
S0, S1, S2 = (tl.constexpr(float(c)) for c in philox.SIN)
C0, C1, C2 = (tl.constexpr(float(c)) for c in philox.COS)
INFINITY = tl.constexpr(0x7F800000)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
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
def _tile(x0, x1, x2, x3, SIGNS: tl.constexpr):
    """Four values of every counter, (BLOCK,) each, as a tile in the order of their positions."""
    n: tl.constexpr = x0.shape[0]
    x = tl.join(tl.join(x0, x2), tl.join(x1, x3))
    return tl.reshape(x, (n // 4, 16) if SIGNS else (n, 4))


@triton.jit
def tile_offsets(SIGNS: tl.constexpr, BLOCK: tl.constexpr):
    """The offsets of a program's values: a row of its tile is a thread's neighbouring values."""
    WIDE: tl.constexpr = 16 if SIGNS else 4
    return tl.arange(0, 4 * BLOCK // WIDE)[:, None] * WIDE + tl.arange(0, WIDE)[None, :]


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
def _normals(first, term, tensor, BLOCK: tl.constexpr):
    w0, w1, w2, w3 = _words(first + tl.arange(0, BLOCK), term, tensor)
    z0, z1 = _box_muller(w0, w1)
    z2, z3 = _box_muller(w2, w3)
    return _tile(z0, z1, z2, z3, False)


@triton.jit
def _sign_bits(first, term, tensor, BLOCK: tl.constexpr):
    """Signs as bit 31; the threads of a counter's 128 signs draw its words each, instead of exchanging them."""
    half = first // 4 + tl.arange(0, BLOCK // 4)
    w0, w1, w2, w3 = _words(half // 8, term, tensor)
    part = (half % 8).to(tl.int32)
    w = tl.where(part < 4, tl.where(part < 2, w0, w1), tl.where(part < 6, w2, w3))
    w = w >> ((part & 1) * 16).to(tl.uint32)
    return (w[:, None] << (31 - tl.arange(0, 16))[None, :].to(tl.uint32)) & 0x80000000


@triton.jit
def draw_values(first, term, tensor, SIGNS: tl.constexpr, BLOCK: tl.constexpr):
    """The normals, or the signs, from position 4 · first on, as a tile; of signs, `first` is a multiple of 4."""
    if SIGNS:
        bits = _sign_bits(first, term, tensor, BLOCK) | 0x3F800000
        z = bits.to(tl.float32, bitcast=True)
    else:  # one return alone, since their shapes differ
        z = _normals(first, term, tensor, BLOCK)
    return z


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
def rounded(x, like):
    """Returns x rounded to nearest to what `like` points to, and back."""
    if INTERPRETED and like.dtype.element_ty == tl.bfloat16:  # whose own cast cuts off
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    return x.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def coefficient(term):
    """The coefficient in the table's row `term`."""
    return tl.load(term + 4).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _drawn(first, term, tensor, root, SIGNS: tl.constexpr, BLOCK: tl.constexpr):
    z = draw_values(first, term, tensor, SIGNS, BLOCK)
    if root is not None:
        z = tl.div_rn(z, root)
    return z


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
    ONE: tl.constexpr,
    PENDING: tl.constexpr,
    KEEPS: tl.constexpr,
    SIGNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Keep · total + Σ c_j z_j / root, without a root undivided; see `_pass`."""
    if KEEPS and not PENDING:
        total = keep * total
    if ONE and SIGNS and root is None:  # c z without a product
        total += _signed(coefficient(table), _sign_bits(first, table, tensor, BLOCK))
    elif ONE:
        total += coefficient(table) * _drawn(first, table, tensor, root, SIGNS, BLOCK)
    else:
        z = total
        for j in range(count):
            if PENDING and j == pending:
                total = keep * rounded(total, out)
            term = table + TERM * j
            if tl.load(term + 5) != 0:
                z = _drawn(first, term, tensor, root, SIGNS, BLOCK)
            total += coefficient(term) * z
    if PENDING and count == pending:
        total = keep * rounded(total, out)
    return total


@triton.jit
def store_rounded(
    to, total, inside, first, term, tensor, SIGNS: tl.constexpr, AT_RANDOM: tl.constexpr
):
    """Rounds a tile and writes; stochastically by the words of the key in the table's row `term`."""
    dtype: tl.constexpr = to.dtype.element_ty
    if AT_RANDOM:
        n: tl.constexpr = total.shape[0] * total.shape[1] // 4
        w0, w1, w2, w3 = _words(first + tl.arange(0, n), term, tensor)
        w = _tile(w0, w1, w2, w3, SIGNS)
        x = _random_bfloat16(total, w) if dtype == tl.bfloat16 else _random_float16(total, w)
    elif INTERPRETED and dtype == tl.bfloat16:
        bits = rounded(total, to).to(tl.uint32, bitcast=True) >> 16
        x = bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        x = total.to(dtype)
    tl.store(to, x, mask=inside)


@triton.jit
def _aligned(address):
    return address % 16 == 0


@triton.jit
def _read(address, like, i, begin, width, even, other):
    """The values at `address`, where `even` says that it is aligned and all of them are there."""
    if even:
        x = tl.load(tl.multiple_of(address.to(like.dtype), 16) + i)
    else:
        inside = (i >= -begin) & (i < width - begin)
        x = tl.load(address.to(like.dtype) + i, mask=inside, other=other)
    return x.to(tl.float32)


@triton.jit
def _address(base, offset):
    """The address of a pointer's value `offset`."""
    return (base + offset).to(tl.int64)


@triton.jit(
    do_not_specialize=[
        *("out", "theta", "scale", "count", "pending", "tensor", "start", "width"),
        "parts",
    ]
)
def _pass(
    out,
    theta,
    scale,
    rows,
    limit,
    places,
    table,
    count,
    pending,
    tensor,
    start,
    width,
    parts,
    keep,
    STEPS: tl.constexpr,
    ONE: tl.constexpr,
    PENDING: tl.constexpr,
    KEEPS: tl.constexpr,
    AT_RANDOM: tl.constexpr,
    SIGNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes keep · theta + Σ c_j z_j; without theta, the first z alone.

    The first `pending` terms are added to theta before that, and their sum is rounded to nearest. A key that comes
    twice in a row is drawn once. The switches say what there is: ONE term, PENDING terms, a keep other than 1.

    With `places`, out and theta only say their dtypes. Its rows: the tensor's first program, the addresses of its
    result and of theta, its number of values, its position in the space, and the bits of keep. 2**STEPS rows; those
    behind the last tensor begin nowhere.

    Without, program n makes part n mod parts of row n // parts: positions at to at + width. Rows, if any, are those of
    all that theta and scale hold; without, theta, scale and out are one row, which begins at position `start`. With a
    limit, values beyond it get no z.
    """
    program = tl.program_id(0)
    at, row = tl.cast(0, tl.int64), 0
    if places is not None:
        found = 0
        for step in tl.static_range(STEPS):  # the last tensor that does not begin after the program
            on = found + (1 << (STEPS - 1 - step))
            found = tl.where(tl.load(places + PLACE * on).to(tl.int32) <= program, on, found)
        place = places + PLACE * found
        part = (program - tl.load(place).to(tl.int32)).to(tl.int64)
        to, of = tl.load(place + 1), tl.load(place + 2)
        width, tensor = tl.load(place + 3), tl.load(place + 4)
        keep = tl.load(place + 5).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        part = (program % parts).to(tl.int64)
        row = (program // parts).to(tl.int64)
        at = tl.cast(start, tl.int64) if rows is None else tl.load(rows + row) * width
    first = (at // 16 * 4 if SIGNS else at // 4) + part * BLOCK
    begin = (
        4 * first - at
    )  # of the program's values in their row; negative where the row begins later
    even = (begin >= 0) & (begin + 4 * BLOCK <= width)
    inner = begin if rows is None else 4 * first
    if places is None:
        to = _address(out, row * width + begin)
    else:
        to += begin * (out.dtype.element_ty.primitive_bitwidth // 8)
    even = even & _aligned(to)
    i = tile_offsets(SIGNS, BLOCK)
    if theta is None:
        total = draw_values(first, table, tensor, SIGNS, BLOCK)
    else:
        if places is None:
            of = _address(theta, inner)
        else:
            of += begin * (theta.dtype.element_ty.primitive_bitwidth // 8)
        even = even & _aligned(of)
        root = None
        if scale is not None:
            by = _address(scale, inner)
            even = even & _aligned(by)
            root = tl.sqrt_rn(_read(by, scale, i, begin, width, even, 1.0))
        before = _read(of, theta, i, begin, width, even, 0.0)
        total = _added(
            before,
            root,
            first,
            table,
            count,
            pending,
            tensor,
            keep,
            out,
            ONE,
            PENDING,
            KEEPS,
            SIGNS,
            BLOCK,
        )
        if limit is not None:
            small = tl.abs(before) <= tl.load(limit).to(tl.float32)
            total = tl.where(small, total, keep * before)
    term = table + TERM * count
    if even:
        to_all = tl.multiple_of(to.to(out.dtype), 16) + i
        store_rounded(to_all, total, None, first, term, tensor, SIGNS, AT_RANDOM)
    else:
        inside = (i >= -begin) & (i < width - begin)
        store_rounded(to.to(out.dtype) + i, total, inside, first, term, tensor, SIGNS, AT_RANDOM)


class TritonEngine(PhiloxEngine):
    """Philox noise on a CUDA GPU, or through Triton's interpreter."""

    backend = "philox-cuda"
    kernels = "cuda"

    def _run(self, out: Tensor, theta: Tensor | None, move: Move) -> None:
        _run_alone(out, theta, move)

    def add_to_all_(
        self,
        out: Sequence[Tensor],
        thetas: Sequence[Tensor],
        move: Move,
        keeps: Sequence[float] | None = None,
    ) -> None:
        """As `PhiloxEngine.add_to_all_`, the tensors of a device and a dtype in one launch."""
        together: dict[Any, tuple[Tensor, list[tuple[int, ...]]]] = {}
        for i, (to, theta) in enumerate(zip(out, thetas, strict=True)):
            keep = move.keep if keeps is None else keeps[i]
            if _shares(to, theta, move.rounding):
                bits = int(np.float32(keep).view(np.int32))
                row = (to.data_ptr(), theta.data_ptr(), theta.numel(), i, bits)
                together.setdefault((to.device, to.dtype), (to, []))[1].append(row)
            else:
                self.add_(to, theta, move._replace(tensor=i, keep=keep))
        for like, rows in together.values():
            places, programs = _place_table(tuple(rows), like.device)
            keeps_of = any(row[4] != ONE_BITS for row in rows)
            shared = move._replace(tensor=rows[-1][3])
            _launch(like, like, shared, programs, places, len(rows), keeps_of)
        increment_version(out)


def _shares(out: Tensor, theta: Tensor, rounding: NoiseKey | None) -> bool:
    """Returns whether a tensor can share a launch with others; else `add_` updates it, or refuses it."""
    fits = out.shape == theta.shape and out.dtype == theta.dtype and theta.dtype in DTYPES
    plain = rounding is None or theta.dtype != torch.float32
    whole = out.is_contiguous() and theta.is_contiguous()
    return fits and plain and whole and 0 < theta.numel() <= philox.POSITIONS


@lru_cache(maxsize=64)
def _place_table(rows: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[Tensor, int]:
    """Returns the tensors' rows on the device, each behind its first program, and the number of programs.

    Addresses are the key: a tensor whose memory has moved gets another table.
    """
    table = np.zeros((2 ** len(rows).bit_length(), 6), np.int64)
    table[: len(rows), 1:] = rows
    ends = np.cumsum(-(-table[:, 3] // (4 * BLOCK)))
    table[1:, 0], table[len(rows) :, 0] = ends[:-1], 2**31 - 1
    return _on(device, table), int(ends[-1])


def _run_alone(out: Tensor, theta: Tensor | None, move: Move) -> None:
    """Runs the kernel over `out`, on its device; without theta, it draws."""
    width = out.numel() if move.rows is None else out.shape[1]
    # A row may begin within a block of four normals, or of 16 signs.
    parts = triton.cdiv(width + (15 if move.signs else 3), 4 * BLOCK)
    programs = parts * (1 if move.rows is None else len(move.rows))
    _launch(out, theta, move, programs, None, 1, move.keep != 1, width, parts)


def _launch(
    out: Tensor,
    theta: Tensor | None,
    move: Move,
    programs: int,
    places: Tensor | None,
    tensors: int,
    keeps: bool,
    width: int = 0,
    parts: int = 0,
) -> None:
    """Runs the kernel over the tensors of `places`, or over `out` alone."""
    terms, table = (*move.pending, *move.terms), _table_of(move, out)
    numbers = len(terms), len(move.pending), move.tensor, move.start, width, parts
    with compiling.launching(), torch.cuda.device_of(out):
        _pass[(programs,)](
            *(out, theta, move.scale, move.rows, move.limit, places, table, *numbers, move.keep),
            STEPS=tensors.bit_length(),
            ONE=len(terms) == 1,
            PENDING=len(move.pending) > 0,
            KEEPS=keeps,
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
