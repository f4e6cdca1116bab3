"""The pass of a `Move`: one kernel that reads, draws, adds, rounds and writes."""

import triton
import triton.language as tl

from zo.noise.cuda.draws import (
    TERM,
    aligned,
    as_float,
    coefficient,
    draw_values,
    place_of,
    read,
    rounded,
    sign_bits,
    signed,
    tile_offsets,
    write,
)

PLACE = tl.constexpr(6)
"""Columns of the table of tensors."""


@triton.jit
def _drawn(first, term, tensor, root, SIGNS: tl.constexpr, BLOCK: tl.constexpr):
    """Values, divided by a root if there is one."""
    z = draw_values(first, term, tensor, SIGNS, BLOCK)
    if root is not None:
        z = tl.div_rn(z, root)
    return z


@triton.jit(
    do_not_specialize=[
        *("out", "theta", "scale", "count", "pending", "tensor", "start", "width"),
        "parts",
    ]
)
def run(
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
    LEVELS: tl.constexpr,
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

    With `places`, out and theta only say their dtypes. Its rows: the tensor's first program, its number of values, its
    position in the space, the bits of keep, and the addresses of its result and of theta.

    Without, program n makes part n mod parts of row n // parts: positions at to at + width. Rows, if any, are those of
    all that theta and scale hold; without, theta, scale and out are one row, which begins at position `start`. With a
    limit, values beyond it get no z.
    """
    if places is not None:
        place, part = place_of(places, PLACE, LEVELS)
        at, inner = tl.cast(0, tl.int64), 0
        width, tensor, keep = tl.load(place + 1), tl.load(place + 2), as_float(tl.load(place + 3))
        out, theta = tl.load(place + 4).to(out.dtype), tl.load(place + 5).to(theta.dtype)
    else:
        part = (tl.program_id(0) % parts).to(tl.int64)
        row = (tl.program_id(0) // parts).to(tl.int64)
        at = tl.cast(start, tl.int64) if rows is None else tl.load(rows + row) * width
        inner = 0 if rows is None else at
        out += row * width
    first = (at // 16 * 4 if SIGNS else at // 4) + part * BLOCK
    begin = 4 * first - at  # of the program's values; negative where the row begins later
    i = tile_offsets(SIGNS, BLOCK)
    out += begin
    even = (begin >= 0) & (begin + 4 * BLOCK <= width) & aligned(out)
    if theta is None:
        total = draw_values(first, table, tensor, SIGNS, BLOCK)
    else:
        theta += inner + begin
        even = even & aligned(theta)
        root = None
        if scale is not None:
            scale += inner + begin
            even = even & aligned(scale)
            root = tl.sqrt_rn(read(scale, i, begin, width, even, 1.0))
        before = read(theta, i, begin, width, even, 0.0)
        total = keep * before if KEEPS and not PENDING else before
        if ONE and SIGNS and root is None:  # c z without a product
            total += signed(coefficient(table), sign_bits(first, table, tensor, BLOCK))
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
        if limit is not None:
            small = tl.abs(before) <= tl.load(limit).to(tl.float32)
            total = tl.where(small, total, keep * before)
    bits = table + TERM * count
    write(out, total, i, begin, width, even, first, bits, tensor, SIGNS, AT_RANDOM)
