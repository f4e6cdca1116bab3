"""How far θ has moved from the start: exact for small tensors, from a sample of entries of large ones."""

import torch
from torch import Tensor

from zo.weights.space import ParameterSpace

ENTRIES = 2**14
"""Entries of a tensor that are kept. Of a dense move of n tensors above this size the error is about 1 % / √n."""


class Drift:
    """Entries of θ₀, and how far θ is from it by them.

    Costs 12 bytes per entry that is kept, and a gather of them at each call of `squares`.

    Args:
        params: θ, at the start.
    """

    def __init__(self, params: ParameterSpace):
        self._params = params
        generator = torch.Generator().manual_seed(0)
        self._indices: list[Tensor] = []
        for t in params.local:
            large = t.numel() > ENTRIES
            chosen = torch.randint(t.numel(), (ENTRIES,), generator=generator, device="cpu")
            self._indices.append(
                chosen.to(t.device) if large else torch.arange(t.numel(), device=t.device)
            )
        self._start = self._entries()

    def squares(self) -> list[float]:
        """Returns ‖θ − θ₀‖² of each tensor, or of this process's part of it."""
        found = []
        for t, now, start in zip(self._params.local, self._entries(), self._start, strict=True):
            square = (now - start).double().square().sum()
            found.append(float(square) * t.numel() / max(len(start), 1))
        return found

    def _entries(self) -> list[Tensor]:
        policy = self._params.policy
        return [policy.entries(i, index) for i, index in enumerate(self._indices)]
