"""Models in which padding changes a text: a check for them, and batches of equal length."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def differs(found: Tensor, alone: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether two results of a model differ by more than its dtype's rounding; nan does not count."""
    wrong = (found.float() - alone.float()).abs().amax() / alone.float().abs().amax()
    return bool(wrong > torch.finfo(dtype).eps ** 0.5)


def by_length(compute: Callable[[Tensor, int], Tensor], lengths: Tensor, width: int) -> Tensor:
    """Computes rows in groups of equal length.

    Args:
        compute: Function of row indices and their length n: the model's result without padding.  # (p, n, D)
        lengths: Of the rows.                                                                           # (P,)
        width: Of the result.

    Returns:
        Results of `compute`, 0 after a row's end.  # (P, width, D)
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
