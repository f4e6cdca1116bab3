"""restore=subtract: each probe adds its difference from the previous one, and θ is restored by subtraction.

Source: the paper's released code. No extra memory. Every probe rounds: in half precision θ drifts by about one
rounding error per probe.
"""

from zo.weights.directions import Direction, Terms
from zo.weights.restore.base import RestorePolicy
from zo.weights.updates import LinearUpdate


class Subtract(RestorePolicy):
    """Moves by differences: +ε z, then −2ε z, then +ε z."""

    name = "subtract"

    displacement: dict[Direction, float]

    def begin(self) -> None:
        """Starts at θ."""
        self.displacement = {}

    def to(self, terms: Terms) -> None:
        """Adds the difference between the last displacement and this one."""
        target = dict[Direction, float]()
        for c, z in terms:
            target[z] = target.get(z, 0.0) + c
        last, self.displacement = self.displacement, target
        moves = [(target.get(z, 0.0) - last.get(z, 0.0), z) for z in {**last, **target}]
        if moves := [(c, z) for c, z in moves if c != 0.0]:
            self.apply_update(LinearUpdate(moves), 0.0, None)

    def restore(self) -> None:
        """Subtracts the displacement."""
        self.to([])
