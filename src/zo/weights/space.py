"""The trainable tensors of a model, θ: moved along directions, lent out for probing, brought back."""

import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from zo.noise import NoiseKey, PhiloxEngine, engine
from zo.weights.directions import Terms
from zo.weights.factors import Factors
from zo.weights.restore import EXACT, POLICIES, RESTORE_POLICIES, Excursion, Unmoved
from zo.weights.stopwatch import Stopwatch
from zo.weights.streamed import Stream
from zo.weights.updates import LinearUpdate, ParameterUpdate, Rounding, UpdateTarget, add_

ROUNDINGS = ("nearest", "stochastic", "compensated")


class ParameterSpace:
    """θ: tensors in a fixed order, each storage once, moved along directions in place.

    Args:
        named: Name and tensor pairs. A tensor that shares its storage with an earlier one (tied weights) is left out.
        restore: How θ comes back after a probe. `subtract` subtracts what was added, as the paper's code does: no
            extra memory, and in half precision a drift of about one rounding per probe. `merged` makes the same moves
            with the same roundings, bit for bit, but the last one only together with the next probe's or the update,
            in one pass over the weights; until then the tensors are not θ (see `settle`). `snapshot` copies θ back from
            a copy: exact in every dtype, and twice the memory of θ. `streamed` never moves θ: each module computes
            with a displaced copy of its own tensors (`zo.weights.streamed`), exact, at one module's memory.
            `factors` never writes a probe into θ, either: the model's layers compute with directions of low rank
            beside it (see `zo.weights.factors`), exact in every dtype.
        exempt: Names of the tensors that weight decay leaves alone.
        noise: What draws directions, `torch` or `philox`, see `zo.noise`.
        rounding: How an update is rounded to the tensors' dtype: to `nearest`; `stochastic`, up or down at random
            such that the mean is right; or `compensated`, to nearest, but what that loses is kept, float32, and added
            to the next update. Probes are always rounded to nearest.
        model: Holds the tensors and computes the loss; `streamed` and `factors` need it, and `factors` changes it.

    Attributes:
        names: One per tensor.
        parameters: The tensors as given: what backpropagation leaves its gradients in.
        tensors: The same storages without gradient: what is moved.
        decays: Whether weight decay applies, one per tensor.
        restore: As given.
        engine: What draws on the first tensor's device.
        rounding: As given.
        residuals: c, what rounding has lost of all updates so far, float32, one tensor per tensor of θ, under
            `rounding=compensated`, else None. They are state of the run, and belong into its checkpoints.
        stream: What displaces the model's modules under `restore=streamed`, else None.
        factors: What θ is beside its tensors under `restore=factors`, else None.
        owed: By what the tensors have yet to move to be θ, under `restore=merged`.
        passes: Number of passes over the weights; displacing all modules, one after another, is one.

    Raises:
        ValueError: On an unknown restore policy, noise or rounding, no tensor at all, a model that is missing or that
            `streamed` or `factors` cannot compute with, stochastic rounding without Philox noise, compensated rounding
            under `factors`, or either of a float32 tensor.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        restore: str = "subtract",
        exempt: Collection[str] = (),
        noise: str = "torch",
        rounding: str = "nearest",
        model: nn.Module | None = None,
    ):
        if restore not in RESTORE_POLICIES:
            raise ValueError(f"restore={restore!r}: must be one of {', '.join(RESTORE_POLICIES)}")
        unique: dict[int, tuple[str, Tensor]] = {}
        for name, tensor in named:
            unique.setdefault(tensor.data_ptr(), (name, tensor))
        kept = list(unique.values())
        if not kept:
            raise ValueError("no trainable tensors: at least one is needed")
        self.names = [name for name, _ in kept]
        self.parameters = [tensor for _, tensor in kept]
        self.tensors = [tensor.detach() for tensor in self.parameters]
        self.decays = [name not in exempt for name in self.names]
        self.restore = restore
        self.engine = engine(noise, self.tensors[0].device.type)
        self.rounding = rounding
        if rounding not in ROUNDINGS:
            raise ValueError(f"rounding={rounding!r}: must be one of {', '.join(ROUNDINGS)}")
        if rounding == "stochastic" and not isinstance(self.engine, PhiloxEngine):
            raise ValueError("rounding='stochastic': needs noise='philox'")
        if rounding != "nearest" and any(t.dtype == torch.float32 for t in self.tensors):
            raise ValueError(f"rounding={rounding!r}: only bfloat16 and float16 are rounded so")
        if rounding == "compensated" and restore == "factors":
            raise ValueError("rounding='compensated': restore=factors adds updates up in float32")
        self.residuals = self.full(0.0, torch.float32) if rounding == "compensated" else None
        self._stopwatch = Stopwatch(self.tensors[0].device)
        self.passes = 0
        self.owed: Terms = ()
        self._snapshot: list[Tensor] | None = None
        self._observed = True
        self.stream: Stream | None = None
        self.factors: Factors | None = None
        if restore in ("streamed", "factors"):
            if model is None:
                raise ValueError(f"restore={restore}: the tensors' model is needed")
            if restore == "streamed":
                self.stream = Stream(model, self.tensors, self.names)
            else:
                self.factors = Factors(model, self.names, self.tensors)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        restore: str = "subtract",
        noise: str = "torch",
        rounding: str = "nearest",
    ) -> "ParameterSpace":
        """Returns the space of all parameters of `model` that require gradients, in `named_parameters` order.

        Weight decay leaves alone what its module makes a bias (the attribute `bias`) and all that belongs to a
        normalisation layer: a module one of whose classes is called ...Norm.
        """
        trainable = ((n, p) for n, p in model.named_parameters() if p.requires_grad)
        return cls(trainable, restore, _not_decayed(model), noise, rounding, model)

    @property
    def seconds(self) -> float:
        """Time spent in passes over the weights, displacing modules included; of a GPU, what is done."""
        return self._stopwatch.seconds

    @property
    def numel(self) -> int:
        """n: number of trainable values."""
        return sum(t.numel() for t in self.tensors)

    def add_(self, terms: Terms, decay: float = 0.0, update: NoiseKey | None = None) -> None:
        """Moves θ by Σ c_j z_j in one pass: float32 arithmetic, rounded to the tensors' dtype once.

        Under Philox noise Gaussian terms are drawn in the same pass that adds them. A way back that `restore=merged`
        still owes is made before that, tensor by tensor, and rounded for itself, to nearest.

        Args:
            terms: (c_j, z_j) pairs; an empty sequence adds nothing.
            decay: Share of θ, ≥ 0, that is taken away in the same pass where weight decay applies.
            update: Of an update, the key of the bits that round it if the space rounds at random. A probe has none, and
                is always rounded to nearest and not compensated.

        Raises:
            ValueError: If θ is to decay under `restore=factors`.
        """
        if self.factors is not None:
            self._add_beside(terms, decay)
        elif terms or decay or self.owed:
            self.carry_out(LinearUpdate(terms), decay, update if terms or decay else None)

    def carry_out(
        self, change: ParameterUpdate, decay: float = 0.0, update: NoiseKey | None = None
    ) -> None:
        """Changes θ and a method's own state in one pass, tensor by tensor, each once it is back at θ.

        Args:
            change: See `ParameterUpdate`.
            decay: As in `add_`.
            update: As in `add_`.
        """
        owed, self.owed = self.owed, ()
        rounding = self._rounding(update)
        residuals = None if update is None else self.residuals
        with self.timed():
            for i, p in enumerate(self.tensors):
                at = UpdateTarget(p, i, decay if self.decays[i] else 0.0, rounding)
                if residuals is None:
                    change.make(at, owed)
                else:
                    change.compensate(at, owed, residuals[i])

    def settle(self) -> None:
        """Makes the move that `restore=merged` still owes, if there is one: the tensors are θ then.

        Outside of `ZOOptimizer.step` nothing is owed.
        """
        self.add_([])

    def fold(self) -> None:
        """Writes into θ's tensors what `factors` holds beside them, rounded once."""
        if self.factors is not None:
            with self.timed():
                self.factors.fold()

    def parts(self) -> tuple[list[str], list[Tensor]]:
        """Returns names and tensors of all that θ is: its tensors, and what factors hold beside them, if they do."""
        if self.factors is None or not self.factors.look():
            return self.names, self.tensors
        beside = [i for i, p in enumerate(self.tensors) if p.dim() > 1]
        names = [f"{self.names[i]} (factor)" for i in beside]
        return self.names + names, self.tensors + [self.factors.a[i] for i in beside]

    def full(self, value: float, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Returns tensors of θ's shapes and devices, in its dtype unless another is given, filled with `value`."""
        return [torch.full_like(p, value, dtype=dtype) for p in self.tensors]

    def non_finite(self) -> tuple[str, float] | None:
        """Returns name and largest magnitude (nan or inf) of the first tensor with a non-finite entry, or None."""
        names, tensors = self.parts()
        largest = torch.stack([m.float() for m in torch._foreach_norm(tensors, math.inf)])
        if bool(largest.isfinite().all()):  # the only wait for the device where all is well
            return None
        values = zip(names, largest.tolist(), strict=True)
        return next((name, value) for name, value in values if not math.isfinite(value))

    @contextmanager
    def excursion(self) -> Iterator[Excursion]:
        """Lends θ out for probing; on exit θ is back, or its way back is owed, also when the body raises.

        Yields:
            An `Excursion`, whose `to` moves to θ + Σ c_j z_j.
        """
        trip: Excursion
        if self.restore in EXACT and not self._observed:
            trip = Unmoved(self)
        else:
            trip = POLICIES[self.restore](self)
        try:
            yield trip
            trip.check()
        finally:
            trip.back()

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """While the body runs nobody measures: excursions that would leave no trace in θ are not made."""
        self._observed = False
        try:
            yield
        finally:
            self._observed = True

    def take_snapshot(self) -> list[Tensor]:
        """Copies θ into the space's spare buffers, made at the first call, and returns them."""
        if self._snapshot is None:
            self._snapshot = [torch.empty_like(p) for p in self.tensors]
        torch._foreach_copy_(self._snapshot, self.tensors)
        return self._snapshot

    def _add_beside(self, terms: Terms, decay: float) -> None:
        """Moves θ as `add_` does: its matrices beside their tensors, biases and norms in place."""
        assert self.factors is not None
        if decay:
            raise ValueError("restore=factors: weight decay would write every weight at every step")
        if terms:
            with self.timed():
                left = self.factors.add_(terms)
                for i, p in enumerate(self.tensors):
                    if p.dim() < 2:
                        add_(p, p, i, left)

    def _rounding(self, update: NoiseKey | None) -> Rounding | None:
        """Returns how an update with this key is rounded; None is to nearest."""
        if update is None or self.rounding != "stochastic":
            return None
        assert isinstance(self.engine, PhiloxEngine)
        return Rounding(self.engine, update)

    def timed(self, passes: int = 1) -> AbstractContextManager[None]:
        """Counts a pass over the weights, or none where it is only a part of one, and its time."""
        self.passes += passes
        return self._stopwatch.running()


def _not_decayed(model: nn.Module) -> set[str]:
    """Returns the full names of biases and of all tensors of normalisation layers."""
    found = set()
    for prefix, module in model.named_modules():
        norm = any(kind.__name__.endswith("Norm") for kind in type(module).__mro__)
        for name, _ in module.named_parameters(recurse=False):
            if norm or name == "bias":
                found.add(f"{prefix}.{name}" if prefix else name)
    return found
