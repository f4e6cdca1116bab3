"""restore=subtract: each probe adds its difference from the previous one, and θ is restored by subtraction.

Source: the paper's released code. No extra memory. Every probe rounds: in half precision θ drifts by about one
rounding error per probe.
"""

from zo.noise import NoiseKey
from zo.weights.directions import Direction, Terms
from zo.weights.restore.base import RestorePolicy
from zo.weights.updates import LinearUpdate, ParameterUpdate


class Subtract(RestorePolicy):
    """Moves by differences: +ε z, then −2ε z, then +ε z.

    Attributes:
        displacement: Where the tensors are.
        failed: The error that ended a pass: since then some tensors are not where `displacement` says.
    """

    name = "subtract"

    displacement: dict[Direction, float]
    failed: BaseException | None = None

    def check_whole(self) -> None:
        """As `RestorePolicy.check_whole`."""
        if self.failed is not None:
            raise RuntimeError(
                f'restore="{self.name}": a pass over the weights failed ({type(self.failed).__name__}: {self.failed}),'
                ' so that they are not θ; load them again and make a new optimizer, perhaps with restore="snapshot"'
            ) from self.failed

    def begin(self) -> None:
        """Starts at θ; raises as `check_whole`."""
        self.check_whole()
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
        if self.failed is None:
            self.to([])

    def apply_update(
        self, update: ParameterUpdate, decay: float, key: NoiseKey | None, pending: Terms = ()
    ) -> None:
        """As `RestorePolicy.apply_update`; notes an error that ends it."""
        try:
            super().apply_update(update, decay, key, pending)
        except BaseException as error:
            self.failed = error
            raise
