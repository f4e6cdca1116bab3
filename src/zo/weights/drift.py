"""Distance of θ from the start: exact for small tensors, estimated from sampled entries of large ones."""

import torch
from torch import Tensor

from zo.weights.space import ParameterSpace

ENTRIES = 2**14
"""Entries that are kept of a tensor. For a dense move of n larger tensors the error is about 1 % / √n."""


class Drift:
    """Measures ‖θ − θ₀‖² by kept entries of θ₀.

    Costs 12 bytes per kept entry, and one gather at each call of `squares`.

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
        """Returns ‖θ − θ₀‖² of each tensor, of a sharded one of the local part."""
        found = []
        for t, now, start in zip(self._params.local, self._entries(), self._start, strict=True):
            square = (now - start).double().square().sum()
            found.append(float(square) * t.numel() / max(len(start), 1))
        return found

    def _entries(self) -> list[Tensor]:
        policy = self._params.policy
        return [policy.entries(i, index) for i, index in enumerate(self._indices)]
