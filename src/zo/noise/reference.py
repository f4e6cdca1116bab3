"""Philox noise by numpy, as `zo.noise.philox` defines it: the fallback without numba, and the reference of tests."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from zo.noise import philox
from zo.noise.engines import Move, PhiloxEngine, flat_array
from zo.noise.keys import NoiseKey

CHUNK = 2**18
"""Values at a time; drawing takes about fifty times their memory."""


class NumpyEngine(PhiloxEngine):
    """Philox noise on the CPU, without a compiler."""

    backend = "philox-cpu"
    kernels = "reference"

    def _run(self, out: Tensor, theta: Tensor | None, move: Move) -> None:
        tensor, terms, keep, start, scale, rounding, rows, pending, signs, limit = move
        for part, at, of in _parts(out, start, rows):
            if theta is None:
                drawn = philox.values(terms[0][1], tensor, at, len(part), signs)
                part.copy_(torch.from_numpy(drawn))
                continue
            total = before = theta.view(-1)[of].float().numpy()
            root = None if scale is None else np.sqrt(scale.view(-1)[of].float().numpy())
            for sum_of, factor in ((pending, 1.0), (terms, keep)):
                total = total * np.float32(factor)
                for c, key in sum_of:
                    z = philox.values(key, tensor, at, len(part), signs)
                    total += np.float32(c) * (z if root is None else z / root)
                if sum_of is pending and pending:
                    total = torch.from_numpy(total).to(out.dtype).float().numpy()
            if limit is not None:
                small = np.abs(before) <= float(limit)
                total = np.where(small, total, np.float32(keep) * before)
            if rounding is None:
                part.copy_(torch.from_numpy(total))
            else:
                _round(part, total, tensor, rounding, at)


def _parts(out: Tensor, start: int, rows: Tensor | None) -> Iterator[tuple[Tensor, int, slice]]:
    """Yields (flat part of out, its position in the tensor, its slice of theta)."""
    if rows is not None:
        width = out.shape[1]
        for line, row in zip(out, rows.tolist(), strict=True):
            for part, at, _ in _parts(line, row * width, None):
                yield part, at, slice(at, at + len(part))
        return
    flat = out.view(-1)
    for i in range(0, len(flat), CHUNK):
        part = flat[i : i + CHUNK]
        yield part, start + i, slice(i, i + len(part))


def _round(out: Tensor, total: np.ndarray, tensor: int, key: NoiseKey, start: int) -> None:
    """Rounds a part stochastically."""
    rounded = philox.rounded_bfloat16 if out.dtype == torch.bfloat16 else philox.rounded_float16
    bits = rounded(total, philox.words(key, tensor, start, len(total)))
    flat_array(out)[:] = bits.view(flat_array(out).dtype)
