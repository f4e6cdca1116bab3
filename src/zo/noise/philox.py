"""Counter-based noise: the readable definition that every Philox engine reproduces bit for bit.

Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") turns a key of two and a counter of
four 32-bit words into four words. Here

    key     = the seed's low and high word
    counter = (position // 4, stream · 2²⁴ + tensor, step, direction)

so that the value at flat position `position` of tensor `tensor` is word `position mod 4`, independent of other draws
and of their order. Words (w₀, w₁) and (w₂, w₃) make two normals each by Box-Muller:

    u = (w₀ + ½) / 2³²,   r = √(−2 ln u),   φ = π/2 · (the top two bits of w₁) + π/4 · (the other thirty, in [−1, 1))
    z₀ = r cos φ,   z₁ = r sin φ

The arithmetic is float32 products and sums, each rounded once (no fused multiply-add), so that it is the same
everywhere. The largest |z| is 6.8, since u ≥ 2⁻³³; logarithm, sine and cosine are Cephes' polynomials, good to about
one unit in the last place.

A sign takes one bit: that of position p is bit p mod 32 of the word at position p // 32, where 0 stands for +1 and 1
for −1. A block of four words is 128 signs.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zo.noise.keys import NoiseKey

Array: TypeAlias = NDArray[Any]

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
WORD, WORD_BITS = 0xFFFFFFFF, 32
TENSORS = 2**24
"""Tensors per stream."""

POSITIONS = 2**34
"""Values per tensor."""

_f = np.float32
HALF, MINUS_TWO = _f(0.5), _f(-2.0)
ROOT_HALF_BITS = 0x3F3504F3
"""Bits of √½: a number's significand is taken from [√½, √2)."""

LN2_HIGH, LN2_LOW = _f(0.693359375), _f(-2.12194440e-4)
LOG = tuple(
    map(
        _f,
        (
            *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1),
            *(1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1),
            3.3333331174e-1,
        ),
    )
)
"""ln(1 + x) = x − x²/2 + x³ · this polynomial of x, highest power first."""

QUARTER_TURN = _f(np.pi / 4 / 2**31)
SIN = tuple(map(_f, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)))
"""sin x = x + x³ · this polynomial of x²."""

COS = tuple(map(_f, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)))
"""cos x = 1 − x²/2 + x⁴ · this polynomial of x²."""


def counter(key: NoiseKey, tensor: int) -> tuple[int, int, int, int, int]:
    """Returns the words that all values of a tensor share: the key's two, then the counter's second to fourth.

    Raises:
        ValueError: If a part is out of range.
    """
    for name, value, bound in (
        ("tensor", tensor, TENSORS),
        ("stream", key.stream, 2**8),
        ("step", key.step, 2**32),
        ("direction", key.direction, 2**32),
    ):
        if not 0 <= value < bound:
            raise ValueError(f"{name}={value}: must be 0 to {bound - 1}")
    seed = key.seed & (2**64 - 1)
    return seed & WORD, seed >> 32, key.stream * TENSORS + tensor, key.step, key.direction


