"""What the library checks before a step, and what it says after one."""

from __future__ import annotations

import gc
import math
import sys
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import parametrize
from torch.utils.weak import WeakIdKeyDictionary

from zo.distributed.closure import SAME
from zo.library.inference import has_compiled
from zo.optim.base import Rates, StepInfo, ZOOptimizer
from zo.weights.aliasing import storage_key, unguarded
from zo.weights.anchor import rounding_notice
from zo.weights.loss import ClosureLoss
from zo.weights.patching import Reads
from zo.weights.policy_check import copies_fit, keeps, kept_tensors, unused_tensors, writes
from zo.weights.sharded import part_of
from zo.weights.space import ParameterSpace

WORTH_A_LINE = 1.0
"""Seconds of compilation in a step."""

BACKWARD = (
    "closure: calls backward(), and a step needs the loss alone; return the loss and leave the call out. Lightning's"
    " automatic optimization makes it: set automatic_optimization = False and call optimizer.step yourself"
)

SCALED = (
    "closure: GradScaler.scale multiplies its loss, and a step would be as many times too long; return the loss itself,"
    " since there are no gradients that underflow"
)

ADVICE = "check_closure=False goes on all the same."

_STARTS: Any = WeakIdKeyDictionary()
"""Trained tensor -> seed and some values of each training, at its first step."""


