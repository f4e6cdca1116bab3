"""Programs: one kernel, compiled for the operations of each, that keeps their values in registers."""

import triton
import triton.language as tl

from zo.noise import program
from zo.noise.cuda.draws import (
    INTERPRETED,
    TERM,
    aligned,
    as_float,
    coefficient,
    normals,
    place_of,
    read,
    rounded,
    signs,
    tile_offsets,
    write,
)

READ, WRITE, DRAW, FULL, KEEP, FUSED, ADDED, TIMES, OVER, ROOT, SIGN, ROUND, OUTER = map(
    tl.constexpr, program.CODES
)
OWN = tl.constexpr(4)
"""Columns of the table of tensors before the addresses and the lengths of each list's."""


@triton.jit
def _pointer(address, KIND: tl.constexpr):
    """An address as a pointer to a dtype, given by its position in `DTYPES`."""
    if KIND == 0:
        at = address.to(tl.pointer_type(tl.float32))
    elif KIND == 1:
        at = address.to(tl.pointer_type(tl.bfloat16))
    else:
        at = address.to(tl.pointer_type(tl.float16))
    return at


@triton.jit
def _fused(x, y, z):
    """X · y + z, rounded once."""
    # The interpreter's own rounds twice: here float64's sum is rounded to odd, so that float32's is right.
    if INTERPRETED:
        product, sum_with = x.to(tl.float64) * y.to(tl.float64), z.to(tl.float64)
        total = product + sum_with
        part = total - product
        lost = (product - (total - part)) + (sum_with - part)
        bits = total.to(tl.int64, bitcast=True)
        further = tl.where((lost > 0) == (total > 0), 1, -1)
        inexact = (lost != 0) & (lost == lost) & (bits % 2 == 0)
        return tl.where(inexact, bits + further, bits).to(tl.float64, bitcast=True).to(tl.float32)
    return tl.fma(x, y, z)


@triton.jit
def _outer(left, right, rows, columns, begin, i, inside, scale, RANK: tl.constexpr):
    """The values of scale · U Vᵀ from position `begin` on, of pointers to Uᵀ and Vᵀ; of an empty Vᵀ, Uᵀ itself."""
    if columns == 0:
        x = tl.load(left + begin + i, mask=inside, other=0.0)
    else:
        at = (begin % columns + i).to(tl.uint32)
        row = begin // columns + at // columns.to(tl.uint32)
        column = (at % columns.to(tl.uint32)).to(tl.int64)
        x = tl.full(i.shape, -0.0, tl.float32)  # the first sum is the first product
        for r in range(RANK):
            u = tl.load(left + r * rows + row, mask=inside, other=0.0)
            x = _fused(u, tl.load(right + r * columns + column, mask=inside, other=0.0), x)
        x = scale * x
    return x


@triton.jit
def run(
    places,
    table,
    STEPS: tl.constexpr,
    KINDS: tl.constexpr,
    LEVELS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Runs a program on many tensors, whose lists have the dtypes KINDS.

    Rows of `places`: a tensor's first program, its number of values, its position in the space, the bits of its factor,
    and of each list its address and number of values there. Row n of `table` has the number of STEPS[n], which are
    those of `zo.noise.program.Step` without it, and the key n. WIDE says whether a key is of signs: those are
    −2 − key in the steps that draw.
    """
    place, part = place_of(places, OWN + 2 * len(KINDS), LEVELS)
    width, tensor, keep = tl.load(place + 1), tl.load(place + 2), as_float(tl.load(place + 3))
    first, i = part * BLOCK, tile_offsets(WIDE, BLOCK)
    begin = 4 * first
    even, full = begin + 4 * BLOCK <= width, tl.full(i.shape, 1.0, tl.float32)
    lists = ()
    for array in tl.static_range(len(KINDS)):
        at = _pointer(tl.load(place + OWN + 2 * array), KINDS[array])
        even = even & aligned(at)
        lists += (at,)
    made = ()
    for n in tl.static_range(len(STEPS)):
        number = coefficient(table + TERM * n)
        if STEPS[n][0] == READ:
            x = read(lists[STEPS[n][5]] + begin, i, begin, width, even, 0.0)
        elif STEPS[n][0] == DRAW:
            if STEPS[n][6] < 0:
                x = signs(first, table + TERM * (-2 - STEPS[n][6]), tensor, BLOCK)
            else:
                x = normals(first, table + TERM * STEPS[n][6], tensor, WIDE, BLOCK)
        elif STEPS[n][0] == FULL:
            x = full * number
        elif STEPS[n][0] == KEEP:
            x = full * keep
        elif STEPS[n][0] == FUSED:
            factor = full * number if STEPS[n][4] < 0 else made[STEPS[n][4]]
            x = _fused(factor, made[STEPS[n][3]], made[STEPS[n][2]])
        elif STEPS[n][0] == ADDED:
            x = made[STEPS[n][2]] + number * made[STEPS[n][3]]
        elif STEPS[n][0] == TIMES:
            x = made[STEPS[n][2]] * (number if STEPS[n][3] < 0 else made[STEPS[n][3]])
        elif STEPS[n][0] == OVER:
            divisor = full * number if STEPS[n][3] < 0 else made[STEPS[n][3]]
            x = tl.div_rn(made[STEPS[n][2]], divisor)
        elif STEPS[n][0] == ROOT:
            x = tl.sqrt_rn(made[STEPS[n][2]])
        elif STEPS[n][0] == SIGN:
            x = made[STEPS[n][2]]
            x = (x > 0).to(tl.float32) - (x < 0).to(tl.float32)
        elif STEPS[n][0] == ROUND:
            x = rounded(made[STEPS[n][2]], lists[STEPS[n][5]])
        elif STEPS[n][0] == OUTER:
            lengths = place + OWN + 1
            rows = tl.load(lengths + 2 * STEPS[n][5]) // STEPS[n][7]
            columns = tl.load(lengths + 2 * STEPS[n][6]) // STEPS[n][7]
            inside = i < width - begin
            left, right = lists[STEPS[n][5]], lists[STEPS[n][6]]
            x = _outer(left, right, rows, columns, begin, i, inside, number, STEPS[n][7])
        else:
            at, term = lists[STEPS[n][5]] + begin, table + TERM * STEPS[n][6]
            x = made[STEPS[n][2]]
            write(at, x, i, begin, width, even, first, term, tensor, WIDE, STEPS[n][6] >= 0)
        if STEPS[n][0] != WRITE:
            made += (x,)
