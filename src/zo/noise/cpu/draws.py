"""Words, normals and signs in chunks that stay in the first-level cache: bit for bit what `zo.noise.philox` defines."""

from typing import Any

import numpy as np
from numba import njit

from zo.noise import philox
from zo.noise.cpu.compiled import I32, U64, F, U, bits_of, compiled, float_of, prefetch, wide

CHUNK = 2048
"""Values that are drawn, added and written at a time; a multiple of 128. Four such arrays fit the first-level cache."""

NORMALS, SIGNS = 4, 128
"""Values that one block of four words gives."""

M0, M1 = map(U64, philox.MULTIPLIERS)
W0, W1 = map(U, philox.WEYL)
ROUNDS, WORD, TOP = philox.ROUNDS, U64(philox.WORD), U(1 << 31)
HALF, ONE, MINUS_TWO = philox.HALF, F(1.0), philox.MINUS_TWO
LOG = tuple(MINUS_TWO * c for c in philox.LOG)
LN2_HIGH, LN2_LOW = MINUS_TWO * philox.LN2_HIGH, MINUS_TWO * philox.LN2_LOW
"""Constants of −2 ln u: times a power of two, which changes no rounding."""

SIN, COS, QUARTER_TURN = philox.SIN, philox.COS, philox.QUARTER_TURN
ROOT_HALF, EXPONENT_32 = I32(philox.ROOT_HALF_BITS), I32(32 << 23)


@njit(inline="always", error_model="numpy")
def _philox(block: Any, k0: Any, k1: Any, a1: Any, a2: Any, a3: Any) -> Any:
    """The four words of a block of four positions."""
    a0, a1, a2, a3 = U64(U(block)), U64(a1), U64(a2), U64(a3)
    for _ in range(ROUNDS):
        p0, p1 = a0 * M0, a2 * M1
        a0, a1 = (p1 >> U64(32)) ^ a1 ^ U64(k0), p1 & WORD
        a2, a3 = (p0 >> U64(32)) ^ a3 ^ U64(k1), p0 & WORD
        k0, k1 = U(k0 + W0), U(k1 + W1)
    return U(a0), U(a1), U(a2), U(a3)


@compiled
def _box_muller(w0: Any, w1: Any) -> Any:
    """As `zo.noise.philox.box_muller`, of two words."""
    bits = I32(I32(bits_of(F(w0) + HALF)) - I32(ROOT_HALF + EXPONENT_32))
    e = F(I32(bits >> I32(23)))
    x = float_of(U(I32(bits & I32(0x7FFFFF)) + ROOT_HALF)) - ONE
    x2 = x * x
    p = ((((LOG[0] * x + LOG[1]) * x + LOG[2]) * x + LOG[3]) * x + LOG[4]) * x + LOG[5]
    p = ((p * x + LOG[6]) * x + LOG[7]) * x + LOG[8]
    minus = (x + x) - (p * x2 * x + e * LN2_LOW + x2)
    r = np.sqrt(e * LN2_HIGH - minus)  # of −2 ln u, whose 0 is negative
    x = F(I32(U(w1 << U(2)))) * QUARTER_TURN
    x2 = x * x
    sin = ((SIN[0] * x2 + SIN[1]) * x2 + SIN[2]) * x2 * x + x
    cos = ((COS[0] * x2 + COS[1]) * x2 + COS[2]) * x2 * x2 - HALF * x2 + ONE
    odd = U(w1 & U(1 << 30)) != U(0)
    a = sin if odd else cos
    b = cos if odd else sin
    minus_a, minus_b = U(U(w1 ^ U(w1 << U(1))) & TOP), U(w1 & TOP)
    return float_of(U(bits_of(r * a) ^ minus_a)), float_of(U(bits_of(r * b) ^ minus_b))


@njit(inline="always", error_model="numpy")
def with_sign(bits: Any, word: Any, b: Any) -> Any:
    """The bits of a float32 with its sign changed where bit b of the word is set."""
    return U(bits ^ U(U(word << U(31 - b)) & TOP))


