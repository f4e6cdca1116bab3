"""Philox noise on the CPU: one pass over the weights, compiled by numba, in chunks that stay in the first-level cache.

Bit for bit what `zo.noise.philox` defines. bfloat16 and float16 are read and written as their bits, uint16 and int16:
which of them a `load` or `store` meets is known when it is compiled. Compiled code is kept beside this file, or in
NUMBA_CACHE_DIR, and made again when this file has changed; so kernels that are built on these belong here.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from torch import Tensor

from zo.noise import philox
from zo.noise.engines import Move, PhiloxEngine
from zo.noise.keys import NoiseKey

CHUNK = 2048
"""Values that are drawn, added and written at a time; a multiple of 128. Four such arrays fit the first-level cache."""

NORMALS, SIGNS = 4, 128
"""Values that one block of four words gives."""

ALONE = 2**16
"""Values that are not worth a second thread."""

compiled = njit(nogil=True, cache=True, error_model="numpy")

F, I32, U, U64 = np.float32, np.int32, np.uint32, np.uint64
M0, M1 = map(U64, philox.MULTIPLIERS)
W0, W1 = map(U, philox.WEYL)
ROUNDS, WORD, TOP = philox.ROUNDS, U64(philox.WORD), U(1 << 31)
HALF, ONE, MINUS_TWO = philox.HALF, F(1.0), philox.MINUS_TWO
LOG = tuple(MINUS_TWO * c for c in philox.LOG)
LN2_HIGH, LN2_LOW = MINUS_TWO * philox.LN2_HIGH, MINUS_TWO * philox.LN2_LOW
"""Constants of −2 ln u: times a power of two, which changes no rounding."""

SIN, COS, QUARTER_TURN = philox.SIN, philox.COS, philox.QUARTER_TURN
ROOT_HALF, EXPONENT_32 = I32(philox.ROOT_HALF_BITS), I32(32 << 23)


def _bits_of(typing: Any, x: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.uint32))

    return types.uint32(types.float32), code


def _float_of(typing: Any, x: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), code


def _wide(typing: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # `set.add`, since llvmlite's own `add` knows no attributes with values
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        set.add(builder.function.attributes, "noinline")
        return context.get_dummy_value()

    return types.void(), code


def _wide_for_float16(typing: Any, x: Any) -> Any:
    _, code = _wide(typing)
    if x.dtype == types.int16:
        return types.void(x), code
    return types.void(x), lambda context, *_: context.get_dummy_value()


def _prefetch(typing: Any, ahead: Any, index: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        of = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        fetch = cgutils.get_or_insert_function(builder.module, of, "llvm.prefetch.p0")
        at = builder.bitcast(builder.gep(array.data, [args[1]]), pointer)
        builder.call(fetch, [at, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(ahead, index), code


prefetch: Any = intrinsic(_prefetch)
"""Asks for the cache line of an array's value; the index may be beyond its end."""

wide: Any = intrinsic(_wide)
"""Has the calling function's loops compiled to 512-bit vectors where the processor has them.

LLVM takes 256 bits on Intel's server processors, which is slower for arithmetic this dense.
"""

wide_for_float16: Any = intrinsic(_wide_for_float16)
"""The same where an array is float16, whose conversion is arithmetic; other loops wait for the cache."""

bits_of: Any = intrinsic(_bits_of)
"""The bits of a float32, as uint32."""

float_of: Any = intrinsic(_float_of)
"""The float32 of bits, uint32."""


def load(x: Any) -> Any:
    """The float32 of what stands in an array: float32, bits of bfloat16 (uint16) or of float16 (int16)."""


def nearest(x: Any, like: Any) -> Any:
    """A float32 as it is stored in an array of like's dtype, rounded to nearest, ties to even."""


def at_random(x: Any, word: Any, like: Any) -> Any:
    """A float32 as it is stored in an array of like's dtype, rounded up or down by a random word."""


@overload(load)
def _load(x: Any) -> Any:
    return {types.float32: _as_it_is, types.uint16: _load_bfloat16, types.int16: _load_float16}[x]


@overload(nearest)
def _nearest(x: Any, like: Any) -> Any:
    of = {types.float32: _nearest_float32, types.uint16: _nearest_bfloat16}
    return of.get(like, _nearest_float16)


@overload(at_random)
def _at_random(x: Any, word: Any, like: Any) -> Any:
    return _random_bfloat16 if like == types.uint16 else _random_float16


def _as_it_is(x: Any) -> Any:
    return x


def _load_bfloat16(x: Any) -> Any:
    return float_of(U(U(x) << U(16)))


