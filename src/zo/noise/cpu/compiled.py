"""numba's compiler for the kernels, and instructions that it lacks.

Compiled code is cached beside its file, in the home directory or in NUMBA_CACHE_DIR, if one is writable. It is compiled
again when its file or a file that it uses has changed; numba's own cache checks only the first.
"""

import pickle
import time
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils, event
from numba.core.caching import IndexDataCacheFile
from numba.extending import intrinsic

from zo.noise import compiling, philox


class _Clock(event.Listener):
    """Adds up the time in which numba compiles functions of this project, and those that they call."""

    depth, start = 0, 0.0

    def on_start(self, event: Any) -> None:
        """Begins, unless a caller of the function is being compiled."""
        if self.depth or event.data["dispatcher"].py_func.__module__.startswith("zo."):
            self.start = self.start if self.depth else time.perf_counter()
            self.depth += 1

    def on_end(self, event: Any) -> None:
        """Ends."""
        if self.depth:
            self.depth -= 1
            if not self.depth:
                compiling.add(time.perf_counter() - self.start)


event.register("numba:compile", _Clock())

F, I32, U, U64 = np.float32, np.int32, np.uint32, np.uint64

_BUILT_ON = [Path(philox.__file__), *sorted(Path(__file__).parent.glob("*.py"))]


class _Files(IndexDataCacheFile):  # type: ignore[misc]
    """numba's cache files with a digest each: a damaged one counts as missing."""

    def __init__(self, plain: Any, sources: str):
        vars(self).update(vars(plain))
        self._source_stamp = plain._source_stamp, sources

    def _load_index(self) -> dict[Any, str]:
        try:
            found: dict[Any, str] = super()._load_index()
        except Exception:  # unpickling damaged bytes raises anything
            return {}
        return found

    def _save_data(self, name: str, data: object) -> None:
        packed = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(sha256(packed).digest() + packed)

    def _load_data(self, name: str) -> Any:
        data = Path(self._data_path(name)).read_bytes()
        digest, packed = data[:32], data[32:]
        if sha256(packed).digest() != digest:
            raise OSError(f"{name} is damaged")  # numba treats it as a missing file
        return pickle.loads(packed)


def compiler(*also: str | None) -> Callable[[Callable[..., Any]], Any]:
    """Returns a decorator that compiles functions that use this package and further files."""
    files = [*_BUILT_ON, *(Path(name) for name in also if name is not None)]
    sources = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def compiled(function: Callable[..., Any]) -> Any:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        try:
            made = njit(cache=True, **options)(function)
        except RuntimeError:  # no directory can be written
            warnings.warn(
                "noise=philox is compiled anew in every process: neither its own directory nor the home can be written;"
                " set NUMBA_CACHE_DIR to one that can",
                stacklevel=2,
            )
            return njit(**options)(function)
        cache: Any = made._cache  # type: ignore[attr-defined]
        cache._cache_file = _Files(cache._cache_file, sources)
        return made

    return compiled


compiled = compiler()


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


def _fused(typing: Any, c: Any, b: Any, a: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), code


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


def _pointer(typing: Any, address: Any, like: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(address, like), code


fused: Any = intrinsic(_fused)
"""c · b + a of float32, rounded once."""

pointer: Any = intrinsic(_pointer)
"""The pointer, to values of an array's dtype, that an address is."""

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
