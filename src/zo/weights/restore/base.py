"""What every restore policy is: how a probe is made, how θ comes back, and what an update does to that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias, runtime_checkable

from torch import Tensor, nn

from zo.noise import NoiseKey
from zo.weights.directions import LowRank, Terms, at_least_float32
from zo.weights.offload.stored import OffloadRefused
from zo.weights.updates import ParameterUpdate, UpdateTarget

if TYPE_CHECKING:
    from zo.weights.space import ParameterSpace

LossFn: TypeAlias = Callable[[], float]
"""Loss of one fixed mini-batch at the current θ: eval mode, no gradient, a Python float."""


@runtime_checkable
class BranchedLoss(Protocol):
    """A `LossFn` that measures at several points of θ in one forward pass."""

    def __call__(self) -> float:
        """Returns the loss."""
        ...

    def branches(self, n: int) -> list[float]:
        """Returns the losses of n copies of the mini-batch: row r of copy b is row b · rows + r of every layer."""
        ...


@runtime_checkable
class SizedBranches(BranchedLoss, Protocol):
    """A `BranchedLoss` that knows how much memory a branch takes."""

    def branch_bytes(self, own: bool) -> int:
        """Returns about the most bytes that one copy of the mini-batch takes; 0 is not limited.

        Args:
            own: Whether each branch has factors of its own.
        """
        ...


Excursion: TypeAlias = Sequence[Terms]
"""Points that are visited one after another before θ comes back; a point without terms is θ."""


@runtime_checkable
class SharedLoss(Protocol):
    """A `LossFn` that several processes measure together, see `zo.distributed`."""

    def __call__(self) -> float:
        """Returns the loss."""
        ...

    def measure(self, params: ParameterSpace, excursions: Sequence[Excursion]) -> list[float]:
        """Returns what `ParameterSpace.measure` does; each process makes a part of the forward passes."""
        ...


class RestoreError(RuntimeError):
    """The model does what a restore policy cannot displace.

    Args:
        policy: The policy's name.
        what: What the model does; names the module or the weight.
        remedy: Name of a policy that can.

    Attributes:
        in_suite: The message with the key of the suite's configuration in place of the library's argument.
    """

    def __init__(self, policy: str, what: str, remedy: str):
        super().__init__(f'restore="{policy}": {what}; use restore="{remedy}"')
        self.in_suite = f"precision.restore={policy}: {what}; use precision.restore={remedy}"


class BranchBudgetError(RestoreError):
    """One pair of branches takes more memory than the budget.

    Args:
        budget: Bytes.
        needed: Bytes of a pair.
    """

    def __init__(self, budget: float, needed: int):
        self.in_suite = (
            f"precision.branch_gib={budget / 2**30:.3g}: must be at least {needed / 2**30:.3g}, which one pair of"
            " members takes; or take a smaller batch_size or task.max_new_tokens"
        )
        RuntimeError.__init__(self, self.in_suite)


class Probe(ABC):
    """θ, displaced. `ParameterSpace.excursion` lends it."""

    @abstractmethod
    def to(self, terms: Terms) -> None:
        """Displaces to θ + Σ c_j z_j, counted from θ and not from the previous point."""

    def losses(self, loss_fn: LossFn, points: Sequence[Terms]) -> list[float]:
        """Returns the losses at θ + Σ c_j z_j of each of `points`, in their order; θ stays at one of them."""
        found = []
        for terms in points:
            self.to(terms)
            found.append(loss_fn())
        return found


class Unmoved(Probe):
    """Leaves θ where it is: a replay under an exact policy measures nothing."""

    def to(self, terms: Terms) -> None:
        """Does nothing."""


class RestorePolicy(Probe):
    """How one `ParameterSpace` is probed and restored.

    What a policy cannot do stands in `zo.weights.constraints`, or is refused by its constructor where only the tensors
    and the model show it.

    Args:
        space: θ.
        model: Holds the tensors and computes the loss, if it is known.

    Attributes:
        name: Value of `precision.restore`.
        measures_together: Whether one forward pass measures all points of an excursion, if the loss can.
        folded_for_reader: Whether `fold_for_reader` has written since this was set to False.
    """

    name: ClassVar[str]
    measures_together: ClassVar[bool] = False

    def __init__(self, space: ParameterSpace, model: nn.Module | None):
        self.space = space
        self.folded_for_reader = False

    def begin(self) -> None:
        """Prepares a probe: called before the first `to`."""

    @abstractmethod
    def restore(self) -> None:
        """Restores θ, or leaves that to the next pass over the weights. Called however the probe ended."""

    def settle(self) -> None:
        """Makes a restoration that `restore` left to the next pass."""

    def update(
        self, update: ParameterUpdate, decay: float, key: NoiseKey | None, pending: Terms = ()
    ) -> None:
        """Updates θ as `ParameterSpace.carry_out`, each tensor once its `pending` displacement is undone."""
        residuals = None if key is None else self.space.residuals
        with self.space.timed():
            update.apply_to_all(self.targets(decay, key), pending, residuals)

    def targets(self, decay: float, key: NoiseKey | None) -> list[UpdateTarget]:
        """Returns what an update changes, one target per tensor."""
        rounding = self.space.rounding_of(key)
        shares = [decay if decays else 0.0 for decays in self.space.decays]
        return [UpdateTarget(p, i, shares[i], rounding) for i, p in enumerate(self.space.held)]

    def prepare(self) -> None:
        """As `ParameterSpace.prepare`."""
        if self.space.offloaded:
            raise OffloadRefused(
                f"restore={self.name!r} displaces all weights together, and they are offloaded; use restore='streamed'"
            )

    def flush(self) -> None:
        """Applies to θ's tensors an update that waits until they are on the device again."""

    def entries(self, i: int, index: Tensor) -> Tensor:
        """Returns the entries of tensor `i` of θ at flat positions, float32 or float64."""
        return at_least_float32(self.space.tensors[i].reshape(-1)[index])

    def use_subspace(self, directions: Sequence[LowRank]) -> dict[str, list[Tensor]]:
        """Takes note that θ moves along these directions' V from now on; returns state that belongs in a checkpoint."""
        return {}

    def chunks(self, loss_fn: LossFn, points: Sequence[Terms]) -> list[Sequence[Terms]]:
        """Returns the points of an excursion in the parts that one forward pass measures each."""
        return [[terms] for terms in points]

    def fold(self) -> None:
        """Writes into θ's tensors what the policy holds beside them."""

    def fold_for_reader(self) -> None:
        """Writes into θ's tensors between two steps what the policy holds beside them, and takes note of it."""

    def close(self) -> None:
        """Leaves the model as it was before the policy was made, at θ."""

    def beside(self) -> tuple[list[str], list[Tensor]]:
        """Returns names and tensors of what θ is made of beside its tensors."""
        return [], []
