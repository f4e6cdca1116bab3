"""Philox noise on the CPU: one pass over the weights, compiled by numba, in as many threads as torch has."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zo.noise import philox
from zo.noise.cpu.compiled import F, U
from zo.noise.cpu.draws import CHUNK
from zo.noise.cpu.passes import add, add_rows, add_to_all, fill, fill_rows
from zo.noise.engines import KeyedTerms, Move, PhiloxEngine
from zo.noise.keys import NoiseKey

ALONE = 2**16
"""Values that are not worth a second thread."""


class NumbaEngine(PhiloxEngine):
    """Philox noise on the CPU, with as many threads as torch has."""

    backend = "philox-cpu"
    kernels = "cpu"

    def _draw(self, out: Tensor, move: Move) -> None:
        ((_, key),), flat = move.terms, flat_array(out)
        more = key_words(key, move.tensor), move.signs or None
        if move.rows is None:
            in_parts(len(flat), lambda a, b: fill(flat[a:b], move.start + a, *more))
            return
        index, w = move.rows.numpy(), out.shape[1]
        in_parts(
            len(index),
            lambda a, b: fill_rows(flat[a * w : b * w], index[a:b], w, *more),
            each=w,
        )

    def add_to_all_(
        self,
        tensors: Sequence[Tensor],
        terms: KeyedTerms,
        decays: Sequence[float],
        rounding: NoiseKey | None = None,
        pending: KeyedTerms = (),
        signs: bool = False,
        out: Sequence[Tensor] | None = None,
    ) -> None:
        """As `PhiloxEngine.add_to_all_`; in place one call for all: each call costs as much as 10⁵ values."""
        of_one_dtype = len({t.dtype for t in tensors}) == 1
        if out is not None or not of_one_dtype or not all(t.is_contiguous() for t in tensors):
            super().add_to_all_(tensors, terms, decays, rounding, pending, signs, out)
            return
        addresses = np.array([t.data_ptr() for t in tensors], np.int64)
        ends = np.cumsum([t.numel() for t in tensors])
        keeps = np.array([1.0 - decay for decay in decays], F)
        fixed = len(pending), *_terms([*pending, *terms], 0), key_words(rounding, 0), signs or None
        like = flat_array(tensors[0])[:0]
        in_parts(int(ends[-1]), lambda a, b: add_to_all(addresses, ends, keeps, a, b, like, *fixed))

    def _add(self, out: Tensor, theta: Tensor, move: Move) -> None:
        of = flat_array(theta)
        to = of if out is theta else flat_array(out)
        h = None if move.scale is None else flat_array(move.scale)
        coefficients, keys = _terms([*move.pending, *move.terms], move.tensor)
        bits = key_words(move.rounding, move.tensor)
        limit = None if move.limit is None else F(move.limit.item())
        more = len(move.pending), coefficients, keys, F(move.keep), bits, move.signs or None, limit
        if move.rows is None:

            def span(a: int, b: int) -> None:
                add(to[a:b], of[a:b], None if h is None else h[a:b], move.start + a, *more)

            in_parts(len(to), span)
            return
        index, w = move.rows.numpy(), out.shape[1]
        in_parts(
            len(index),
            lambda a, b: add_rows(to[a * w : b * w], of, h, index[a:b], w, *more),
            each=w,
        )


def _terms(terms: KeyedTerms, tensor: int) -> tuple[Any, Any]:
    """Returns the coefficients and the keys, (terms, 5), that the kernels take."""
    keys = [philox.counter(key, tensor) for _, key in terms]
    return np.array([c for c, _ in terms], F), np.array(keys, U).reshape(-1, 5)


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
