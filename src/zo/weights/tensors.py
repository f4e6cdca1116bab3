"""The trainable tensors of a model, θ, and what is known of each: device, decay, noise, rounding."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zo.noise import Engine, PhiloxEngine, engine
from zo.weights.aliasing import distinct
from zo.weights.offloaded import OffloadedParameter, offload_of
from zo.weights.patching import FactoredParameter
from zo.weights.sharded import Part, PartsEngine, PhiloxPartsEngine, keep_sharded, part_of
from zo.weights.stopwatch import Stopwatch


def refuse_factored(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raises ValueError if an optimizer's layers compute with factors beside one of the tensors."""
    if name := next((name for name, t in named if isinstance(t, FactoredParameter)), None):
        raise ValueError(
            f"{name}: another optimizer with restore='factors' moves it; call that one's close() first"
        )


class TrainableTensors:
    """θ: tensors in a fixed order, each storage once (tied weights).

    Args:
        named: Name and tensor pairs. A tensor that shares its storage with an earlier one is left out.
        exempt: Names of the tensors without weight decay.
        noise: `torch` or `philox`, see `zo.noise`.
        rounding: See `ParameterSpace`.
        model: Holds the tensors and computes the loss, if it is known.

    Attributes:
        names: One per tensor.
        local: θ's storages without gradient, which steps move: the local part of a DTensor, host memory or file of an
            offloaded tensor. `settled` returns them as a reader needs them.
        parameters: The tensors as given; backpropagation leaves its gradients in them.
        like: One per tensor, on its computing device, of its local shape and dtype. An offloaded tensor is
            represented by a tensor without values.
        numel: n, the number of trainable values, over all shards.
        decays: Whether weight decay applies, one per tensor.
        matrices: Whether a tensor is a 2-D weight with decay and of no embedding, one per tensor.
        engine: The noise engine of the tensors' devices.
        shards: Position -> this process's part, of the sharded tensors.
        offloaded: Bytes of θ outside of the device.
        rounding: As given.
        residuals: c, the compensation terms (Kahan) under `rounding=compensated`, float32, one per tensor; else None.
            They are state of the run and belong into its checkpoints.
        rereads: Position -> function that reads a tensor of the start again from its file.
        stopwatch: Time of passes over the weights (`weights`) and of forward passes (`loss`), and how many there were.

    Raises:
        ValueError: If there is no tensor, or one cannot be moved in place.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        exempt: Collection[str],
        noise: str,
        rounding: str,
        model: nn.Module | None,
    ):
        if model is not None:
            keep_sharded(model)
        kept = distinct(named)
        if not kept:
            raise ValueError("no trainable tensors: at least one must require a gradient")
        refuse_factored(kept)
        self.names = [name for name, _ in kept]
        self.parameters = [tensor for _, tensor in kept]
        found = [part_of(tensor) for tensor in self.parameters]
        self.local = [tensor.detach() for tensor, _ in found]
        self._offload = offload_of(self.parameters)
        self.like = [
            _without_values(p) if isinstance(p, OffloadedParameter) else t
            for p, t in zip(self.parameters, self.local, strict=True)
        ]
        self.shards: Mapping[int, Part]
        self.shards = {i: part for i, (_, part) in enumerate(found) if part is not None}
        wholes = {i: part.whole.numel() for i, part in self.shards.items()}
        self.numel = sum(wholes.get(i, t.numel()) for i, t in enumerate(self.local))
        self.decays = [name not in exempt for name in self.names]
        embedded = _embedded(model)
        self.matrices = [
            t.dim() == 2 and decays and id(t) not in embedded
            for t, decays in zip(self.parameters, self.decays, strict=True)
        ]
        devices = sorted({str(t.device) for t in self.like})
        self.engine: Engine = engine(noise, *devices)
        if self.shards:
            kind = PhiloxPartsEngine if isinstance(self.engine, PhiloxEngine) else PartsEngine
            self.engine = kind(self.engine, self.shards)
        away = [p for p in self.parameters if isinstance(p, OffloadedParameter)]
        self.offloaded = sum(p.numel() * p.element_size() for p in away)
        self.rounding = rounding
        self.residuals = self.full(0.0, torch.float32) if rounding == "compensated" else None
        self.rereads: dict[int, Callable[[], Tensor]] = {}
        self.stopwatch = Stopwatch(devices)

    def settled(self) -> list[Tensor]:
        """Returns `local` once the update that offloaded tensors defer is applied."""
        if self._offload is not None:
            self._offload.apply_deferred()
        return self.local

    def former(self, i: int) -> Tensor | None:
        """Returns tensor i in the memory that it had before it was offloaded, if something else keeps that."""
        p = self.parameters[i]
        return p.offload.former(p) if isinstance(p, OffloadedParameter) else None

    def full(self, value: float, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Returns tensors of θ's shapes and devices, in its dtype unless another is given, filled with `value`."""
        return [torch.full_like(p, value, dtype=dtype) for p in self.like]


def hash_of(described: Iterable[tuple[str, Tensor]], digest: Any) -> str:
    """Returns the hexadecimal hash of tensors: of the description and of the bits of each, on any device.

    Args:
        described: Descriptions and tensors; one tensor is in the host's memory at a time.
        digest: An object of hashlib or xxhash.
    """
    for text, tensor in described:
        digest.update(text.encode())
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().data)
    found: str = digest.hexdigest()
    return found


def _without_values(p: OffloadedParameter) -> Tensor:
    """Returns a tensor on the computing device of a parameter, of its shape and dtype, that takes no memory."""
    return torch.zeros((), dtype=p.dtype, device=p.offload.device).expand(p.shape)


def _embedded(model: nn.Module | None) -> set[int]:
    modules = () if model is None else model.modules()
    return {id(p) for m in modules if isinstance(m, nn.Embedding) for p in m.parameters()}
