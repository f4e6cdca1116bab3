"""Programs, chunk by chunk: each operation is a loop over values that stay in the first- and second-level caches."""

from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import overload

from zo.noise import program
from zo.noise.cpu.compiled import F, U, compiler, fused, pointer, prefetch, wide
from zo.noise.cpu.draws import CHUNK, NORMALS, ONE, draw, draw_normals, scratch_words
from zo.noise.cpu.formats import load, nearest
from zo.noise.cpu.passes import read, write

compiled = compiler(program.__file__)

READ, WRITE, DRAW, FULL, KEEP, FUSED, ADDED, TIMES, OVER, ROOT, SIGN, ROUND, OUTER = program.CODES

SIZE = CHUNK // 2
"""Values that a program works on at a time: about eight arrays of them fit the first-level cache."""


def _operand(x: Any, like: Any, n: Any) -> Any:
    """Returns the n values at an address, or a number as it is."""


def _value(x: Any, k: Any) -> Any:
    """Returns a value of an operand."""


@overload(_operand, strict=False)
def _typed_operand(x: Any, like: Any, n: Any) -> Any:
    if isinstance(x, types.Float):
        return lambda x, like, n: x
    return lambda x, like, n: carray(pointer(x, like), n)


@overload(_value, strict=False)
def _typed_value(x: Any, k: Any) -> Any:
    return (lambda x, k: x) if isinstance(x, types.Float) else (lambda x, k: x[k])


@compiled
def _fill(n: Any, like: Any, to: Any, c: Any) -> None:
    out = carray(pointer(to, like), n)
    for k in range(n):
        out[k] = c


@compiled
def _fuse(n: Any, like: Any, to: Any, x: Any, y: Any, z: Any) -> None:
    wide()
    out, p = carray(pointer(to, like), n), carray(pointer(x, like), n)
    q, r = carray(pointer(y, like), n), _operand(z, like, n)
    for k in range(n):
        out[k] = fused(_value(r, k), q[k], p[k])


@compiled
def _add_scaled(n: Any, like: Any, to: Any, x: Any, y: Any, c: Any) -> None:
    wide()
    out, p, q = (
        carray(pointer(to, like), n),
        carray(pointer(x, like), n),
        carray(pointer(y, like), n),
    )
    for k in range(n):
        out[k] = p[k] + c * q[k]


@compiled
def _times(n: Any, like: Any, to: Any, x: Any, y: Any) -> None:
    wide()
    out, p, q = carray(pointer(to, like), n), carray(pointer(x, like), n), _operand(y, like, n)
    for k in range(n):
        out[k] = p[k] * _value(q, k)


@compiled
def _over(n: Any, like: Any, to: Any, x: Any, y: Any) -> None:
    wide()
    out, p, q = carray(pointer(to, like), n), carray(pointer(x, like), n), _operand(y, like, n)
    for k in range(n):
        out[k] = p[k] / _value(q, k)


@compiled
def _root(n: Any, like: Any, to: Any, x: Any) -> None:
    wide()
    out, p = carray(pointer(to, like), n), carray(pointer(x, like), n)
    for k in range(n):
        out[k] = np.sqrt(p[k])


@compiled
def _sign(n: Any, like: Any, to: Any, x: Any) -> None:
    wide()
    out, p = carray(pointer(to, like), n), carray(pointer(x, like), n)
    for k in range(n):
        out[k] = F(p[k] > F(0.0)) - F(p[k] < F(0.0))


@compiled
def _round(n: Any, like: Any, to: Any, x: Any, half: Any) -> None:
    wide()
    out, p = carray(pointer(to, like), n), carray(pointer(x, like), n)
    for k in range(n):
        out[k] = load(nearest(p[k], half[0]))


@compiled
def _add_four(to: Any, a: Any, b: Any, c: Any, d: Any, p: Any, q: Any, r: Any, s: Any) -> None:
    """Adds four products, one after another."""
    wide()
    for k in range(min(len(to), len(p), len(q), len(r), len(s))):
        x = fused(b, q[k], fused(a, p[k], to[k]))
        to[k] = fused(d, s[k], fused(c, r[k], x))


