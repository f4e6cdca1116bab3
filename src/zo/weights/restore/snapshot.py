"""restore=snapshot: θ is copied before a probe and copied back after it. Exact, at twice the memory of θ."""

import torch
from torch import Tensor

from zo.weights.directions import Terms
from zo.weights.restore.base import RestorePolicy
from zo.weights.updates import add_to_all_, table_of


class Snapshot(RestorePolicy):
    """Writes θ + Σ c_j z_j from the copy."""

    name = "snapshot"
    copies: list[Tensor] | None = None

    def begin(self) -> None:
        """Copies θ into buffers that the first probe allocates."""
        with self.space.stopwatch.running("weights"):
            if self.copies is None:
                self.copies = [torch.empty_like(p) for p in self.local]
                self._from_copies = table_of(self.space.engine, self.local, self.copies)
            torch._foreach_copy_(self.copies, self.local)

    def to(self, terms: Terms) -> None:
        """Writes all tensors anew."""
        assert self.copies is not None
        with self.space.stopwatch.running("weights"):
            add_to_all_(self.local, self.copies, range(len(self.local)), terms, self._from_copies)

    def restore(self) -> None:
        """Copies θ back."""
        assert self.copies is not None
        with self.space.stopwatch.running("weights"):
            torch._foreach_copy_(self.local, self.copies)
