"""Models that compute a text otherwise where padding follows it, and texts of one length after another for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def differs(found: Tensor, alone: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether what a model of a dtype computes differs by more than rounding; nan does not."""
    wrong = (found.float() - alone.float()).abs().amax() / alone.float().abs().amax()
    return bool(wrong > torch.finfo(dtype).eps ** 0.5)


def by_length(compute: Callable[[Tensor, int], Tensor], lengths: Tensor, width: int) -> Tensor:
    """Computes rows of one length after another.

    Args:
        compute: Indices of rows and their length n -> what the model returns of them without padding.  # (p, n, D)
        lengths: Of the rows.                                                                           # (P,)
        width: Of the result.

    Returns:
        What `compute` returned, 0 behind a row's end.  # (P, width, D)
    """
    parts = {}
    for n in lengths.unique().tolist():
        rows = (lengths == n).nonzero()[:, 0]
        parts[n] = rows, compute(rows, n)
    like = parts[n][1]
    found = like.new_zeros(len(lengths), width, like.shape[-1])
    for n, (rows, part) in parts.items():
        found[rows, :n] = part
    return found
