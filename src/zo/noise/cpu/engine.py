"""Philox noise on the CPU: one pass over the weights, compiled by numba, in as many threads as torch has."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zo.noise import philox
from zo.noise.cpu.compiled import F, U
from zo.noise.cpu.draws import CHUNK
from zo.noise.cpu.passes import add, add_rows, add_to_all, fill, fill_rows
from zo.noise.engines import (
    DTYPES,
    Move,
    PhiloxEngine,
    TensorTable,
    check_positions,
    flat_array,
)
from zo.noise.keys import NoiseKey

ALONE = 2**16
"""Values per thread below which a second thread does not pay off."""

LIKE = {dtype: flat_array(torch.empty(0, dtype=dtype)) for dtype in DTYPES}
"""Dtype -> an array of it for the kernels."""


class NumbaEngine(PhiloxEngine):
    """Philox noise on the CPU, with as many threads as torch has."""

    backend = "philox-cpu"
    kernels = "cpu"

    def table(
        self,
        out: Sequence[Tensor],
        thetas: Sequence[Tensor],
        positions: Sequence[int] | None = None,
        decays: Sequence[bool] | None = None,
    ) -> TensorTable:
        """As `PhiloxEngine.table`."""
        return NumbaTable(self, out, thetas, positions, decays)

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


class NumbaTable(TensorTable):
    """A pass over all tensors of one dtype is one compiled call, which costs as much as 10⁵ values.

    Addresses are read at each pass, so a tensor may move in memory.
    """

    _addresses: Any = None

    def add_(self, move: Move, decay: float = 0.0) -> None:
        """As `TensorTable.add_`."""
        both = self.thetas if self.out is self.thetas else (*self.out, *self.thetas)
        now = np.array([t.data_ptr() for t in both], np.int64)
        if self._addresses is None or (now != self._addresses).any():
            self._enter(now)
        keeps = self.keeps(move.keep, decay)
        fixed = *_terms(move._replace(tensor=0)), key_words(move.rounding, 0), move.signs or None
        for own in self._groups:
            if move.rounding is not None and own.like.itemsize == 4:
                self.add_one_(own.members[0], move, keeps)  # which refuses it
            places = *own.places, keeps[own.members], own.like
            in_parts(own.size, partial(add_to_all, *places, *fixed))
        for j in self._alone:
            self.add_one_(j, move, keeps)

    def _enter(self, addresses: Any) -> None:
        """Enters the tensors, by their dtypes; those that are not contiguous get a pass of their own each."""
        kinds: dict[torch.dtype, list[int]] = {}
        self._alone = list[int]()
        for j, (out, theta) in enumerate(zip(self.out, self.thetas, strict=True)):
            check_positions(out, 0, None, theta)
            lies = out.is_contiguous() and theta.is_contiguous()
            if lies and out.dtype == theta.dtype and theta.dtype in LIKE:
                kinds.setdefault(out.dtype, []).append(j)
            else:
                self._alone.append(j)
        count, positions = len(self.out), np.array(self.positions, np.int64)
        philox.counter(NoiseKey(0, 0, 0, 0), int(positions.max(initial=0)))
        self._groups = []
        for dtype, found in kinds.items():
            members = np.array(found)
            ends = np.cumsum([self.out[j].numel() for j in found])
            places = addresses[members], addresses[members - count], ends, positions[members]
            self._groups.append(_Group(members, int(ends[-1]), places, LIKE[dtype]))
        self._addresses = addresses


class _Group(NamedTuple):
    """Tensors of one dtype: members of a table, values, and columns of the table.

    Columns are addresses of results and of tensors, ends, and positions.
    """

    members: Any
    size: int
    places: tuple[Any, ...]
    like: Any


def _terms(move: Move) -> tuple[int, Any, Any]:
    """Returns the number of pending terms, and coefficients and keys, (terms, 5), of all terms."""
    return len(move.pending), *_arrays((*move.pending, *move.terms), move.tensor)


@lru_cache(maxsize=2)  # the units of a model have the same terms
def _arrays(terms: tuple[tuple[float, NoiseKey], ...], tensor: int) -> tuple[Any, Any]:
    keys = [philox.counter(key, tensor) for _, key in terms]
    coefficients = np.array([c for c, _ in terms], F)
    return coefficients, np.array(keys, U).reshape(-1, 5)


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
    others = [_pool(os.getpid(), threads).submit(work, *part) for part in parts[1:]]
    try:
        work(*parts[0])
    finally:
        for other in others:
            other.result()


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Returns this process's threads; a forked process needs its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="zo-noise")
