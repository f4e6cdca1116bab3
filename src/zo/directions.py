"""Directions that a zeroth-order method moves along: vectors the size of the model, never stored."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zo.noise import NoiseKey, normal_


class Direction(Protocol):
    """A vector over all trainable tensors, produced one tensor at a time."""

    def sample(self, i: int, p: Tensor) -> Tensor:
        """Returns the direction's part for tensor `i`: float32, shape and device of `p`.

        Every call with the same `i` returns the same values.
        """
        ...


@dataclass(frozen=True)
class Gaussian:
    """z ~ N(0, I): every entry an independent standard normal."""

    key: NoiseKey

    def sample(self, i: int, p: Tensor) -> Tensor:
        """Returns z's part for tensor `i`, float32."""
        return normal_(torch.empty(p.shape, dtype=torch.float32, device=p.device), self.key, i)
