"""Checks around each step of the library: the weights, the modules' modes and the losses."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, eq, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.weak import WeakIdKeyDictionary

from zo.distributed.closure import SAME
from zo.optim.base import Rates, StepInfo
from zo.weights.aliasing import storage_key
from zo.weights.anchor import rounding_notice
from zo.weights.loss import ClosureLoss
from zo.weights.restore import RestoreError
from zo.weights.sharded import part_of
from zo.weights.space import ParameterSpace

WORTH_A_LINE = 1.0
"""Seconds of compilation in a step."""

END = object()
"""Behind the last thing that a model's modules hold."""

BACKWARD = (
    "closure: calls backward(), and a step needs the loss alone; return the loss and leave the call out. Lightning's"
    " automatic optimization makes it: set automatic_optimization = False and call optimizer.step yourself"
)


class RepeatCheck:
    """Whether two calls of a closure at the same weights agree: at the first step, and when more modules train since.

    Args:
        model: Computes the loss, if it is known.
        space: θ.
        enabled: False checks nothing.

    Attributes:
        first: Whether nothing was checked yet.
    """

    def __init__(self, model: nn.Module | None, space: ParameterSpace, enabled: bool):
        self._model, self._space, self._enabled = model, space, enabled
        self._parameters = space.parameters
        self._training: set[nn.Module] = set()
        self.first = True

    def due(self) -> bool:
        """Returns whether to check before this step."""
        return self._enabled and (self.first or not self._modes() <= self._training)

    def check(self, closure: ClosureLoss) -> None:
        """Measures twice.

        Raises:
            ValueError: If the losses differ by more than rounding, a buffer of the model changes, or the closure calls
                `backward`.
            RestoreError: If the closure writes trained weights, which a policy that is not exact would not restore.
        """
        buffers = [] if self._model is None else [*self._model.named_buffers()]
        tracked = [(name, b, b._version) for name, b in buffers if not b.is_inference()]
        in_place = not (self._space.policy.constraints.exact or self._space.shards)
        written = [
            (n, t, t._version) for n, t in zip(self._space.names, self._parameters, strict=True)
        ]
        first, second = self._loss(closure), self._loss(closure)
        for name, t, version in written if in_place else ():
            if t._version != version and not t.is_inference():
                what = (
                    f"the forward pass writes {name}, as max_norm and clamps do, and θ would drift"
                )
                raise RestoreError(self._space.policy.name, what, "snapshot")
        advice = "check_closure=False goes on all the same."
        if not math.isclose(first, second, rel_tol=SAME) and math.isfinite(first + second):
            raise ValueError(
                f"closure: two calls at the same weights gave {first} and {second}. The usual causes: dropout is on"
                " (call model.eval()), or the closure draws its own batch or random numbers (draw them before step)."
                f" {advice}"
            )
        for name, buffer, version in tracked:
            if buffer._version != version:
                raise ValueError(
                    f"closure: every call changes {name}, as BatchNorm does in training mode (call model.eval())."
                    f" {advice}"
                )
        closure.squares()  # of the two calls, which are no part of a step
        self.first, self._training = False, self._modes()

    def _loss(self, closure: ClosureLoss) -> float:
        """Returns the loss; raises ValueError if the closure backpropagates."""
        before = [(p.grad, None if p.grad is None else p.grad._version) for p in self._parameters]
        try:
            loss = closure()
        except RuntimeError as error:
            if "does not require grad and does not have a grad_fn" in str(error):
                raise ValueError(BACKWARD) from error
            raise
        for p, (grad, version) in zip(self._parameters, before, strict=True):
            if p.grad is not None and (p.grad is not grad or p.grad._version != version):
                raise ValueError(BACKWARD)
        return loss

    def _modes(self) -> set[nn.Module]:
        """Returns the modules that are in training mode."""
        return {m for m in self._model.modules() if m.training} if self._model else set()


