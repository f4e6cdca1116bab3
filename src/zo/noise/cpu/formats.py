"""How weights are read and written: float32, and bfloat16 and float16 as their bits, uint16 and int16.

The format of a `load` or a store is fixed at compile time.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from zo.noise import philox
from zo.noise.cpu.compiled import I32, F, U, bits_of, float_of

HALF = philox.HALF


def load(x: Any) -> Any:
    """The float32 of an array's value: float32, bits of bfloat16 (uint16) or of float16 (int16)."""


def nearest(x: Any, like: Any) -> Any:
    """A float32 as it is stored in an array of like's dtype, rounded to nearest, ties to even."""


def at_random(x: Any, word: Any, like: Any) -> Any:
    """A float32 as it is stored in an array of like's dtype, rounded stochastically by a random word."""


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
