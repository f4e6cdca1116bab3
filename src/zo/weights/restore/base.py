"""The interface of restore policies: probes, restoration and updates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import ClassVar, TypeAlias

from torch import Tensor, nn

from zo.noise import NoiseKey, PhiloxEngine, TensorTable
from zo.weights.constraints import RESTORE_POLICIES, Constraints
from zo.weights.directions import LowRank, Terms, at_least_float32
from zo.weights.loss import Loss
from zo.weights.offloaded import OffloadRefused
from zo.weights.tensors import TrainableTensors
from zo.weights.updates import ParameterUpdate, Rounding, UpdateTargets, table_of

Excursion: TypeAlias = Sequence[Terms]
"""Points that are visited one after another before θ comes back; a point without terms is θ."""


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
    """θ, displaced; see `RestorePolicy.excursion`."""

    @abstractmethod
    def to(self, terms: Terms) -> None:
        """Displaces to θ + Σ c_j z_j, counted from θ and not from the previous point."""

    def displace_to(self, points: Sequence[Terms]) -> None:
        """Displaces to the points of one pass, see `RestorePolicy.passes`."""
        (terms,) = points
        self.to(terms)

    def losses(self, loss: Loss, n: int) -> list[float]:
        """Returns the losses at the n points to which θ is displaced, by one pass."""
        return [loss()]


class Unmoved(Probe):
    """Leaves θ where it is: a replay under an exact policy measures nothing."""

    def to(self, terms: Terms) -> None:
        """Does nothing."""


class RestorePolicy(Probe):
    """How the tensors of θ are displaced for probes and restored after them.

    What a policy cannot do stands in `zo.weights.constraints`. Its constructor refuses what only the tensors and the
    model show.

    Args:
        space: θ.
        model: Holds the tensors and computes the loss, if it is known.

    Attributes:
        name: Value of `precision.restore`.
        local: The list of `TrainableTensors.local`.
        constraints: What the policy can do.
        observed: Whether losses are measured; False while a step is replayed.
        branch_budget: Bytes that the points of one pass may take together.
        merged_for_reader: Whether `merge_for_reader` has written since this was set to False.
    """

    name: ClassVar[str]
    branch_budget = math.inf
    merged_for_reader = False

    def __init__(self, space: TrainableTensors, model: nn.Module | None):
        self.space = space
        self.local = space.local
        self.constraints: Constraints = RESTORE_POLICIES[self.name]
        self.observed = True

    @contextmanager
    def excursion(self) -> Iterator[Probe]:
        """Lends θ to a probe; afterwards θ is restored, at once or by the next pass, also when the body raises.

        Yields:
            A `Probe`, whose `to` displaces to θ + Σ c_j z_j.
        """
        if not self.observed and self.constraints.exact:
            yield Unmoved()
            return
        self.begin()
        try:
            yield self
        finally:
            self.restore()

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """While the body runs, no loss is measured, and exact probes are left out."""
        self.observed = False
        try:
            yield
        finally:
            self.observed = True

    def check_whole(self) -> None:
        """Raises RuntimeError if a pass that failed has left tensors elsewhere than at θ."""

    def begin(self) -> None:
        """Prepares a probe: called before the first `to`."""

    @abstractmethod
    def restore(self) -> None:
        """Restores θ, or leaves that to the next pass over the weights. Called however the probe ended."""

    def finish_restore(self) -> None:
        """Makes a restoration that `restore` left to the next pass."""

    def apply_update(
        self, update: ParameterUpdate, decay: float, key: NoiseKey | None, pending: Terms = ()
    ) -> None:
        """Updates θ as `ParameterSpace.apply_update`, each tensor once its `pending` displacement is undone."""
        residuals = None if key is None else self.space.residuals
        with self.space.stopwatch.running("weights"):
            update.apply_to_all(self.targets(decay, key), pending, residuals)

    def targets(self, decay: float, key: NoiseKey | None) -> UpdateTargets:
        """Returns what an update changes, one target per tensor."""
        rounding = None
        if key is not None and self.space.rounding == "stochastic":
            assert isinstance(self.space.engine, PhiloxEngine)
            rounding = Rounding(self.space.engine, key)
        return UpdateTargets(self.local, self.space.decays, decay, rounding, self._table)

    @cached_property
    def _table(self) -> TensorTable | None:
        """Passes over all tensors in place."""
        return table_of(self.space.engine, self.local, self.local, None, self.space.decays)

    def prepare(self) -> None:
        """Prepares the tensors for updates: called once, before the first of them.

        Raises:
            OffloadRefused: If the policy cannot move offloaded tensors.
        """
        if self.space.offloaded:
            raise OffloadRefused(
                f"restore={self.name!r} displaces all weights together, and they are offloaded; use restore='streamed'"
            )

    def apply_deferred(self) -> None:
        """Applies the last update to the offloaded tensors that have not been fetched since."""

    def entries(self, i: int, index: Tensor) -> Tensor:
        """Returns the entries of tensor `i` of θ at flat positions, float32 or float64."""
        return at_least_float32(self.space.settled()[i].reshape(-1)[index])

    def passes(self, loss: Loss, points: Sequence[Terms]) -> list[Sequence[Terms]]:
        """Returns the points of an excursion in the parts that one forward pass measures each."""
        return [[terms] for terms in points]

    def use_subspace(self, directions: Sequence[LowRank]) -> dict[str, list[Tensor]]:
        """Sets the directions whose V the next updates share; returns state that belongs in a checkpoint."""
        return {}

    def merge_factors(self) -> None:
        """Writes factors that are kept beside the weights into them, rounded once."""

    def merge_for_reader(self) -> None:
        """Merges the factors between two steps, and sets `merged_for_reader`."""

    def factor_tensors(self) -> tuple[list[str], list[Tensor]]:
        """Returns names and tensors of the factors that are not 0."""
        return [], []

    def close(self) -> None:
        """Merges the factors and restores the model's own forwards and parameters."""