@compiled
def _add_one(to: Any, a: Any, p: Any) -> None:
    wide()
    for k in range(min(len(to), len(p))):
        to[k] = fused(a, p[k], to[k])


@compiled
def _outer(to: Any, start: Any, left: Any, right: Any, rank: Any, scale: Any) -> None:
    """Fills the values from position `start` on of a matrix: left, (rank · rows,), and right, (rank · columns,)."""
    rows, columns, k = len(left) // rank, len(right) // rank, 0
    while k < len(to):
        row, first = (start + k) // columns, (start + k) % columns
        n = min(columns - first, len(to) - k)
        part, u, v, r = to[k : k + n], left[row:], right[first:], 0
        part[:] = F(-0.0)  # the first sum is the first product
        while r + 4 <= rank:
            a, b = v[r * columns :][:n], v[(r + 1) * columns :][:n]
            c, d = v[(r + 2) * columns :][:n], v[(r + 3) * columns :][:n]
            x, y = u[r * rows], u[(r + 1) * rows]
            _add_four(part, x, y, u[(r + 2) * rows], u[(r + 3) * rows], a, b, c, d)
            r += 4
        for m in range(r, rank):
            _add_one(part, u[m * rows], v[m * columns :][:n])
        k += n
    for k in range(len(to)):
        to[k] *= scale


