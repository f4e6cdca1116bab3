"""The trainable tensors of a model, θ: moved along directions, lent to probes."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from zo.noise import NoiseKey, PhiloxEngine, engine
from zo.weights.constraints import RESTORE_POLICIES, ROUNDINGS, conflicts
from zo.weights.directions import LowRank
from zo.weights.guarded import FactoredParameter
from zo.weights.offload.parameter import OffloadedParameter
from zo.weights.restore import POLICIES, Excursion, LossFn, Probe, SharedLoss, Unmoved
from zo.weights.sharded import keep_sharded, part_of, parts_engine, shared_as, whole
from zo.weights.stopwatch import Stopwatch
from zo.weights.storage import distinct
from zo.weights.updates import LinearUpdate, ParameterUpdate, Rounding


class ParameterSpace:
    """θ: tensors in a fixed order, each storage once, moved along directions in place.

    Args:
        named: Name and tensor pairs. A tensor that shares its storage with an earlier one (tied weights) is left out.
        restore: Name of the policy that makes probes and restores θ, see `zo.weights.restore`: `subtract`, `merged`,
            `snapshot`, `streamed` or `factors`.
        exempt: Names of the tensors that weight decay leaves alone.
        noise: What draws directions, `torch` or `philox`, see `zo.noise`.
        rounding: How an update is rounded to the tensors' dtype: to `nearest`; `stochastic`, up or down at random
            such that the mean is right; or `compensated`, to nearest, but what that loses is kept, float32, and added
            to the next update. Probes are always rounded to nearest.
        model: Holds the tensors and computes the loss; `streamed` and `factors` need it, and `factors` changes it.

    Attributes:
        names: One per tensor.
        parameters: The tensors as given: what backpropagation leaves its gradients in.
        held: The same storages without gradient: what is moved. Of a DTensor, the part that this process holds. Of an
            offloaded tensor, what is outside of the device; it may lack an update, see `tensors`.
        like: One per tensor, on the device that computes with it, of its shape and dtype: `held`, or of an offloaded
            tensor one without values.
        numel: n, the number of trainable values, those of other processes' parts included.
        decays: Whether weight decay applies, one per tensor.
        matrices: Whether a tensor is a 2-D weight of neither an embedding nor what decay leaves alone, one per tensor.
        restore: As given.
        policy: The restore policy.
        engine: What draws on the tensors' devices.
        sharded: Whether this process holds only a part of some tensors.
        offloaded: Bytes of θ that lie outside of the device.
        rounding: As given.
        residuals: c, what rounding has lost of all updates so far, float32, one tensor per tensor of θ, under
            `rounding=compensated`, else None. They are state of the run, and belong into its checkpoints.
        branch_budget: Bytes that branches of one forward pass may take together, under `factors`.
        rereads: Position -> function that reads a tensor of the start again from its file, of those that have one.
        passes: Number of passes over the weights; displacing all modules, one after another, is one.

    Raises:
        ValueError: On an unknown restore policy, noise or rounding, on no tensor at all, on a tensor that cannot be
            moved in place, and on what the policy or the rounding cannot do with the tensors, the noise or the model.
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
        for setting, value, allowed in (
            ("restore", restore, RESTORE_POLICIES),
            ("rounding", rounding, ROUNDINGS),
        ):
            if value not in allowed:
                raise ValueError(f"{setting}={value!r}: must be one of {', '.join(allowed)}")
        if model is not None:
            keep_sharded(model)
        kept = distinct(named)
        if not kept:
            raise ValueError("no trainable tensors: at least one must require a gradient")
        if name := next((name for name, t in kept if isinstance(t, FactoredParameter)), None):
            raise ValueError(
                f"{name}: another optimizer with restore='factors' moves it; call that one's close() first"
            )
        self.names = [name for name, _ in kept]
        self.parameters = [tensor for _, tensor in kept]
        held = [part_of(tensor) for tensor in self.parameters]
        self.held = [tensor.detach() for tensor, _ in held]
        self.like = [
            _without_values(p) if isinstance(p, OffloadedParameter) else t
            for p, t in zip(self.parameters, self.held, strict=True)
        ]
        self._parts = {i: part for i, (_, part) in enumerate(held) if part is not None}
        parts = self._parts
        if parts and not RESTORE_POLICIES[restore].shards:
            name = self.names[min(parts)]
            raise ValueError(f"restore={restore!r}: {name} is sharded; snapshot or merged move it")
        self.decays = [name not in exempt for name in self.names]
        embedded = _embedded(model)
        self.matrices = [
            t.dim() == 2 and decays and id(t) not in embedded
            for t, decays in zip(self.parameters, self.decays, strict=True)
        ]
        self.restore = restore
        devices = sorted({str(t.device) for t in self.like})
        self.engine = engine(noise, *devices)
        self.sharded = bool(parts)
        if parts:
            self.engine = parts_engine(self.engine, parts)
        wholes = {i: part.whole.numel() for i, part in parts.items()}
        self.numel = sum(wholes.get(i, t.numel()) for i, t in enumerate(self.held))
        self.rounding = rounding
        half = all(t.dtype in (torch.bfloat16, torch.float16) for t in self.held)
        philox = isinstance(self.engine, PhiloxEngine)
        for setting, right in conflicts(restore, rounding, half=half, philox=philox):
            raise ValueError(f"{setting}={getattr(self, setting)!r}: {right}")
        self.residuals = self.full(0.0, torch.float32) if rounding == "compensated" else None
        away = [p for p in self.parameters if isinstance(p, OffloadedParameter)]
        self.offloaded = sum(p.numel() * p.element_size() for p in away)
        if self.offloaded and self.residuals is not None:
            raise ValueError(
                f"rounding={rounding!r}: keeps 4 bytes per weight on the device, and the weights are offloaded; use"
                " nearest or stochastic"
            )
        self._stopwatch = Stopwatch(devices)
        self.branch_budget = math.inf
        self.rereads: dict[int, Callable[[], Tensor]] = {}
        self.passes = 0
        self._observed = True
        self.policy = POLICIES[restore](self, model)

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
    def tensors(self) -> list[Tensor]:
        """`held`, once they are θ."""
        self.policy.flush()
        return self.held

    @property
    def seconds(self) -> float:
        """Time spent in passes over the weights, displacing modules included; of a GPU, what is done."""
        return self._stopwatch.seconds("weights")

    @property
    def measuring_seconds(self) -> float:
        """Time spent in forward passes, and in backward ones if there are any, without that of `seconds`."""
        return self._stopwatch.seconds("loss")

    def carry_out(
        self, change: ParameterUpdate, decay: float = 0.0, update: NoiseKey | None = None
    ) -> None:
        """Updates θ and a method's own state in one pass: float32 arithmetic, rounded to the tensors' dtype once.

        A displacement that `restore=merged` has not yet undone is subtracted before that, and rounded for itself, to
        nearest.

        Args:
            change: See `ParameterUpdate`.
            decay: Share of θ, ≥ 0, that is taken away in the same pass where weight decay applies.
            update: Of an update, the key of the bits that round it if the space rounds at random. A probe has none, and
                is always rounded to nearest and not compensated.

        Raises:
            ValueError: If θ is to decay under `restore=factors`.
        """
        if decay or not isinstance(change, LinearUpdate) or change.of:
            self.policy.update(change, decay, update)

    def settle(self) -> None:
        """Undoes a displacement that `restore=merged` has left to the next pass: the tensors are θ then.

        Outside of `ZOOptimizer.step` there is none.
        """
        self.policy.settle()

    def prepare(self) -> None:
        """Makes ready what steps change: called once, before the first of them.

        Raises:
            OffloadRefused: If the restore policy cannot move θ where it lies.
        """
        self.policy.prepare()

    def flush(self) -> None:
        """Applies an update that waits until an offloaded tensor is on the device again; what it reads may change."""
        self.policy.flush()

    def use_subspace(self, directions: Sequence[LowRank]) -> dict[str, list[Tensor]]:
        """Says along which V θ moves from now on; returns what the policy keeps of that, by its name in the state."""
        return self.policy.use_subspace(directions)

    def fold(self) -> None:
        """Writes into θ's tensors what `factors` holds beside them, rounded once."""
        self.policy.fold()

    def parts(self) -> tuple[list[str], Iterable[Tensor]]:
        """Returns names and tensors of all that θ is: its tensors, and what `factors` holds beside them."""
        names, tensors = self.policy.beside()
        if self.offloaded:  # in memory one after another
            return self.names + names, chain(map(self.whole, range(len(self.held))), tensors)
        return self.names + names, self.held + tensors

    def wholes(self) -> tuple[list[str], Iterable[Tensor]]:
        """Returns what `parts` does, one after another, sharded tensors put together; all processes take them."""
        if not self.sharded:
            return self.parts()
        names, tensors = self.policy.beside()
        return self.names + names, chain(map(whole, self.parameters), tensors)

    def whole(self, i: int) -> Tensor:
        """Returns tensor i in memory: of an offloaded one, a copy."""
        p = self.parameters[i]
        return p.whole() if isinstance(p, OffloadedParameter) else self.held[i]

    def shared(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns tensors of this process, one per tensor of θ, as DTensors where those of θ are."""
        return [shared_as(p, t) for p, t in zip(self.parameters, tensors, strict=True)]

    def in_parts(self, i: int) -> bool:
        """Returns whether this process holds only a part of tensor `i`."""
        return i in self._parts

    def own(self, i: int, tensor: Tensor) -> Tensor:
        """Returns this process's part of a tensor that has the shape of tensor `i`, or all of it."""
        return tensor[self._parts[i].place] if i in self._parts else tensor

    def full(self, value: float, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Returns tensors of θ's shapes and devices, in its dtype unless another is given, filled with `value`."""
        return [torch.full_like(p, value, dtype=dtype) for p in self.like]

    def non_finite(self) -> tuple[str, float] | None:
        """Returns name and largest magnitude (nan or inf) of the first tensor with a non-finite entry, or None."""
        names, tensors = self.parts()
        if self.offloaded:  # one is in memory at a time
            norms = [torch.linalg.vector_norm(t, math.inf) for t in tensors]
        else:
            norms = list(torch._foreach_norm([*tensors], math.inf))
        largest = torch.stack([m.to(norms[0].device, torch.float32) for m in norms])
        if bool(largest.isfinite().all()):  # the only wait for the device where all is well
            return None
        values = zip(names, largest.tolist(), strict=True)
        return next((name, value) for name, value in values if not math.isfinite(value))

    @contextmanager
    def excursion(self) -> Iterator[Probe]:
        """Lends θ to a probe; afterwards it is restored, or that is left to the next pass, also when the body raises.

        Yields:
            A `Probe`, whose `to` displaces to θ + Σ c_j z_j.
        """
        if not self._observed and RESTORE_POLICIES[self.restore].exact:
            yield Unmoved()
            return
        self.policy.begin()
        try:
            yield self.policy
        finally:
            self.policy.restore()

    def measure(self, loss_fn: LossFn, excursions: Sequence[Excursion]) -> list[float]:
        """Returns the losses at the points of excursions that do not depend on one another, in their order.

        Under `subtract` and `merged` the rounding of θ depends on which points share an excursion.

        Args:
            loss_fn: The mini-batch's loss. If it is a `SharedLoss`, the forward passes are divided over processes.
            excursions: Points of each, see `Probe.losses`. θ alone, `[[]]`, is measured where it is.
        """
        if isinstance(loss_fn, SharedLoss):
            return loss_fn.measure(self, excursions)
        found: list[float] = []
        for points in excursions:
            if not any(points):
                found += [loss_fn() for _ in points]
                continue
            with self.excursion() as probe:
                found += probe.losses(loss_fn, points)
        return found

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """While the body runs nobody measures: probes that would leave no trace in θ are not made."""
        self._observed = False
        try:
            yield
        finally:
            self._observed = True

    def rounding_of(self, update: NoiseKey | None) -> Rounding | None:
        """Returns how an update with this key is rounded; None is to nearest."""
        if update is None or self.rounding != "stochastic":
            return None
        assert isinstance(self.engine, PhiloxEngine)
        return Rounding(self.engine, update)

    def timed(self, passes: int = 1) -> AbstractContextManager[None]:
        """Counts a pass over the weights, or none where it is only a part of one, and its time."""
        self.passes += passes
        return self._stopwatch.running("weights")

    def measuring(self) -> AbstractContextManager[None]:
        """Counts the time of a forward pass; passes over the weights within it count as such."""
        return self._stopwatch.running("loss")


def _without_values(p: OffloadedParameter) -> Tensor:
    """Returns a tensor on the device that computes with a parameter, of its shape and dtype, that takes no memory."""
    return torch.zeros((), dtype=p.dtype, device=p.offload.device).expand(p.shape)


def _embedded(model: nn.Module | None) -> set[int]:
    """Returns the ids of the tensors that embeddings hold."""
    modules = () if model is None else model.modules()
    return {id(p) for m in modules if isinstance(m, nn.Embedding) for p in m.parameters()}


def _not_decayed(model: nn.Module) -> set[str]:
    """Returns the full names of biases and of all tensors of normalisation layers."""
    found = set()
    for prefix, module in model.named_modules():
        norm = any(kind.__name__.endswith("Norm") for kind in type(module).__mro__)
        for name, _ in module.named_parameters(recurse=False):
            if norm or name == "bias":
                found.add(f"{prefix}.{name}" if prefix else name)
    return found
