"""Base class of all methods: steps, their replay, state and its checkpoints."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from zo.noise import PERTURBATION, ROUNDING, NoiseKey
from zo.weights.anchor import Anchor, SeenUpdate, StartWeights, Survival, watched
from zo.weights.constraints import conflicts
from zo.weights.directions import FULL_SIZE, Direction
from zo.weights.executor import Executor
from zo.weights.loss import Loss, RecordedLosses
from zo.weights.offloaded import OffloadRefused, gigabytes, offload_of
from zo.weights.space import ParameterSpace
from zo.weights.updates import GroupedUpdate, ParameterUpdate

NORM_EPS = 1e-8
"""ζ of `step_norm=rms`; ours, the paper's could not be verified. It matters to slopes of its own size alone."""

Coefficients: TypeAlias = tuple[float, ...]
"""The scalars that a step's update is a function of, beside the seeds and the method's state."""


LossFn: TypeAlias = Executor
"""The loss of a step's mini-batch, as a method gets it for `ParameterSpace.measure`."""


class NonFiniteError(ArithmeticError):
    """A loss or coefficient was NaN or infinite: the run has collapsed. θ is where the step began."""

    def __init__(self, step: int, what: str, value: float):
        super().__init__(f"step {step}: {what} is {value}")
        self.step = step
        self.what = what
        self.value = value


@dataclass(frozen=True)
class Estimate:
    """Result of a step's forward passes.

    Attributes:
        loss: The mini-batch loss to report, at θ or as near to it as the method measures.
        coefficients: What `apply` needs.
        scalars: Signals to log, without a prefix.
    """

    loss: float
    coefficients: Coefficients
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepInfo(Estimate):
    """An applied step.

    Attributes:
        loss: The mini-batch's loss at θ, or as near to it as the method measures; in the closure's unit, as nats.
        coefficients: The step's slopes or weights, by which `apply` moved θ along the directions; loss per unit of z.
        scalars: The method's own signals by name, as BSZO's `shrinkage`; the run directory's page has their meaning.
        losses: What its forward passes measured, in order: all that is needed to replay it. In the closure's unit.
        forwards: Forward passes of this step, a count.
    """

    losses: tuple[float, ...] = ()
    forwards: int = 0

    @property
    def tied(self) -> bool:
        """Whether all of several forward passes gave the same loss, bit for bit, so that nothing was measured."""
        return self.forwards > 1 and len({*self.losses[: self.forwards]}) == 1


class Rates(NamedTuple):
    """Learning rate and weight decay of a group of tensors.

    Attributes:
        lr: η ≥ 0.
        weight_decay: λ ≥ 0.
    """

    lr: float
    weight_decay: float = 0.0

    @property
    def decay(self) -> float:
        """Share of θ that weight decay removes in a step."""
        return self.lr * self.weight_decay