@compiled
def _read(n: Any, like: Any, to: Any, ahead: Any) -> None:
    """Reads n values, and fetches what follows, which the next chunk reads, into the cache."""
    read(carray(pointer(to, like), n), ahead[:n], ONE)
    for k in range(n, len(ahead), 64 // ahead.itemsize):
        prefetch(ahead, k)


@compiled
def _write(out: Any, like: Any, x: Any, low: Any, begin: Any, key: Any, keys: Any) -> None:
    total = carray(pointer(x, like), len(out))
    if key < 0:
        write(out, total, low, begin // 4, None)
    else:
        write(out, total, low, begin // 4, keys[key])


@compiled
def _next(addresses: Any, widths: Any, array: Any, tensor: Any, value: Any, like: Any) -> Any:
    """Returns a list's tensor from a value on, to be fetched."""
    at = addresses[array, tensor] + (4 if widths[array, tensor] == 0 else 2) * value
    return carray(pointer(at, like), SIZE)


@compiled
def _registers(count: Any) -> Any:
    """Returns (count, CHUNK), float32, that begins with a cache line."""
    a = np.empty(count * CHUNK + 16, F)
    at = (-a.ctypes.data % 64) // 4
    return a[at : at + count * CHUNK].reshape((count, CHUNK))


@compiled
def _between(address: Any, like: Any, begin: Any, end: Any) -> Any:
    """Returns the values from `begin` to `end` of the array at an address."""
    return carray(pointer(address, like), end)[begin:]


@compiled
def run(
    rows: Any,
    ends: Any,
    keeps: Any,
    likes: Any,
    steps: Any,
    numbers: Any,
    keys: Any,
    count: Any,
    begin: Any,
    end: Any,
) -> None:
    """Runs a program on the values from `begin` to `end` of many tensors, counted through all of them.

    Rows, (3 · lists + 1, tensors), are the addresses of each list's tensors, their widths, their lengths, and the
    tensors' positions in their space. A width is the position of the dtype among `likes`, an array of each. Ends,
    (tensors,), say where each tensor ends; keeps, (tensors,), are their factors. The rest is what `Program.assembled`
    returns.
    """
    one, two, three = likes
    lists = len(rows) // 3
    addresses, widths, lengths = rows[:lists], rows[lists : 2 * lists], rows[2 * lists :]
    positions, fetched = rows[3 * lists], SIZE
    for n in range(len(steps)):
        if steps[n, 0] == DRAW and steps[n, 6] >= 0:
            fetched = 0  # by the draws, between their arithmetic
    registers, words, own, first = _registers(count), scratch_words(), keys.copy(), 0
    for j in range(len(ends)):
        a, b, size = max(begin, first) - first, min(end, ends[j]) - first, ends[j] - first
        first = ends[j]
        if a >= b:
            continue
        own[:, 2] = keys[:, 2] + U(positions[j])
        second = 1 if lists > 1 and lengths[1, j] == lengths[0, j] else 0
        third = 2 if lists > 2 and lengths[2, j] == lengths[0, j] else second
        for i in range(a - a % SIZE, b, SIZE):
            low, high = max(a - i, 0), min(b - i, SIZE)
            base, row, m = registers.ctypes.data + 4 * low, 4 * CHUNK, high - low
            for n in range(len(steps)):
                code, array, key, rank = steps[n, 0], steps[n, 5], steps[n, 6], steps[n, 7]
                to, x = base + row * steps[n, 1], base + row * steps[n, 2]
                y, z = base + row * steps[n, 3], base + row * steps[n, 4]
                width, at = widths[max(array, 0), j], addresses[max(array, 0), j]
                if code == READ:
                    until = min(i + high + fetched, size)
                    if width == 0:
                        _read(m, one, to, _between(at, one, i + low, until))
                    elif width == 1:
                        _read(m, one, to, _between(at, two, i + low, until))
                    else:
                        _read(m, one, to, _between(at, three, i + low, until))
                elif code == WRITE:
                    if width == 0:
                        _write(_between(at, one, i + low, i + high), one, x, low, i, -1, own)
                    elif width == 1:
                        _write(_between(at, two, i + low, i + high), one, x, low, i, key, own)
                    else:
                        _write(_between(at, three, i + low, i + high), one, x, low, i, key, own)
                elif code == DRAW:
                    z_out = _between(to - 4 * low, one, 0, CHUNK)
                    if key < 0:
                        draw(z_out, words, i, high, own[-2 - key], True)
                    else:  # meanwhile the next chunk of three lists is fetched
                        ahead = _next(addresses, widths, 0, j, i + SIZE, one)
                        also = _next(addresses, widths, second, j, i + SIZE, one)
                        last = _next(addresses, widths, third, j, i + SIZE, one)
                        at, blocks = i // NORMALS, (high + NORMALS - 1) // NORMALS
                        draw_normals(z_out, words, at, blocks, own[key], ahead, also, last)
                elif code == FULL:
                    _fill(m, one, to, numbers[n])
                elif code == KEEP:
                    _fill(m, one, to, keeps[j])
                elif code == FUSED:
                    if steps[n, 4] < 0:
                        _fuse(m, one, to, x, y, numbers[n])
                    else:
                        _fuse(m, one, to, x, y, z)
                elif code == ADDED:
                    _add_scaled(m, one, to, x, y, numbers[n])
                elif code == TIMES:
                    if steps[n, 3] < 0:
                        _times(m, one, to, x, numbers[n])
                    else:
                        _times(m, one, to, x, y)
                elif code == OVER:
                    if steps[n, 3] < 0:
                        _over(m, one, to, x, numbers[n])
                    else:
                        _over(m, one, to, x, y)
                elif code == ROOT:
                    _root(m, one, to, x)
                elif code == SIGN:
                    _sign(m, one, to, x)
                elif code == ROUND:
                    if width == 0:
                        _times(m, one, to, x, ONE)
                    elif width == 1:
                        _round(m, one, to, x, two)
                    else:
                        _round(m, one, to, x, three)
                elif lengths[key, j] == 0:
                    _read(m, one, to, _between(at, one, i + low, i + high))
                else:
                    u = _between(at, one, 0, lengths[array, j])
                    v = _between(addresses[key, j], one, 0, lengths[key, j])
                    _outer(_between(to, one, 0, m), i + low, u, v, rank, numbers[n])