class StepReport:
    """Messages about steps: long compilations, losses that are all equal, and updates that rounding removes."""

    def __init__(self) -> None:
        self._tied = False

    def look_at(self, step: int, info: StepInfo, compiled: float, space: ParameterSpace) -> None:
        """Reports on a step.

        Args:
            step: Steps made.
            info: Of the last one.
            compiled: Seconds of it that were compilation.
            space: θ.
        """
        if compiled > WORTH_A_LINE:
            print(
                f"zo: {compiled:.0f} s of this step compiled noise='philox'; later steps and processes have it",
                file=sys.stderr,
            )
        share, dtype = info.scalars.get("survives"), space.like[0].dtype
        if share is not None and (notice := rounding_notice(share, space.rounding, dtype)):
            warnings.warn(
                f"{notice}. Weights in float32 keep all of a step, noise='philox' with rounding='stochastic' its mean,"
                " and rounding='compensated' keeps the rest for the next step.",
                stacklevel=5,
            )
        if info.tied and not self._tied:
            self._tied = True
            warnings.warn(
                f"step {step}: all {info.forwards} losses are {info.losses[0]}, so nothing was measured. The usual"
                " causes: the closure computes with other weights (after load_state_dict(assign=True),"
                " merge_and_unload() or a copy of the model), its loss does not depend on them (as GRPO's surrogate),"
                " eps is too small for the weights' dtype, or the weights have diverged, so that the model answers the"
                " same everywhere: take a smaller lr. This is said once.",
                stacklevel=5,
            )


_STARTS: Any = WeakIdKeyDictionary()
"""Trained tensor -> seed and some values of each training, at its first step."""


def check_seed(space: ParameterSpace, seed: int) -> None:
    """Warns if a training with this seed has moved the weights before: its directions would come again."""
    key, t = max(
        zip(space.parameters, space.settled(), strict=True), key=lambda pair: pair[1].numel()
    )
    if t.is_meta:
        return
    values = t.detach().reshape(-1)[:64].to("cpu", torch.float32, copy=True)
    starts: list[tuple[int, Tensor]] = _STARTS.setdefault(key, [])
    earlier = [start for other, start in starts if other == seed]
    if earlier and not any(torch.equal(start, values) for start in earlier):
        warnings.warn(
            f"seed={seed}: these weights were trained with it before, so the same directions come again; give"
            f" seed={max(other for other, _ in starts) + 1}, or load the earlier optimizer's state to go on with it",
            stacklevel=5,
        )
    starts.append((seed, values))


def rates_of(groups: Iterable[Mapping[str, Any]]) -> list[Rates]:
    """Returns the rates of parameter groups.

    Raises:
        ValueError: If one is not finite, or negative.
    """
    found = []
    for i, group in enumerate(groups):
        rates = Rates(float(group["lr"]), float(group["weight_decay"]))
        for key, value in rates._asdict().items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{key}={value}: of parameter group {i} must be at least 0")
        found.append(rates)
    return found


def check_groups(groups: Sequence[Mapping[str, Any]], made: Sequence[Sequence[Tensor]]) -> None:
    """Raises RuntimeError if parameter groups no longer hold the tensors that they had when the optimizer was made."""
    same = len(groups) == len(made) and all(
        len(group["params"]) == len(of) and all(map(is_, group["params"], of))
        for group, of in zip(groups, made, strict=True)
    )
    if not same:
        raise RuntimeError(
            "param_groups: tensors or groups were added, removed or reordered since the optimizer was made; make a new"
            " optimizer, or set requires_grad=False before, or lr=0 of a group that is not to train"
        )


def check_storage(space: ParameterSpace) -> None:
    """Raises RuntimeError if the model's weights are no longer the tensors that steps would move."""
    model, local = space.parameters, space.policy.local
    at, kind = Tensor.data_ptr, attrgetter("dtype")
    if (
        not space.shards
        and all(map(eq, map(at, model), map(at, local)))
        and all(map(is_, map(kind, model), map(kind, local)))
    ):
        return
    places = zip(space.names, space.parameters, space.policy.local, strict=True)
    for i, (name, given, tensor) in enumerate(places):
        p = part_of(given)[0] if i in space.shards else given
        if (
            p.device != tensor.device
            or p.dtype != tensor.dtype
            or p.data_ptr() != tensor.data_ptr()
        ):
            raise RuntimeError(
                f"{name}: moved since the optimizer was made, as by model.to(...); make the optimizer afterwards"
            )