def _load_float16(x: Any) -> Any:
    magnitude = U((U(x) & U(0x7FFF)) << U(13))
    value = float_of(magnitude) * F(2.0**112)  # exact, and subnormals come out normal
    value = float_of(U(magnitude + U(0x70000000))) if magnitude >= U(0x0F800000) else value
    return float_of(U(bits_of(value) | U((U(x) & U(0x8000)) << U(16))))


def _nearest_float32(x: Any, like: Any) -> Any:
    return x


def _nearest_bfloat16(x: Any, like: Any) -> Any:
    bits = bits_of(x)
    up = U(U(bits + U(0x7FFF) + (U(bits >> U(16)) & U(1))) >> U(16))
    return np.uint16(U(0x7FC0) if U(bits & U(0x7FFFFFFF)) > U(0x7F800000) else up)


def _nearest_float16(x: Any, like: Any) -> Any:
    bits = bits_of(x)
    magnitude = U(bits & U(0x7FFFFFFF))
    odd = U(U(magnitude >> U(13)) & U(1))
    normal = U(U(magnitude + odd + U(0xFFF) - U(112 << 23)) >> U(13))
    small = U(
        bits_of(float_of(magnitude) + HALF) - U(0x3F000000)
    )  # ½ has unit 2⁻²⁴ in its last place
    out = small if magnitude < U(0x38800000) else normal
    out = U(0x7C00) if magnitude >= U(0x47800000) else out
    out = U(0x7E00) if magnitude > U(0x7F800000) else out
    return np.int16(out | U(U(bits >> U(16)) & U(0x8000)))


def _random_bfloat16(x: Any, word: Any, like: Any) -> Any:
    bits = bits_of(x)
    magnitude = U(bits & U(0x7FFFFFFF))
    up = U(U(bits + U(word >> U(16))) >> U(16))
    up = U(bits >> U(16)) if magnitude == U(0x7F800000) else up
    return np.uint16(U(0x7FC0) if magnitude > U(0x7F800000) else up)


