"""restore=merged: `subtract` in fewer passes, with the same bits.

The last subtraction of a probe is part of the next pass over the weights, of a probe or an update. It comes first there
and is rounded separately. Until then θ = tensors + `pending`.
"""

from zo.noise import NoiseKey
from zo.weights.directions import Terms
from zo.weights.restore.subtract import Subtract
from zo.weights.updates import LinearUpdate, ParameterUpdate


class Merged(Subtract):
    """`Subtract` whose last subtraction is part of the next pass.

    Attributes:
        pending: The displacement not yet undone, negated: θ = tensors + pending.
    """

    name = "merged"
    pending: Terms = ()

    def to(self, terms: Terms) -> None:
        """As `Subtract.to`; also where that moves nothing, the pending displacement is subtracted."""
        super().to(terms)
        self.finish_restore()

    def restore(self) -> None:
        """Leaves the subtraction to the next pass."""
        if self.displacement and self.failed is None:
            self.pending = [(-c, z) for z, c in self.displacement.items() if c != 0.0]

    def finish_restore(self) -> None:
        """Subtracts the pending displacement."""
        if self.pending and self.failed is None:
            self.apply_update(LinearUpdate(()), 0.0, None)

    def apply_update(
        self, update: ParameterUpdate, decay: float, key: NoiseKey | None, pending: Terms = ()
    ) -> None:
        """Updates each tensor once the pending displacement is subtracted."""
        pending, self.pending = self.pending, ()
        super().apply_update(update, decay, key, pending)
