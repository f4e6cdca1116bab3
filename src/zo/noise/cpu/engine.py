"""Philox noise on the CPU: one pass over the weights, compiled by numba, in as many threads as torch has."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from zo.noise import philox
from zo.noise.cpu.compiled import F, U
from zo.noise.cpu.draws import CHUNK
from zo.noise.cpu.passes import add, add_rows, add_to_all, fill, fill_rows
from zo.noise.engines import (
    DTYPES,
    Group,
    GroupedTable,
    Move,
    PhiloxEngine,
    PreparedProgram,
    ProgramCall,
    flat_array,
)
from zo.noise.keys import NoiseKey

if TYPE_CHECKING:
    from zo.noise.program import Program

ALONE = 2**16
"""Values per thread below which a second thread does not pay off."""

LIKE = {dtype: flat_array(torch.zeros(1, dtype=dtype)) for dtype in DTYPES}
"""Dtype -> an array of it for the kernels."""


PROCESS = os.getpid()
"""A process that is forked from this one has none of torch's threads, and must not stop them."""


def torch_fuses() -> bool:
    """Returns whether torch rounds a + b · c once, as programs do. Without AVX2 it rounds the product, too."""
    a, b, c = torch.full((67,), -1.0), torch.full((67,), 1 + 2.0**-12), 1 + 2.0**-12
    once = 2.0**-11 + 2.0**-24
    return bool((torch.addcmul(a, b, b) == once).all() and (a.add(b, alpha=c) == once).all())


class NumbaProgram(PreparedProgram):
    """A run is one compiled call."""

    def __init__(self, *call: *ProgramCall):
        program, lists, positions, keeps = call
        from zo.noise.cpu.programs import run  # here: most methods need none

        self._kernel = run
        self.give(program)
        rows = [[*map(Tensor.data_ptr, of)] for of in lists]
        rows += [[DTYPES.index(t.dtype) for t in of] for of in lists]
        rows += [[*map(Tensor.numel, of)] for of in lists]
        self._rows, self._keeps = np.array([*rows, [*positions]], np.int64), keeps

    def give(self, program: Program) -> None:
        """As `PreparedProgram.give`."""
        self._program = program.assembled()

    def run_all(self) -> None:
        """As `PreparedProgram.run_all`."""
        self._run(self._rows, self._keeps)

    def run(self, chosen: Sequence[int], last: Sequence[Tensor]) -> None:
        """As `PreparedProgram.run`."""
        rows = self._rows.take(chosen, 1)
        rows[len(rows) // 3 - 1] = [*map(Tensor.data_ptr, last)]
        self._run(rows, self._keeps.take(chosen))
        increment_version(last)

    def _run(self, rows: Any, keeps: Any) -> None:
        lists = len(rows) // 3
        ends = rows[2 * lists].cumsum()
        given = rows, ends, keeps, (*LIKE.values(),), *self._program
        in_parts(int(ends[-1]), partial(self._kernel, *given))


class NumbaTable(GroupedTable):
    """A pass over all tensors of one dtype is one compiled call, which costs as much as 10⁵ values."""

    _last: ClassVar[tuple[Move, tuple[Any, ...]] | None] = None  # units share a move

    def _pass_of(self, own: Group, keeps: Any) -> Callable[[Move], None]:
        given, size = (own.columns, keeps, LIKE[own.dtype]), int(own.columns[2, -1])
        return lambda move: in_parts(size, partial(add_to_all, *given, *self._fixed(move)))

    def _fixed(self, move: Move) -> tuple[Any, ...]:
        """Returns the kernel's arguments that are the same for all tensors."""
        if NumbaTable._last is None or NumbaTable._last[0] is not move:
            more = key_words(move.rounding, 0), move.signs or None
            NumbaTable._last = move, (*_terms(move._replace(tensor=0)), *more)
        return NumbaTable._last[1]


class NumbaEngine(PhiloxEngine):
    """Philox noise on the CPU, with as many threads as torch has.

    It runs no programs where torch rounds otherwise, so that steps keep their bits where tensors are updated by torch.
    """

    backend = "philox-cpu"
    runs_programs = torch_fuses()
    prepared, tables = NumbaProgram, NumbaTable

    def _run(self, out: Tensor, theta: Tensor | None, move: Move) -> None:
        to = flat_array(out)
        if theta is None:
            key, signs = key_words(move.terms[0][1], move.tensor), move.signs or None

            def span(a: int, b: int) -> None:
                fill(to[a:b], move.start + a, key, signs)

            def some_rows(a: int, b: int) -> None:
                fill_rows(to[a * w : b * w], index[a:b], w, key, signs)

        else:
            of = to if out is theta else flat_array(theta)
            h = None if move.scale is None else flat_array(move.scale)
            limit = None if move.limit is None else F(move.limit.item())
            bits = key_words(move.rounding, move.tensor)
            more = *_terms(move), F(move.keep), bits, move.signs or None, limit

            def span(a: int, b: int) -> None:
                add(to[a:b], of[a:b], None if h is None else h[a:b], move.start + a, *more)

            def some_rows(a: int, b: int) -> None:
                add_rows(to[a * w : b * w], of, h, index[a:b], w, *more)

        if move.rows is None:
            in_parts(len(to), span)
            return
        index, w = move.rows.numpy(), out.shape[1]
        in_parts(len(index), some_rows, each=w)


def _terms(move: Move) -> tuple[int, Any, Any]:
    """Returns the number of pending terms, and coefficients and keys, (terms, 5), of all terms."""
    terms = *move.pending, *move.terms
    keys = [philox.counter(key, move.tensor) for _, key in terms]
    coefficients = np.array([c for c, _ in terms], F)
    return len(move.pending), coefficients, np.array(keys, U).reshape(-1, 5)


def key_words(key: NoiseKey | None, tensor: int) -> Any:
    """Returns a key's five words for the kernels, or None."""
    return None if key is None else np.array(philox.counter(key, tensor), U)


def in_parts(count: int, work: Callable[[int, int], None], each: int = 1) -> None:
    """Calls work(a, b) for parts of range(count), with `each` values per entry, in torch's number of threads."""
    threads = torch.get_num_threads()
    share = min(threads, count * each // ALONE)
    if share <= 1:
        work(0, count)
        return
    step = -(-count // share)
    step += -step % (CHUNK if each == 1 else 1)
    parts = [(a, min(a + step, count)) for a in range(0, count, step)]
    _stop_waiting_threads()
    others = [_pool(os.getpid(), threads).submit(work, *part) for part in parts[1:]]
    try:
        work(*parts[0])
    finally:
        for other in others:
            other.result()


def _stop_waiting_threads() -> None:
    """Ends torch's threads until its next operation.

    OpenMP has them wait for it busily, for milliseconds, and a pass would share its processors with them.
    """
    pause = _openmp_pause()
    if pause is not None and os.getpid() == PROCESS:
        pause(1)  # omp_pause_soft


@cache
def _openmp_pause() -> Callable[[int], int] | None:
    """Returns `omp_pause_resource_all` of the OpenMP that torch has loaded; None without one."""
    return None if os.name == "nt" else getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Returns this process's threads; a forked process needs its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="zo-noise")