class ZOOptimizer(ABC):
    """A zeroth-order method: `estimate` measures, `apply` moves θ.

    Args:
        params: θ.
        config: The method's own configuration.
        lr: η ≥ 0, of all tensors.
        seed: Seed of all directions.

    Raises:
        ValueError: If the space's restore policy does not allow what the method does.

    Attributes:
        step_index: The current step, from 0.
        rates: Learning rate and weight decay of each group of tensors; one group of all tensors unless changed. They
            may change between steps.
        group_of: Position in `rates` of each tensor's group.
        state: Tensors kept between steps, by name, one for each of θ; saved, loaded and counted here. It starts with
            the space's residuals under `rounding=compensated`, and methods add to it.
        numbers: Numbers kept between steps, by name; saved and loaded here. With `step_norm=rms` one of them is the
            running mean of squared slopes.
        series: Lists of numbers kept between steps, by name; saved and loaded here.
        step_scale: Factor of the current step's learning rate.
        start: θ₀, which `anchor=start` needs, or None.
        watches_rounding: Whether the next step measures how much of it is left after rounding: `survives` among its
            signals, of half-precision weights.
        advice: What a person should know of the settings with these weights, each a sentence that begins with its key.
    """

    unsaved: ClassVar[tuple[str, ...]] = ()
    """Attributes that a method adds: what the settings alone decide, and references to state. Others are refused."""

    def __init__(self, params: ParameterSpace, config: Any, *, lr: float, seed: int):
        restore, rounding = params.policy.name, params.rounding
        for key, right in conflicts(restore, rounding, **config.restore_needs()):
            given = {"restore": restore, "rounding": rounding}
            raise ValueError(f"{key}={given.get(key) or getattr(config, key)!r}: {right}")
        _check_state(params, config)
        params.policy.prepare()
        self.params = params
        self.config = config
        self.seed = seed
        self.step_index = 0
        self.rates = [Rates(lr, float(getattr(config, "weight_decay", 0.0)))]
        self.group_of = [0] * len(params.like)
        self.state: dict[str, list[Tensor]] = {}
        self.numbers: dict[str, float] = {}
        self.series: dict[str, list[float]] = {}
        self.step_scale = 1.0
        self.watches_rounding = False
        self.advice: list[str] = []
        self._survival: Survival | None = None
        self.start: StartWeights | None = None
        if getattr(config, "anchored", False):
            factors = params.policy.constraints.low_rank and config.accumulates_factors
            moved = [i for i, t in enumerate(params.like) if not factors or t.dim() < 2]
            self.start = StartWeights(params.settled(), moved, params.rereads)
        if params.residuals is not None:
            self.state["residual"] = params.residuals
        if getattr(config, "step_norm", "none") == "rms":
            self.numbers["slope_square"] = 0.0
        self._known = {*vars(self), *self.unsaved, "_known"}

    @abstractmethod
    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Measures around θ; θ is restored at the end, or by the next pass. May read, but not advance, `step_index`."""

    @abstractmethod
    def apply(self, coefficients: Coefficients) -> None:
        """Moves θ by the update that `coefficients` and the step's seeds determine, without a forward pass."""

    def step(self, loss: Executor | Loss | Callable[[], object]) -> StepInfo:
        """Makes one step on one mini-batch; before it and after it, however it ends, the tensors are θ.

        Args:
            loss: The mini-batch's loss at the current θ, or what makes its forward passes.

        Returns:
            The step's loss, coefficients, signals and number of forward passes.

        Raises:
            NonFiniteError: If a loss or a coefficient is not finite; θ is back where the step began.
            TypeError: If the method has an attribute that a resumed training would not have.
        """
        for name in vars(self).keys() - self._known:
            raise TypeError(
                f"{type(self).__name__}.{name}: is lost when a training resumes; keep it in self.numbers (a number),"
                " self.series (a list) or self.state (tensors), or name it in `unsaved` if the settings alone decide it"
            )
        executor = Executor.of(loss)
        executor.begin(self._finite)
        try:
            found = self.estimate(executor)
            for value in found.coefficients:
                self._finite("coefficient", value)
            self.advance(found.coefficients)
            if self._survival:
                self.params.policy.apply_deferred()  # else `survival` has not seen it
        finally:
            self.params.policy.finish_restore()
            survival, self._survival, self.watches_rounding = self._survival, None, False
        scalars, share = dict(found.scalars), survival.share if survival else None
        if share is not None:
            scalars["survives"] = share
        measured = tuple(executor.losses)
        return StepInfo(found.loss, found.coefficients, scalars, measured, executor.forwards)

    def replay(self, losses: Sequence[float]) -> StepInfo:
        """Repeats a step without its forward passes, at the θ, state and step index where it was made.

        θ ends with the same bits: under `restore=subtract` and `merged` the roundings of the probes are repeated, too,
        and under an exact policy, where they leave no trace, the probes are left out.

        Args:
            losses: What the step's forward passes measured, in order: `StepInfo.losses`.

        Returns:
            What the step returned.

        Raises:
            RuntimeError: If losses are not enough to repeat a step of this method.
            ValueError: If the step takes more or fewer losses.
        """
        if not self.config.replays:
            raise RuntimeError(
                "a step made by backpropagation cannot be replayed: no gradient is kept"
            )
        if len(losses) != (wanted := self.config.losses_per_step):
            raise ValueError(f"{len(losses)} losses for a step of {wanted}")
        with self.params.policy.unobserved():
            return self.step(RecordedLosses(losses))

    def advance(self, coefficients: Coefficients) -> None:
        """Applies the update that `coefficients` and the step's seeds determine, and goes on to the next step."""
        self.params.policy.apply_deferred()  # the last update, whose state may change now
        self.step_scale, moved = self.next_step_scale(coefficients)
        self.numbers |= moved
        self.apply(coefficients)
        self.step_index += 1

    def slope(self, coefficients: Coefficients) -> float:
        """Returns the slope that `step_norm=rms` takes the running mean square of: the mean coefficient."""
        return sum(coefficients) / len(coefficients)

    def next_step_scale(self, coefficients: Coefficients) -> tuple[float, dict[str, float]]:
        """Returns a step's factor, 1 or with `step_norm=rms` 1/(√v̂ + ζ), and the v that goes with it."""
        last = self.numbers.get("slope_square")
        if last is None:
            return 1.0, {}
        beta, slope = self.config.norm_beta, self.slope(coefficients)
        square = beta * last + (1 - beta) * slope * slope
        corrected = square / (1 - beta ** (self.step_index + 1))
        return 1 / (math.sqrt(corrected) + NORM_EPS), {"slope_square": square}

    def apply_update(self, update_of: Callable[[float], ParameterUpdate]) -> None:
        """Makes an update and, in the same pass, moves θ by −η · weight_decay · θ where decay applies.

        Args:
            update_of: Returns the update of a learning rate.
        """
        if len(self.rates) == 1:
            (rates,) = self.rates
            update, decay = update_of(rates.lr * self.step_scale), rates.decay
        else:
            updates = [update_of(rates.lr * self.step_scale) for rates in self.rates]
            decays = [
                self.rates[group].decay if decays else 0.0
                for group, decays in zip(self.group_of, self.params.decays, strict=True)
            ]
            update = GroupedUpdate([updates[group] for group in self.group_of], decays)
            decay = 0.0
        anchor = None
        if self.start is not None:
            shares = [self.rates[group].lr * self.config.anchor_decay for group in self.group_of]
            anchor = Anchor(self.start, shares, self.config.anchor_norm == "l1")
        if self.watches_rounding and self.params.rounding != "compensated":
            of = watched(self.params.matrices, self.params.like)
            self._survival = Survival(of) if of else None
        if anchor or self._survival:
            update = SeenUpdate(update, anchor, self._survival)
        key = NoiseKey(self.seed, ROUNDING, self.step_index, direction=0)  # of bits that round
        self.params.apply_update(update, decay, key)

    def direction(self, i: int = 0) -> Direction:
        """Returns direction `i` of the current step."""
        return self.direction_at(self.step_index, i)

    def direction_at(self, step: int, i: int = 0) -> Direction:
        """Returns direction `i` of a step."""
        key = NoiseKey(self.seed, PERTURBATION, step, i)
        return FULL_SIZE[self.config.directions](key, self.params.engine)

    def live_state(self) -> dict[str, Any]:
        """Returns all that the next step depends on beside θ and the configuration; tensors are not copied.

        Raises:
            RuntimeError: If the tensors are not θ, since a pass over them failed.
        """
        self.params.policy.check_whole()
        tensors = {name: [*of] for name, of in self.state.items()}
        return {"step_index": self.step_index, **self.numbers, **self.series, **tensors}

    def state_dict(self) -> dict[str, Any]:
        """Returns `live_state` with its tensors copied to the host."""
        state: dict[str, Any] = tree_map_only(
            Tensor, lambda t: t.to("cpu", copy=True), self.live_state()
        )
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`.

        Raises:
            ValueError: If it is of other settings: lacks something, has more, or has tensors of other shapes or dtypes.
        """
        keys = self.live_state().keys()
        for key in sorted(keys ^ state.keys()):
            what = "lacks" if key in keys else "has"
            raise ValueError(f"state: {what} {key}; it was made with other settings")
        self.params.policy.apply_deferred()
        self.params.policy.merge_factors()  # of θ, not of the state that is loaded
        found = {name: [*state[name]] for name in self.state}
        for name, tensors in self.state.items():
            mine, given = ([(tuple(t.shape), t.dtype) for t in of] for of in (tensors, found[name]))
            if mine != given:
                pairs = zip(given, mine, strict=False)
                was, now = next(((a, b) for a, b in pairs if a != b), (len(given), len(mine)))
                raise ValueError(f"state: {name} of {was}, but the method here needs {now}")
        self.step_index = int(state["step_index"])
        self.numbers |= {name: state[name] for name in self.numbers}
        self.series |= {name: state[name] for name in self.series}
        for name, tensors in self.state.items():
            for t, saved in zip(tensors, found[name], strict=True):
                t.copy_(saved)

    def state_bytes(self) -> int:
        """Returns the bytes of state kept between steps that grow with the model."""
        return sum(t.numel() * t.element_size() for of in self.state.values() for t in of)

    def _finite(self, what: str, value: float) -> float:
        if not math.isfinite(value):
            raise NonFiniteError(self.step_index, what, value)
        return value


def _check_state(params: ParameterSpace, config: Any) -> None:
    """Raises OffloadRefused if a method keeps more state on the device than offloaded weights take there."""
    if not params.offloaded:
        return
    if not config.replays:
        raise OffloadRefused(f"{config.name} backpropagates, which needs all weights together")
    if config.state_tensors:
        dtype = state_dtype(getattr(config, "state_dtype", "param"))
        each = sum(p.numel() * (dtype or p.dtype).itemsize for p in params.like)
        state, offload = config.state_tensors * each, offload_of(params.parameters)
        if offload is not None and state > offload.budget:
            raise OffloadRefused(
                f"{config.name} keeps {gigabytes(state)} of state on the device, where offloaded weights take"
                f" {gigabytes(offload.budget)}; take one whose state is small, as mezo or bszo"
            )


def state_dtype(name: str) -> torch.dtype | None:
    """Returns the dtype that `param` (None: the parameters' own) or `float32` stands for."""
    return {"param": None, "float32": torch.float32}[name]