class ReplacedCheck:
    """Whether the model still holds the tensors that steps move, and no others that would have to be trained.

    A step compares what the modules hold with what they held, by identity: about 0.1 µs per module. The parameters
    themselves are looked at where these differ.

    Args:
        model: Computes the loss; None checks nothing.
        space: θ.
        whole: Whether all of the model's parameters that require gradients are θ.
    """

    def __init__(self, model: nn.Module | None, space: ParameterSpace, whole: bool):
        self._model = None if space.shards else model
        self._whole = whole
        self._take_note()
        found = self._parameters()
        self._before = {*found}
        places = zip(space.names, space.parameters, strict=True)
        self._moved = [(n, k) for n, p in places if (k := storage_key(p)) in found]

    def check(self) -> None:
        """Raises RuntimeError if a tensor was replaced, or came in, since the optimizer was made; names it."""
        if self._model is None or self._is_held():
            return
        found = self._parameters()
        for name, key in self._moved:
            if key not in found:
                raise RuntimeError(
                    f"{name}: is no longer in the model, which has been given other weights since the optimizer was"
                    " made, as by load_state_dict(assign=True), a new head or tied weights; make a new optimizer"
                )
        for key in found.keys() - self._before if self._whole else ():
            name, p = found[key]
            if p.requires_grad:
                raise RuntimeError(
                    f"{name}: came into the model after the optimizer was made, which does not train it; make a new"
                    " optimizer, or set requires_grad=False"
                )
        self._take_note()

    def _take_note(self) -> None:
        """Notes the ids of the modules' parameters and children."""
        modules = [] if self._model is None else [*self._model.modules()]
        dicts = [d for m in modules for d in (m._parameters, m._modules)]
        self._empty = [d for d in dicts if not d]
        self._now: list[Iterable[Any]] = [d.values() for d in dicts if d]  # views, which follow
        self._held = [*chain.from_iterable(self._now), END]
        self._now.append([END])

    def _is_held(self) -> bool:
        """Returns whether the modules hold what they held; the end in both lists tells other lengths."""
        return not any(self._empty) and all(map(is_, chain.from_iterable(self._now), self._held))

    def _parameters(self) -> dict[Hashable, tuple[str, Tensor]]:
        """Returns the model's parameters by their memory."""
        named = () if self._model is None else self._model.named_parameters()
        return {storage_key(p): (name, p) for name, p in named}


def check_constants() -> None:
    """Raises RuntimeError where forward passes would compute with earlier weights, which torch keeps."""
    if parametrize._cache_enabled:
        raise RuntimeError(
            "step: is called inside of parametrize.cached(), which keeps weights from before they are displaced; enter"
            " it in the closure"
        )
    inductor = sys.modules.get("torch._inductor.config")
    if inductor is not None and inductor.freezing:
        raise RuntimeError(
            "step: torch._inductor.config.freezing is on, and a compiled model keeps its weights as constants; set it"
            " to False before the model is compiled"
        )


def warn_of_backward(model: nn.Module | None, space: ParameterSpace) -> None:
    """Warns of what backpropagation would do to trained tensors and a step does not: gradient hooks, padding rows."""
    for name, p in zip(space.names, space.parameters, strict=True):
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            warnings.warn(
                f"{name}: its gradient hook is never called, since a step does not backpropagate, so all of its values"
                " move. To train some rows alone, make them a parameter of their own (as peft's"
                " trainable_token_indices), or add mask * parameter to a frozen weight in the forward pass.",
                stacklevel=4,
            )
    names = {id(p): name for name, p in zip(space.names, space.parameters, strict=True)}
    for m in () if model is None else model.modules():
        row, table = getattr(m, "padding_idx", None), names.get(id(getattr(m, "weight", None)))
        if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and row is not None and table:
            warnings.warn(
                f"{table}: row {row} is padding_idx's, which backpropagation leaves as it is and steps move. Where no"
                " attention mask hides padding, mask it in the forward pass, or write the row back after each step.",
                stacklevel=4,
            )


def check_trained(named: Iterable[tuple[str, Tensor]], trained: Iterable[bool]) -> None:
    """Raises RuntimeError if a tensor was frozen or unfrozen since `trained` said which require gradients."""
    for (name, p), was in zip(named, trained, strict=True):
        if p.requires_grad != was:
            raise RuntimeError(
                f"{name}: requires_grad is {p.requires_grad} and was {was} when the optimizer was made;"
                " make a new optimizer"
            )


def check_texts(config: Any, closure: ClosureLoss) -> None:
    """Raises ValueError where a step divides by the spread of texts' rewards, and the closure does not know it."""
    if getattr(config, "baseline", "") == "prompt" and not closure.rates_texts:
        raise ValueError(
            "baseline='prompt': the closure has no method mean_square(), the mean square of the texts' rewards; add it,"
            " or give baseline='population'"
        )
