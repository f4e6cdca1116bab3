"""What every zeroth-order method shares: counting forward passes, refusing non-finite numbers, replaying a step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from zo.directions import Direction, Gaussian
from zo.noise import PERTURBATION, NoiseKey
from zo.params import ParamSpace

LossFn: TypeAlias = Callable[[], float]
"""Loss of one fixed mini-batch at the current θ: eval mode, no gradient, a Python float."""

Record: TypeAlias = tuple[float, ...]
"""The scalars that a step's update is a function of, beside the seeds."""


class NonFiniteError(ArithmeticError):
    """A loss or coefficient was NaN or infinite: the run has collapsed. θ is where the step began."""

    def __init__(self, step: int, what: str, value: float):
        super().__init__(f"step {step}: {what} is {value}")
        self.step = step
        self.what = what
        self.value = value


@dataclass(frozen=True)
class Estimate:
    """What the forward passes of a step found.

    Attributes:
        loss: The mini-batch loss to report, at θ or as near to it as the method measures.
        record: What `apply` needs.
        scalars: Signals to log, without a prefix.
    """

    loss: float
    record: Record
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepInfo(Estimate):
    """An applied step.

    Attributes:
        forwards: Forward passes of this step.
    """

    forwards: int = 0


class ZOOptimizer(ABC):
    """A zeroth-order method: `estimate` measures, `apply` moves θ.

    Args:
        params: θ.
        config: The method's own configuration.
        lr: η > 0.
        seed: Seed of all directions.
    """

    trains: ClassVar[bool] = True
    """False for a baseline that makes no step at all."""

    def __init__(self, params: ParamSpace, config: Any, *, lr: float, seed: int):
        self.params = params
        self.lr = lr
        self.seed = seed
        self.step_index = 0

    @property
    @abstractmethod
    def forwards_per_step(self) -> int:
        """Forward passes of one step."""

    @abstractmethod
    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Measures around θ and leaves θ where it was. May read, but not advance, `step_index`."""

    @abstractmethod
    def apply(self, record: Record) -> None:
        """Moves θ by the update that `record` and the step's seeds determine, without a forward pass."""

    def step(self, loss_fn: LossFn) -> StepInfo:
        """Makes one step on one mini-batch.

        Args:
            loss_fn: The mini-batch's loss at the current θ; called `forwards_per_step` times.

        Returns:
            The step's loss, record, signals and number of forward passes.

        Raises:
            NonFiniteError: If a loss or a coefficient is not finite; θ is back where the step began.
        """
        forwards = 0

        def counted() -> float:
            nonlocal forwards
            forwards += 1
            return self._finite("loss", loss_fn())

        found = self.estimate(counted)
        for value in found.record:
            self._finite("coefficient", value)
        self.replay(found.record)
        return StepInfo(found.loss, found.record, found.scalars, forwards)

    def replay(self, record: Record) -> None:
        """Repeats the step that left `record`, at the θ and step index where it was made."""
        self.apply(record)
        self.step_index += 1

    def direction(self, i: int = 0) -> Direction:
        """Returns direction `i` of the current step."""
        return Gaussian(NoiseKey(self.seed, PERTURBATION, self.step_index, i))

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the next step depends on beside θ and the configuration."""
        return {"step_index": self.step_index}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`."""
        self.step_index = int(state["step_index"])

    def state_bytes(self) -> int:
        """Returns the bytes of state kept between steps that grow with the model."""
        return 0

    def _finite(self, what: str, value: float) -> float:
        if not math.isfinite(value):
            raise NonFiniteError(self.step_index, what, value)
        return value


class Method(NamedTuple):
    """A registered method.

    Attributes:
        config: Dataclass of the method's configuration; field defaults are the method's defaults.
        optimizer: The class that runs it.
    """

    config: type[Any]
    optimizer: type[ZOOptimizer]