@compiled
def draw_words(out: Any, block: Any, blocks: Any, key: Any) -> None:
    """Fills out[: 4 · blocks], uint32, with the words from position 4 · block on."""
    k0, k1, c1, c2, c3 = key[0], key[1], key[2], key[3], key[4]  # `out` might overwrite them
    for b in range(min(blocks, CHUNK // 4)):
        i = 4 * b
        out[i], out[i + 1], out[i + 2], out[i + 3] = _philox(block + b, k0, k1, c1, c2, c3)


@compiled
def scratch() -> Any:
    """Returns an array of CHUNK float32 that begins with a cache line, as loads of 512 bits need."""
    a = np.empty(CHUNK + 16, F)
    at = (-a.ctypes.data % 64) // 4
    return a[at : at + CHUNK]


@compiled
def scratch_words() -> Any:
    """Returns the array, (2, CHUNK / 4), uint64, that `draw_normals` keeps words in."""
    return scratch().view(U64).reshape((2, CHUNK // 4))


@compiled
def _draw_pairs(words: Any, block: Any, blocks: Any, key: Any) -> None:
    """Fills words[:, :blocks] from `block` on: a block's first and third word, and its second and fourth.

    Seen as uint32, words[0] and words[1] then have one word each of every pair that Box-Muller takes, in order.
    """
    wide()
    first, second = words[0], words[1]
    k0, k1, c1, c2, c3 = key[0], key[1], key[2], key[3], key[4]
    for b in range(min(blocks, CHUNK // 4)):
        w0, w1, w2, w3 = _philox(block + b, k0, k1, c1, c2, c3)
        first[b] = U64(w0) | U64(w2) << U64(32)
        second[b] = U64(w1) | U64(w3) << U64(32)


@compiled
def _normals_of_pairs(
    out: Any, first: Any, second: Any, pairs: Any, ahead: Any, beyond: Any, third: Any = None
) -> None:
    """Fills out[: 2 · pairs], float32, with the normals of pairs of words, and the rest of a group of 32."""
    wide()
    for group in range((min(pairs, CHUNK // 2) + 15) // 16):
        if ahead is not None:
            prefetch(ahead, 32 * group)
            prefetch(ahead, 32 * group + 16)
            prefetch(beyond, 32 * group)
            prefetch(beyond, 32 * group + 16)
        if third is not None:
            prefetch(third, 32 * group)
            prefetch(third, 32 * group + 16)
        for j in range(16 * group, 16 * group + 16):
            z0, z1 = _box_muller(first[j], second[j])
            out[2 * j], out[2 * j + 1] = z0, z1


@compiled
def draw_normals(
    out: Any,
    words: Any,
    block: Any,
    blocks: Any,
    key: Any,
    ahead: Any = None,
    beyond: Any = None,
    third: Any = None,
) -> None:
    """Fills out[: 4 · blocks], float32, CHUNK long, with the normals from position 4 · block on.

    Meanwhile the first CHUNK values of `ahead`, `beyond` and `third`, which the caller reads and writes next, are
    fetched into the cache. Words, in `scratch_words`, and normals are made in loops of their own: in one loop
    their constants do not fit the registers.
    """
    _draw_pairs(words, block, blocks, key)
    pairs = words.view(U)
    _normals_of_pairs(out, pairs[0], pairs[1], 2 * blocks, ahead, beyond, third)


@compiled
def draw(out: Any, words: Any, position: Any, count: Any, key: Any, signs: Any) -> None:
    """Fills out[:count] with normals, or with signs unless `signs` is None, from a block's first position on."""
    if signs is None:
        draw_normals(out, words, position // NORMALS, (count + NORMALS - 1) // NORMALS, key)
    else:
        bits = np.empty(CHUNK // 32, U)
        draw_words(bits, position // SIGNS, (count + SIGNS - 1) // SIGNS, key)
        for w in range((count + 31) // 32):
            word = bits[w]
            for b in range(32):
                out[32 * w + b] = float_of(with_sign(bits_of(ONE), word, b))