def philox(words: Array, key: tuple[int, int]) -> Array:
    """Returns Philox-4x32-10 of counters.

    Args:
        words: The counters, (n, 4), integers below 2³².
        key: Two words.

    Returns:
        (n, 4), uint32.
    """
    c0, c1, c2, c3 = np.ascontiguousarray(words.T, dtype=np.uint64)
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1 = (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & np.uint64(WORD)
        c2, c3 = (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & np.uint64(WORD)
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def words(key: NoiseKey, tensor: int, start: int, count: int) -> Array:
    """Returns the words of flat positions `start` to `start + count`, (count,), uint32.

    Raises:
        ValueError: If a part of the key is out of range, or a position is not in [0, 2³⁴).
    """
    blocks = _blocks(start, count)
    low, high, *rest = counter(key, tensor)
    counters = np.empty((len(blocks), 4), np.uint64)
    counters[:, 0] = np.arange(blocks.start, blocks.stop)
    counters[:, 1:] = rest
    skip = start % 4
    flat: Array = philox(counters, (low, high)).reshape(-1)
    return flat[skip : skip + count]


def normals(key: NoiseKey, tensor: int, start: int, count: int) -> Array:
    """Returns the normals of flat positions `start` to `start + count`, (count,), float32.

    Raises:
        ValueError: As `words`.
    """
    blocks = _blocks(start, count)
    w = words(key, tensor, 4 * blocks.start, 4 * len(blocks)).reshape(-1, 2)
    skip = start % 4
    return np.stack(box_muller(w[:, 0], w[:, 1]), axis=1).reshape(-1)[skip : skip + count]


def signs(key: NoiseKey, tensor: int, start: int, count: int) -> Array:
    """Returns the signs of flat positions `start` to `start + count`, +1 or −1, (count,), float32.

    Raises:
        ValueError: As `words`.
    """
    _blocks(start, count)
    skip = start % WORD_BITS
    w = words(key, tensor, start // WORD_BITS, -(-(skip + count) // WORD_BITS))
    bits = (w[:, None] >> np.arange(WORD_BITS, dtype=np.uint32)) & np.uint32(1)
    drawn: Array = 1 - 2 * bits.reshape(-1)[skip : skip + count].astype(np.float32)
    return drawn


def values(key: NoiseKey, tensor: int, start: int, count: int, as_signs: bool) -> Array:
    """Returns `signs` or `normals`."""
    return (signs if as_signs else normals)(key, tensor, start, count)


def box_muller(w0: Array, w1: Array) -> tuple[Array, Array]:
    """Returns two independent standard normals of each pair of words, float32."""
    r = np.sqrt(MINUS_TWO * log_uniform(w0))
    x = (w1 << np.uint32(2)).view(np.int32).astype(np.float32) * QUARTER_TURN
    x2 = x * x
    sin = _polynomial(SIN, x2) * x2 * x + x
    cos = _polynomial(COS, x2) * x2 * x2 - HALF * x2 + _f(1.0)
    odd = (w1 >> np.uint32(30)) & np.uint32(1) == 1
    a, b = np.where(odd, sin, cos), np.where(odd, cos, sin)
    minus_a = (w1 ^ (w1 << np.uint32(1))) & np.uint32(1 << 31)  # quadrants 1 and 2
    minus_b = w1 & np.uint32(1 << 31)  # quadrants 2 and 3
    return r * _signed(a, minus_a), r * _signed(b, minus_b)


def log_uniform(w: Array) -> Array:
    """Returns ln((w + ½) / 2³²), float32, w rounded to float32 first; at most 0."""
    bits = (w.astype(np.float32) + HALF).view(np.int32) - np.int32(ROOT_HALF_BITS)
    e = ((bits >> np.int32(23)) - np.int32(32)).astype(np.float32)
    x = ((bits & np.int32(0x7FFFFF)) + np.int32(ROOT_HALF_BITS)).view(np.float32) - _f(1.0)
    x2 = x * x
    tail = _polynomial(LOG, x) * x2 * x + e * LN2_LOW - HALF * x2
    logarithm: Array = x + tail + e * LN2_HIGH
    return logarithm


def rounded_bfloat16(x: Array, w: Array) -> Array:
    """Rounds to bfloat16, up or down at random: in the mean, x.

    Args:
        x: float32.
        w: One random word each, uint32.

    Returns:
        Bits of one of the two neighbours of x, uint16; what bfloat16 has stays, and nan is 0x7FC0. Beyond the largest
        finite number the upper neighbour is infinity.
    """
    bits = x.view(np.uint32)
    up = ((bits + (w >> np.uint32(16))) >> np.uint32(16)).astype(np.uint16)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    up = np.where(magnitude == 0x7F800000, (bits >> np.uint32(16)).astype(np.uint16), up)
    out: Array = np.where(magnitude > 0x7F800000, np.uint16(0x7FC0), up)
    return out


def rounded_float16(x: Array, w: Array) -> Array:
    """Rounds to float16, up or down at random: as `rounded_bfloat16`, with nan 0x7E00.

    Below 2⁻¹⁴ the chance of the upper neighbour is a multiple of 2⁻²⁴; from 2¹⁶ on all is infinity.
    """
    bits = x.view(np.uint32)
    sign = ((bits >> np.uint32(16)) & np.uint32(0x8000)).astype(np.uint16)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    normal = (magnitude + (w >> np.uint32(19)) - np.uint32(112 << 23)) >> np.uint32(13)
    with np.errstate(over="ignore", invalid="ignore"):
        small = magnitude.view(np.float32) * _f(2.0**24)
        below = np.floor(small)
        above = (w >> np.uint32(8)).astype(np.float32) * _f(2.0**-24) < small - below
        subnormal = np.where(magnitude < 0x38800000, below, 0).astype(np.uint32) + above
    out = np.where(magnitude < 0x38800000, subnormal, np.minimum(normal, np.uint32(0x7C00)))
    out = np.where(magnitude >= 0x47800000, np.uint32(0x7C00), out)
    out = np.where(magnitude > 0x7F800000, np.uint32(0x7E00), out).astype(np.uint16)
    signed: Array = np.where(magnitude > 0x7F800000, out, out | sign)
    return signed


def _blocks(start: int, count: int) -> range:
    """Returns the blocks of four positions that hold `start` to `start + count`."""
    if start < 0 or start + count > POSITIONS:
        raise ValueError(f"positions {start} to {start + count}: must be in 0 to {POSITIONS}")
    return range(start // 4, -(-(start + count) // 4))


def _polynomial(coefficients: tuple[np.float32, ...], x: Array) -> Array:
    """Evaluates by Horner's rule."""
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def _signed(x: Array, sign: Array) -> Array:
    """Changes the sign of x where the top bit of `sign` is set."""
    return (x.view(np.uint32) ^ sign).view(np.float32)