class Preflight:
    """Checks that steps move the weights that the closure computes with, and as the optimizer was told.

    What modules, groups and weights are is compared with what they were, by identity and address: about 0.2 µs a
    module and tensor. Where that differs, what has changed is looked for.

    Args:
        model: Computes the loss, if it is known.
        space: θ.
        given: Names and all tensors that the optimizer was given.
        groups: Its parameter groups.
        whole: Whether all of the model's parameters that require gradients are θ.
        enabled: Whether the closure is checked.
        alone: Whether no other process trains with this one, which would have to check at the same steps.

    Attributes:
        first: Whether the closure was not checked yet, or modules have got other classes, hooks or buffers since.
    """

    def __init__(
        self,
        model: nn.Module | None,
        space: ParameterSpace,
        given: Sequence[tuple[str, Tensor]],
        groups: Sequence[Mapping[str, Any]],
        whole: bool,
        enabled: bool,
        alone: bool,
    ):
        self._model, self._space, self._given = model, space, given
        self._whole, self._enabled, self._alone = whole, enabled, alone
        self._searched = None if space.shards else model
        self._grouped = [[*group["params"]] for group in groups]
        self._trained = [p.requires_grad for _, p in given]
        self._at = [t.data_ptr() for t in space.policy.local]  # whose memory θ keeps
        self._training: set[nn.Module] = set()
        self.first, self._tied = True, False
        self._take_note(groups)
        self._before = self._parameters()
        places = zip(space.names, space.parameters, strict=True)
        self._moved = [(n, k) for n, p in places if (k := storage_key(p)) in self._before]

    def check(
        self, groups: Sequence[Mapping[str, Any]], closure: ClosureLoss, method: ZOOptimizer
    ) -> list[Rates]:
        """Checks model, groups and settings; returns the groups' rates.

        Raises:
            RuntimeError: If a tensor was moved, replaced, frozen or unfrozen, came into the model or left its group, or
                if torch keeps earlier weights.
            ValueError: If a rate is not finite or negative, or the closure does not know what the method needs.
        """
        addresses, objects = self._now(groups)
        same = addresses == self._noted[0] and len(objects) == len(self._noted[1])
        if not (same and all(map(is_, objects, self._noted[1]))):
            self._find_changes(groups)
            made = self._made
            self._take_note(groups)
            self.first |= self._alone and self._made != made
        if parametrize._cache_enabled:
            raise RuntimeError(
                "step: is called inside of parametrize.cached(), which keeps weights from before they are displaced;"
                " enter it in the closure"
            )
        inductor = sys.modules.get("torch._inductor.config")
        if inductor is not None and inductor.freezing:
            raise RuntimeError(
                "step: torch._inductor.config.freezing is on, and a compiled model keeps its weights as constants; set"
                " it to False before the model is compiled"
            )
        if method.step_index == 0:
            self._check_seed(method.seed)
            self._warn_of_backward()
        if getattr(method.config, "baseline", "") == "prompt" and not closure.rates_texts:
            raise ValueError(
                "baseline='prompt': the closure has no method mean_square(), the mean square of the texts' rewards; add"
                " it, or give baseline='population'"
            )
        return rates_of(groups)

    def due(self) -> bool:
        """Returns whether to check the closure before this step: the first, or one with more modules in training."""
        if not self._enabled or self.first:
            return self._enabled
        more = any(map(_trains, self._modules))  # in most models none does
        return more and not self._training.issuperset(filter(_trains, self._modules))

    def check_closure(self, closure: ClosureLoss) -> None:
        """Measures twice at the same weights.

        Raises:
            ValueError: If the losses differ by more than rounding, a buffer of the model changes, the closure calls
                `backward`, or a layer computes with what it has kept of its weights.
            RestoreError: If the closure writes trained weights, which a policy that is not exact would not restore.
        """
        space = self._space
        buffers = () if self._model is None else self._model.named_buffers()
        trained = zip(space.names, space.parameters, strict=True)
        named = [(n, t, t._version) for n, t in [*trained, *buffers] if not t.is_inference()]
        first = self._loss(closure)
        with self._reading() as reads:
            second = self._loss(closure)
        changed = [(n, id(t)) for n, t, version in named if t._version != version]
        ids = {*map(id, space.parameters)}
        if not (space.policy.constraints.exact or space.shards):
            for name in (n for n, key in changed if key in ids):
                raise writes(space.policy, name)
        for name, at, now in zip(space.names, self._at, self._addresses(), strict=True):
            if at != now:
                raise ValueError(
                    f"closure: replaces the memory of {name}, as `.data = ` does in a forward pass or hook, and steps"
                    " would move the former one; write into it, by copy_(), or compute with a new tensor"
                )
        if not math.isclose(first, second, rel_tol=SAME) and math.isfinite(first + second):
            raise ValueError(
                f"closure: two calls at the same weights gave {first} and {second}. The usual causes: dropout is on"
                " (call model.eval()), or the closure draws its own batch or random numbers (draw them before step)."
                f" {ADVICE}"
            )
        for name in (n for n, key in changed if key not in ids):
            raise ValueError(
                f"closure: every call changes {name}, as BatchNorm does in training mode (call model.eval())."
                f" {ADVICE}"
            )
        if self.first and closure.dtype in (torch.bfloat16, torch.float16):
            warnings.warn(
                f"closure: its loss is in {closure.dtype}, whose two or three digits hide most differences of losses;"
                " compute it in float32, as from logits.float()",
                stacklevel=5,
            )
        if self.first:
            self._check_unread(reads, closure, second)
        closure.squares()  # of these calls, which are no part of a step
        self.first, self._training = False, {*filter(_trains, self._modules)}

    def _reading(self) -> AbstractContextManager[Reads | None]:
        """Notes which weights a call reads, where that neither compiles a model again nor misses fetched weights."""
        skips = has_compiled() or self._space.offloaded or self._space.shards or not self.first
        return nullcontext() if skips else Reads()

    def _check_unread(self, reads: Reads | None, closure: ClosureLoss, base: float) -> None:
        """Warns of weights that a call did not read and that change no loss; refuses layers that keep copies."""
        thetas, kept = self._space.settled(), kept_tensors(self._modules, self._space)
        unread = {*kept}
        if reads is not None:
            places = {i: t.untyped_storage().data_ptr() for i, t in enumerate(thetas) if t.numel()}
            unread |= {i for i, place in places.items() if place not in reads.storages}
        if not (self._space.shards or copies_fit(self._space, unread)):
            return
        unused = unused_tensors(self._space, unread, lambda: self._loss(closure), base)
        names = [self._space.names[i] for i in unused]
        for name, i in zip(names, unused, strict=True):
            if i in kept:
                raise ValueError(f"closure: {keeps(name, kept[i])}. {ADVICE}")
        if 0 < len(unused) < len(thetas):  # else `look_at` says that nothing was measured
            said = ", ".join(names[:3]) + " and others" * (len(names) > 3)
            warnings.warn(
                f"{said}: the closure's loss does not depend on it, which steps move all the same; backpropagation"
                " leaves what is not used as it is. Set requires_grad=False, or make anew what is kept of weights.",
                stacklevel=6,
            )

    def _loss(self, closure: ClosureLoss) -> float:
        """Returns the loss; raises ValueError if the closure backpropagates or scales it for that."""
        parameters = self._space.parameters
        before = [(p.grad, None if p.grad is None else p.grad._version) for p in parameters]
        scaler: Any = GradScaler
        own, scaler.scale = scaler.scale, _refuse_scaling
        try:
            loss = closure()
        except RuntimeError as error:
            if "does not require grad and does not have a grad_fn" in str(error):
                raise ValueError(BACKWARD) from error
            raise
        finally:
            scaler.scale = own
        for p, (grad, version) in zip(parameters, before, strict=True):
            if p.grad is not None and (p.grad is not grad or p.grad._version != version):
                raise ValueError(BACKWARD)
        return loss

    def _take_note(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Notes what modules hold, and what else is compared."""
        self._modules = [] if self._model is None else [*self._model.modules()]
        searched = [] if self._searched is None else self._modules
        held = [of for m in searched for of in (m._parameters, m._modules)]
        counted = [
            of for m in searched for of in (m._forward_hooks, m._forward_pre_hooks, m._buffers)
        ]
        self._dicts = [*held, *counted]
        self._made = [*map(type, self._modules), *map(len, counted)]
        self._noted = self._now(groups)

    def _now(self, groups: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[Any]]:
        """Returns what is compared, addresses and objects; no tensor of a class of its own calls back."""
        return unguarded(self._what_is, groups)

    def _what_is(self, groups: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[Any]]:
        objects = gc.get_referents(*self._dicts)  # their values, by one call
        for group in groups:
            objects += [*group["params"], None]
        trained = map(attrgetter("requires_grad"), [p for _, p in self._given])
        return self._addresses(), [*objects, *map(type, self._modules), *trained]

    def _addresses(self) -> list[int]:
        """Returns where θ's tensors of the model are."""
        tensors, shards = self._space.parameters, self._space.shards
        if shards:
            tensors = [part_of(p)[0] if i in shards else p for i, p in enumerate(tensors)]
        return unguarded(lambda: [*map(Tensor.data_ptr, tensors)])

    def _find_changes(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Raises RuntimeError if something has changed that steps would not follow; names it."""
        for name, at, now in zip(self._space.names, self._at, self._addresses(), strict=True):
            if at != now:
                raise RuntimeError(
                    f"{name}: moved since the optimizer was made, as by model.to(...); make the optimizer afterwards"
                )
        found = self._parameters()
        for name, key in self._moved:
            if key not in found:
                raise RuntimeError(
                    f"{name}: is no longer in the model, which has been given other weights since the optimizer was"
                    " made, as by load_state_dict(assign=True), a new head or tied weights; make a new optimizer"
                )
        for key in found.keys() - self._before.keys() if self._whole else ():
            name, p = found[key]
            if p.requires_grad:
                raise RuntimeError(
                    f"{name}: came into the model after the optimizer was made, which does not train it; make a new"
                    " optimizer, or set requires_grad=False"
                )
        for (name, p), was in zip(self._given, self._trained, strict=True):
            if p.requires_grad != was:
                raise RuntimeError(
                    f"{name}: requires_grad is {p.requires_grad} and was {was} when the optimizer was made;"
                    " make a new optimizer"
                )
        given = [[*map(id, group["params"])] for group in groups]
        if [[*map(id, of)] for of in self._grouped] != given:
            raise RuntimeError(
                "param_groups: tensors or groups were added, removed or reordered since the optimizer was made; make a"
                " new optimizer, or set requires_grad=False before, or lr=0 of a group that is not to train"
            )

    def _parameters(self) -> dict[Hashable, tuple[str, Tensor]]:
        """Returns the model's parameters by their memory."""
        named = () if self._searched is None else self._searched.named_parameters()
        return {storage_key(p): (name, p) for name, p in named}

    def _check_seed(self, seed: int) -> None:
        """Warns if a training with this seed has moved the weights before: its directions would come again."""
        pairs = zip(self._space.parameters, self._space.settled(), strict=True)
        key, t = max(pairs, key=lambda pair: pair[1].numel())
        if t.is_meta:
            return
        values = t.detach().reshape(-1)[:64].to("cpu", torch.float32, copy=True)
        starts: list[tuple[int, Tensor]] = _STARTS.setdefault(key, [])
        earlier = [start for other, start in starts if other == seed]
        if earlier and not any(torch.equal(start, values) for start in earlier):
            warnings.warn(
                f"seed={seed}: these weights were trained with it before, so the same directions come again;"
                f" give seed={max(other for other, _ in starts) + 1}, or load the earlier optimizer's state to go on",
                stacklevel=6,
            )
        starts.append((seed, values))

    def _warn_of_backward(self) -> None:
        """Warns of what backpropagation does and a step does not: call gradient hooks, keep padding rows."""
        names = {id(p): n for n, p in zip(self._space.names, self._space.parameters, strict=True)}
        for p in self._space.parameters:
            if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
                warnings.warn(
                    f"{names[id(p)]}: its gradient hook is never called, since a step does not backpropagate, so all of"
                    " its values move. To train some rows alone, make them a parameter of their own (as peft's"
                    " trainable_token_indices), or add mask * parameter to a frozen weight in the forward pass.",
                    stacklevel=6,
                )
        for m in self._modules:
            row, table = getattr(m, "padding_idx", None), names.get(id(getattr(m, "weight", None)))
            if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and row is not None and table:
                warnings.warn(
                    f"{table}: row {row} is padding_idx's, which backpropagation leaves as it is and steps move. Where"
                    " no attention mask hides padding, mask it in the forward pass, or write the row back after each"
                    " step.",
                    stacklevel=6,
                )

    def look_at(self, step: int, info: StepInfo, compiled: float) -> None:
        """Says of a step that it compiled long, that rounding removes it, or that all losses were equal.

        Args:
            step: Steps made.
            info: Of the last one.
            compiled: Seconds of it that were compilation.
        """
        space = self._space
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


_trains = attrgetter("training")


def _refuse_scaling(scaler: GradScaler, loss: Tensor) -> Tensor:
    """Is `GradScaler.scale` while a closure is checked."""
    if scaler.is_enabled():
        raise ValueError(SCALED)
    return loss


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
