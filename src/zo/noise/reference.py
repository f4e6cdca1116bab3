"""Philox noise by numpy, tensor by tensor as `zo.noise.philox` says: where numba is missing, and to compare with."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from zo.noise import philox
from zo.noise.engines import Move, PhiloxEngine
from zo.noise.keys import NoiseKey

CHUNK = 2**18
"""Values at a time: what is drawn takes some fifty times their memory."""


class NumpyEngine(PhiloxEngine):
    """Philox noise on the CPU, slowly."""

    backend = "philox-cpu"
    kernels = "reference"

    def _draw(self, out: Tensor, move: Move) -> None:
        ((_, key),) = move.terms
        for part, at, _ in _parts(out, move.start, move.rows):
            drawn = philox.values(key, move.tensor, at, len(part), move.signs)
            part.copy_(torch.from_numpy(drawn))

    def _add(self, out: Tensor, theta: Tensor, move: Move) -> None:
        tensor, terms, keep, start, scale, rounding, rows, pending, signs, limit = move
        for part, at, of in _parts(out, start, rows):
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
    """Yields (flat part of out, its position in the tensor, where it is in what `start` or all rows begin)."""
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
    """Rounds a part at random."""
    words = philox.words(key, tensor, start, len(total))
    if out.dtype == torch.bfloat16:
        bits = philox.rounded_bfloat16(total, words)
    else:
        bits = philox.rounded_float16(total, words)
    out.view(torch.int16).copy_(torch.from_numpy(bits.view(np.int16)))
