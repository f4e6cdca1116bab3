"""What the kernels share: a tile's values are drawn in registers, read, rounded and written.

The arithmetic is that of `zo.noise.philox`, without fused multiply-adds. Coefficients and keys are in a small table in
the GPU's memory; addresses and sizes of tensors in another. A thread holds neighbouring values, and reads and writes
them together.
"""

import triton
import triton.language as tl

from zo.noise import philox

ROUNDS = tl.constexpr(philox.ROUNDS)
TERM = tl.constexpr(6)
"""Columns of the table of terms: seed, stream · 2²⁴, step, direction, bits of the coefficient, whether a key is new."""

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
def signed(x, sign):
    """Returns x with its sign changed where bit 31 of `sign` is set."""
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
    return signed(a, (w1 ^ (w1 << 1)) & 0x80000000), signed(b, w1 & 0x80000000)


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
def normals(first, term, tensor, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """The normals from position 4 · first on, as a tile, whose rows are those of signs if it is WIDE."""
    w0, w1, w2, w3 = _words(first + tl.arange(0, BLOCK), term, tensor)
    z0, z1 = _box_muller(w0, w1)
    z2, z3 = _box_muller(w2, w3)
    return _tile(z0, z1, z2, z3, WIDE)


@triton.jit
def sign_bits(first, term, tensor, BLOCK: tl.constexpr):
    """Signs as bit 31; the threads of a counter's 128 signs draw its words each, instead of exchanging them."""
    half = first // 4 + tl.arange(0, BLOCK // 4)
    w0, w1, w2, w3 = _words(half // 8, term, tensor)
    part = (half % 8).to(tl.int32)
    w = tl.where(part < 4, tl.where(part < 2, w0, w1), tl.where(part < 6, w2, w3))
    w = w >> ((part & 1) * 16).to(tl.uint32)
    return (w[:, None] << (31 - tl.arange(0, 16))[None, :].to(tl.uint32)) & 0x80000000


@triton.jit
def signs(first, term, tensor, BLOCK: tl.constexpr):
    """The signs from position 4 · first on, as a wide tile; `first` is a multiple of 4."""
    return (sign_bits(first, term, tensor, BLOCK) | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def draw_values(first, term, tensor, SIGNS: tl.constexpr, BLOCK: tl.constexpr):
    """`signs`, or `normals`."""
    if SIGNS:
        z = signs(first, term, tensor, BLOCK)
    else:  # one return alone, since their shapes differ
        z = normals(first, term, tensor, False, BLOCK)
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
def as_float(bits):
    """The float32 whose bits are in the low half of an integer."""
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def coefficient(term):
    """The coefficient in the table's row `term`."""
    return as_float(tl.load(term + 4))


@triton.jit
def rounded(x, at):
    """Returns x rounded to nearest to what `at` points to, and back."""
    if INTERPRETED and at.dtype.element_ty == tl.bfloat16:  # whose own cast cuts off
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    return x.to(at.dtype.element_ty).to(tl.float32)


@triton.jit
def aligned(at):
    """Whether 16 bytes at a pointer can be read at once."""
    return at.to(tl.int64) % 16 == 0


@triton.jit
def _whole(at):
    """A pointer that is known to be aligned; another one than `at`, of which that is not known elsewhere."""
    return tl.multiple_of(at.to(tl.int64).to(at.dtype), 16)


@triton.jit
def read(at, i, begin, width, even, other):
    """The values at a pointer, where `even` says that it is aligned and all of them are there."""
    if even:
        x = tl.load(_whole(at) + i)
    else:
        x = tl.load(at + i, mask=(i >= -begin) & (i < width - begin), other=other)
    return x.to(tl.float32)


@triton.jit
def _stored(x, at, first, term, tensor, WIDE: tl.constexpr, AT_RANDOM: tl.constexpr):
    """A tile in the dtype of a pointer: see `write`."""
    dtype: tl.constexpr = at.dtype.element_ty
    if AT_RANDOM:
        n: tl.constexpr = x.shape[0] * x.shape[1] // 4
        w0, w1, w2, w3 = _words(first + tl.arange(0, n), term, tensor)
        w = _tile(w0, w1, w2, w3, WIDE)
        x = _random_bfloat16(x, w) if dtype == tl.bfloat16 else _random_float16(x, w)
    elif INTERPRETED and dtype == tl.bfloat16:
        bits = rounded(x, at).to(tl.uint32, bitcast=True) >> 16
        x = bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        x = x.to(dtype)
    return x


@triton.jit
def write(
    at, x, i, begin, width, even, first, term, tensor, WIDE: tl.constexpr, AT_RANDOM: tl.constexpr
):
    """Rounds a tile and writes; stochastically by the words of the key in the table's row `term`. See `read`."""
    if even:
        tl.store(_whole(at) + i, _stored(x, at, first, term, tensor, WIDE, AT_RANDOM))
    else:
        some = _stored(x, at, first, term, tensor, WIDE, AT_RANDOM)
        tl.store(at + i, some, mask=(i >= -begin) & (i < width - begin))


@triton.jit
def place_of(places, PLACE: tl.constexpr, LEVELS: tl.constexpr):
    """The row of the tensor that a program works on, and which part of it.

    A row, PLACE numbers, begins with the tensor's first program. There are 2**LEVELS; those behind the last tensor
    begin nowhere.
    """
    program = tl.program_id(0)
    found = 0
    for level in tl.static_range(LEVELS):  # the last tensor that does not begin after the program
        on = found + (1 << (LEVELS - 1 - level))
        found = tl.where(tl.load(places + PLACE * on).to(tl.int32) <= program, on, found)
    place = places + PLACE * found
    return place, (program - tl.load(place).to(tl.int32)).to(tl.int64)
