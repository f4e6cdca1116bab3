"""Passes over the weights, chunk by chunk: read, draw, add, mask, round and write."""

from typing import Any

import numpy as np
from numba import carray

from zo.noise.cpu.compiled import (
    U,
    bits_of,
    compiled,
    float_of,
    pointer,
    prefetch,
    wide,
    wide_for_float16,
)
from zo.noise.cpu.draws import (
    CHUNK,
    NORMALS,
    ONE,
    SIGNS,
    draw,
    draw_normals,
    draw_words,
    scratch,
    scratch_words,
    with_sign,
)
from zo.noise.cpu.formats import at_random, load, nearest


@compiled
def _add_signs(total: Any, words: Any, c: Any, ahead: Any, beyond: Any, fetch: Any) -> None:
    """Adds c times the signs whose bits are `words` to total; if `fetch`, it fetches as `draw_normals`."""
    wide()
    for w in range(CHUNK // 32):
        word = words[w]  # which no write to `total` changes, as the compiler cannot know
        if fetch:
            prefetch(ahead, 32 * w)
            prefetch(ahead, 32 * w + 16)
            prefetch(beyond, 32 * w)
            prefetch(beyond, 32 * w + 16)
        for b in range(32):
            total[32 * w + b] += float_of(with_sign(bits_of(c), word, b))


@compiled
def read(total: Any, theta: Any, share: Any) -> None:
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
def write(out: Any, total: Any, low: Any, block: Any, rounding: Any) -> None:
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
def fill(out: Any, start: Any, key: Any, signs: Any) -> None:
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
def pass_memory() -> Any:
    """Returns the arrays that `add` works in: values, sums, words, and bits of signs."""
    return scratch(), scratch(), scratch_words(), np.empty(CHUNK // 32, U)


@compiled
def add(
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
    memory: Any = None,
) -> None:
    """Writes keep · theta + Σ c_j z_j / √scale, positions from `start` on, into out.

    The first `pending` terms are added to theta before that, and their sum is rounded to nearest. A key that comes
    twice in a row is drawn once. With a limit, values beyond it get no z. A caller of many passes lends them `memory`,
    see `pass_memory`.
    """
    drawn, sums, words, bits = pass_memory() if memory is None else memory
    for i in range(-(start % _block_size(signs)), len(out), CHUNK):
        low, high, at = max(0, -i), min(CHUNK, len(out) - i), start + i
        z, total, part = drawn[low:high], sums[low:high], theta[i + low : i + high]
        ahead, beyond = theta[i + high :], out[i + high :]
        share = keep if pending == 0 else ONE
        if scale is None and signs is None and len(coefficients) == 1 and pending == 0:
            draw_normals(drawn, words, at // NORMALS, (high + 3) // NORMALS, keys[0], ahead, beyond)
            _read_moved(total, part, share, z, coefficients[0])
            if limit is not None:
                _undo_beyond(total, part, keep, limit)
            write(out[i + low : i + high], total, low, at // 4, rounding)
            continue
        read(total, part, share)
        for j in range(len(coefficients)):
            c = coefficients[j]
            if j == pending > 0 and (keep != ONE or out.itemsize < 4):
                _keep(total, keep, out)
            if scale is None:
                if signs is None:
                    if j == 0 or (keys[j] != keys[j - 1]).any():
                        blocks = (high + 3) // NORMALS
                        draw_normals(drawn, words, at // NORMALS, blocks, keys[j], ahead, beyond)
                    for k in range(len(total)):
                        total[k] += c * z[k]
                else:  # what lies below `low` is not used
                    draw_words(bits, at // SIGNS, CHUNK // SIGNS, keys[j])
                    _add_signs(sums, bits, c, ahead, beyond, j == 0)
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
        write(out[i + low : i + high], total, low, at // 4, rounding)


@compiled
def add_to_all(
    columns: Any,
    keeps: Any,
    like: Any,
    pending: Any,
    coefficients: Any,
    keys: Any,
    rounding: Any,
    signs: Any,
    begin: Any,
    end: Any,
) -> None:
    """`add` of the values from `begin` to `end` of many tensors, counted through all of them.

    Columns, (4, tensors), are addresses that are written and that are read, both in like's dtype, where a tensor ends,
    and its position in its space. Keys are those of tensor 0.
    """
    outs, thetas, ends, positions = columns
    own, memory = keys.copy(), pass_memory()
    bits = None if rounding is None else rounding.copy()
    first = 0
    for j in range(len(outs)):
        a, b = max(begin, first), min(end, ends[j])
        if a < b:
            at, size = a - first, ends[j] - first
            theta = carray(pointer(thetas[j], like), size)[at : b - first]
            out = carray(pointer(outs[j], like), size)[at : b - first]
            own[:, 2] = keys[:, 2] + U(positions[j])
            if bits is not None:
                bits[2] = rounding[2] + U(positions[j])
            keep = keeps[j]
            add(out, theta, None, at, pending, coefficients, own, keep, bits, signs, None, memory)
        first = ends[j]


@compiled
def fill_rows(out: Any, rows: Any, width: Any, key: Any, signs: Any) -> None:
    """`fill` of rows of a matrix."""
    for j in range(len(rows)):
        fill(out[j * width : (j + 1) * width], rows[j] * width, key, signs)


@compiled
def add_rows(
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
    """`add` of rows of a matrix."""
    for j in range(len(rows)):
        at = rows[j] * width
        part, of = out[j * width : (j + 1) * width], theta[at : at + width]
        h = None if scale is None else scale[at : at + width]
        add(part, of, h, at, pending, coefficients, keys, keep, rounding, signs, limit)