def _random_float16(x: Any, word: Any, like: Any) -> Any:
    bits = bits_of(x)
    magnitude = U(bits & U(0x7FFFFFFF))
    normal = U(U(magnitude + U(word >> U(19)) - U(112 << 23)) >> U(13))
    tiny = magnitude < U(0x38800000)
    small = float_of(magnitude if tiny else U(0)) * F(2.0**24)
    below = I32(small)
    above = F(U(word >> U(8))) * F(2.0**-24) < small - F(below)
    out = U(U(below) + U(above)) if tiny else min(normal, U(0x7C00))
    out = U(0x7C00) if magnitude >= U(0x47800000) else out
    sign = U(U(bits >> U(16)) & U(0x8000))
    return np.int16(U(0x7E00) if magnitude > U(0x7F800000) else U(out | sign))


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
def _with_sign(bits: Any, word: Any, b: Any) -> Any:
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
def _normals_of_pairs(out: Any, first: Any, second: Any, pairs: Any, ahead: Any) -> None:
    """Fills out[: 2 · pairs], float32, with the normals of pairs of words, and the rest of a group of 32."""
    wide()
    for group in range((min(pairs, CHUNK // 2) + 15) // 16):
        if ahead is not None:
            prefetch(ahead, 32 * group)
            prefetch(ahead, 32 * group + 16)
        for j in range(16 * group, 16 * group + 16):
            z0, z1 = _box_muller(first[j], second[j])
            out[2 * j], out[2 * j + 1] = z0, z1


@compiled
def draw_normals(
    out: Any, words: Any, block: Any, blocks: Any, key: Any, ahead: Any = None
) -> None:
    """Fills out[: 4 · blocks], float32, CHUNK long, with the normals from position 4 · block on.

    Meanwhile the first CHUNK values of `ahead`, which the caller reads next, are fetched into the cache. Words, in
    `scratch_words`, and normals are made in loops of their own: in one loop their constants do not fit the registers.
    """
    _draw_pairs(words, block, blocks, key)
    pairs = words.view(U)
    _normals_of_pairs(out, pairs[0], pairs[1], 2 * blocks, ahead)


@compiled
def draw(out: Any, words: Any, position: Any, count: Any, key: Any, signs: Any) -> None:
    """Fills out[:count] with normals, or with signs unless `signs` is None, from a block's first position on."""
    if signs is None:
        draw_normals(out, words, position // NORMALS, (count + NORMALS - 1) // NORMALS, key)
    else:
        bits = np.empty(CHUNK // 32, U)
        draw_words(bits, position // SIGNS, (count + SIGNS - 1) // SIGNS, key)
        for w in range((count + 31) // 32):
            for b in range(32):
                out[32 * w + b] = float_of(_with_sign(bits_of(ONE), bits[w], b))


@compiled
def _add_signs(total: Any, words: Any, c: Any, ahead: Any, fetch: Any) -> None:
    """Adds c times the signs whose bits are `words` to total; if `fetch`, `ahead` is as in `draw_normals`."""
    wide()
    for w in range(CHUNK // 32):
        if fetch:
            prefetch(ahead, 32 * w)
            prefetch(ahead, 32 * w + 16)
        for b in range(32):
            total[32 * w + b] += float_of(_with_sign(bits_of(c), words[w], b))


@compiled
def _read(total: Any, theta: Any, share: Any) -> None:
    """Fills total with a share of theta."""
    wide_for_float16(theta)
    for k in range(min(len(total), len(theta))):
        total[k] = share * load(theta[k])


@compiled
def _read_moved(total: Any, theta: Any, share: Any, z: Any, c: Any) -> None:
    """Fills total with a share of theta and c times z."""
    wide_for_float16(theta)
    for k in range(min(len(total), len(theta), len(z))):
        total[k] = share * load(theta[k]) + c * z[k]


@compiled
def _write_nearest(out: Any, total: Any) -> None:
    """Rounds total into out, to nearest."""
    wide_for_float16(out)
    for k in range(min(len(out), len(total))):
        out[k] = nearest(total[k], out[0])


@compiled
def _write(out: Any, total: Any, low: Any, block: Any, rounding: Any) -> None:
    """Rounds total into out: values from position 4 · block + low on."""
    if rounding is None:
        _write_nearest(out, total)
    else:
        words = np.empty(CHUNK, U)
        draw_words(words, block, (low + len(out) + 3) // 4, rounding)
        w = words[low:]
        for k in range(len(out)):
            out[k] = at_random(total[k], w[k], out[0])


@compiled
def _block_size(signs: Any) -> Any:
    return NORMALS if signs is None else SIGNS


@compiled
def _draw(out: Any, start: Any, key: Any, signs: Any) -> None:
    """Fills out, float32, with the values from position `start` on."""
    drawn, words = scratch(), scratch_words()
    for i in range(-(start % _block_size(signs)), len(out), CHUNK):
        low, high = max(0, -i), min(CHUNK, len(out) - i)
        draw(drawn, words, start + i, high, key, signs)
        z, part = drawn[low:high], out[i + low : i + high]
        for k in range(len(part)):
            part[k] = z[k]


@compiled
def _keep(total: Any, keep: Any, like: Any) -> None:
    """Rounds total to like's dtype and takes its share."""
    for k in range(len(total)):
        total[k] = keep * load(nearest(total[k], like[0]))


@compiled
def _undo_beyond(total: Any, theta: Any, keep: Any, limit: Any) -> None:
    """Fills total with a share of theta where |theta| is not at most the limit."""
    wide_for_float16(theta)
    for k in range(min(len(total), len(theta))):
        x = load(theta[k])
        total[k] = total[k] if abs(x) <= limit else keep * x


@compiled
def _add(
    out: Any,
    theta: Any,
    scale: Any,
    start: Any,
    pending: Any,
    coefficients: Any,
    keys: Any,
    keep: Any,
    rounding: Any,
    signs: Any,
    limit: Any,
) -> None:
    """Writes keep · theta + Σ c_j z_j / √scale, positions from `start` on, into out.

    The first `pending` terms are added to theta before that, and their sum is rounded to nearest. A key that comes
    twice in a row is drawn once. With a limit, values beyond it get no z.
    """
    drawn, sums, words = scratch(), scratch(), scratch_words()
    bits = np.empty(CHUNK // 32, U)
    for i in range(-(start % _block_size(signs)), len(out), CHUNK):
        low, high, at = max(0, -i), min(CHUNK, len(out) - i), start + i
        z, total, part = drawn[low:high], sums[low:high], theta[i + low : i + high]
        ahead = theta[i + high :]
        share = keep if pending == 0 else ONE
        if scale is None and signs is None and len(coefficients) == 1 and pending == 0:
            draw_normals(drawn, words, at // NORMALS, (high + 3) // NORMALS, keys[0], ahead)
            _read_moved(total, part, share, z, coefficients[0])
            if limit is not None:
                _undo_beyond(total, part, keep, limit)
            _write(out[i + low : i + high], total, low, at // 4, rounding)
            continue
        _read(total, part, share)
        for j in range(len(coefficients)):
            c = coefficients[j]
            if j == pending > 0 and (keep != ONE or out.itemsize < 4):
                _keep(total, keep, out)
            if scale is None:
                if signs is None:
                    if j == 0 or (keys[j] != keys[j - 1]).any():
                        blocks = (high + 3) // NORMALS
                        draw_normals(drawn, words, at // NORMALS, blocks, keys[j], ahead)
                    for k in range(len(total)):
                        total[k] += c * z[k]
                else:  # what lies below `low` is not used
                    draw_words(bits, at // SIGNS, CHUNK // SIGNS, keys[j])
                    _add_signs(sums, bits, c, ahead, j == 0)
            else:
                if j == 0 or (keys[j] != keys[j - 1]).any():
                    draw(drawn, words, at, high, keys[j], signs)
                h = scale[i + low : i + high]
                for k in range(len(total)):
                    total[k] += c * (z[k] / np.sqrt(load(h[k])))
        if pending == len(coefficients) > 0:
            _keep(total, keep, out)
        if limit is not None:
            _undo_beyond(total, part, keep, limit)
        _write(out[i + low : i + high], total, low, at // 4, rounding)


@compiled
def _draw_rows(out: Any, rows: Any, width: Any, key: Any, signs: Any) -> None:
    """`_draw` of rows of a matrix."""
    for j in range(len(rows)):
        _draw(out[j * width : (j + 1) * width], rows[j] * width, key, signs)


@compiled
def _add_rows(
    out: Any,
    theta: Any,
    scale: Any,
    rows: Any,
    width: Any,
    pending: Any,
    coefficients: Any,
    keys: Any,
    keep: Any,
    rounding: Any,
    signs: Any,
    limit: Any,
) -> None:
    """`_add` of rows of a matrix."""
    for j in range(len(rows)):
        at = rows[j] * width
        part, of = out[j * width : (j + 1) * width], theta[at : at + width]
        h = None if scale is None else scale[at : at + width]
        _add(part, of, h, at, pending, coefficients, keys, keep, rounding, signs, limit)


class NumbaEngine(PhiloxEngine):
    """Philox noise on the CPU, with as many threads as torch has."""

    backend = "philox-cpu"
    kernels = "cpu"

    def _draw(self, out: Tensor, move: Move) -> None:
        ((_, key),), flat = move.terms, flat_array(out)
        more = key_words(key, move.tensor), move.signs or None
        if move.rows is None:
            in_parts(len(flat), lambda a, b: _draw(flat[a:b], move.start + a, *more))
            return
        index, w = move.rows.numpy(), out.shape[1]
        in_parts(
            len(index),
            lambda a, b: _draw_rows(flat[a * w : b * w], index[a:b], w, *more),
            each=w,
        )

    def _add(self, out: Tensor, theta: Tensor, move: Move) -> None:
        to, of = flat_array(out), flat_array(theta)
        h = None if move.scale is None else flat_array(move.scale)
        both = [*move.pending, *move.terms]
        keys = np.array([philox.counter(key, move.tensor) for _, key in both], U).reshape(-1, 5)
        coefficients = np.array([c for c, _ in both], F)
        bits = key_words(move.rounding, move.tensor)
        limit = None if move.limit is None else F(move.limit.item())
        more = len(move.pending), coefficients, keys, F(move.keep), bits, move.signs or None, limit
        if move.rows is None:

            def span(a: int, b: int) -> None:
                _add(to[a:b], of[a:b], None if h is None else h[a:b], move.start + a, *more)

            in_parts(len(to), span)
            return
        index, w = move.rows.numpy(), out.shape[1]
        in_parts(
            len(index),
            lambda a, b: _add_rows(to[a * w : b * w], of, h, index[a:b], w, *more),
            each=w,
        )


def flat_array(tensor: Tensor) -> Any:
    """Returns a contiguous tensor as the flat array that the kernels take: bfloat16 as uint16, float16 as int16."""
    tensor = tensor.detach()
    if tensor.dtype == torch.float32:
        return tensor.numpy().reshape(-1)
    bits = tensor.view(torch.int16).numpy().reshape(-1)
    return bits.view(np.uint16) if tensor.dtype == torch.bfloat16 else bits


def key_words(key: NoiseKey | None, tensor: int) -> Any:
    """Returns the five words that the kernels take, or None."""
    return None if key is None else np.array(philox.counter(key, tensor), U)


def in_parts(count: int, work: Callable[[int, int], None], each: int = 1) -> None:
    """Calls work(a, b) for parts of range(count), `each` values an entry, in torch's number of threads."""
    threads = torch.get_num_threads()
    share = min(threads, count * each // ALONE)
    if share <= 1:
        work(0, count)
        return
    step = -(-count // share)
    step += -step % (CHUNK if each == 1 else 1)
    parts = [(a, min(a + step, count)) for a in range(0, count, step)]
    others = [_pool(os.getpid(), threads).submit(work, *part) for part in parts[1:]]
    try:
        work(*parts[0])
    finally:
        for other in others:
            other.result()


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this process: a forked one has none of its parent's."""
    return ThreadPoolExecutor(threads, thread_name_prefix="zo-noise")
