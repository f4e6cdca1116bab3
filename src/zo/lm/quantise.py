"""Quantised linear layers with integers and scales, made by the library torchao.

    int8         W[i, j] = scale[i] · q[i, j]                     one scale per row
    int4, nf4    W[i, j] = scale[i, g(j)] · levels[q[i, j]]       one scale per group of a row

The 16 levels of int4 are -8 to 7, those of nf4 quantiles of a normal distribution (Dettmers et al. 2023, QLoRA; the
format of bitsandbytes). A layer dequantises W to the scales' dtype at every call. Two four-bit weights share a byte;
torchao itself stores int4 in eight bits on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo.extras import unusable
from zo.lm.config import ModelError
from zo.lm.source import quiet

GROUP = {"int4": 32, "nf4": 64}
"""Weights per scale; a row whose length is not a multiple has one scale."""


class QuantisedLinear(nn.Linear):
    """A linear layer with integer weights.

    Attributes:
        weight: q, int8, (out, in); with four bits two per byte, the left column in the low bits, (out, in/2).
        scale: Of the groups of each row.  # (out, groups)
        pairs: The two weights of each byte; None for int8.  # (256, 2)
        bias: Of the original layer.
    """

    pairs: Tensor | None

    def __init__(self, layer: nn.Linear, q: Tensor, scale: Tensor, levels: Tensor | None = None):
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        pairs = None
        if levels is not None:
            codes, byte = q.to(torch.uint8), torch.arange(256, device=q.device)
            q = (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.int8)
            pairs = levels.to(layer.weight)[torch.stack([byte & 15, byte >> 4], 1)]
        self.weight = nn.Parameter(q.contiguous(), requires_grad=False)
        self.scale = nn.Parameter(scale.to(layer.weight.dtype).contiguous(), requires_grad=False)
        self.register_buffer("pairs", pairs, persistent=False)
        self.bias = layer.bias

    def dequantised(self) -> Tensor:
        """Returns W in the scales' dtype.  # (out, in)."""
        if self.pairs is None:
            q = self.weight.to(self.scale.dtype)
        else:
            byte = self.weight.view(torch.uint8).flatten().int()
            pair = {4: torch.int64, 2: torch.int32}[self.scale.itemsize]  # looked up as one number
            found = self.pairs.view(pair).flatten().index_select(0, byte)
            q = found.view(self.scale.dtype).view(self.out_features, -1)
        groups, scale = q.unflatten(1, (self.scale.shape[1], -1)), self.scale[..., None]
        product = groups * scale if torch.is_grad_enabled() else groups.mul_(scale)
        return product.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x Wᵀ + b."""
        weight, bias = self.dequantised(), self.bias
        if x.dtype != torch.float16 or x.device.type != "cpu":
            return F.linear(x, weight, bias)
        wide = None if bias is None else bias.float()  # as `zo.lm.float16`
        return F.linear(x.float(), weight.float(), wide).to(x.dtype)


def quantise(model: Any, bits: str) -> str:
    """Replaces the linear layers but the head; returns a sentence about memory. Raises ModelError if none can be."""
    before, total, head = weight_bytes(model), count(model), model.get_output_embeddings()
    quantised = 0
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            plain = type(layer) is nn.Linear and layer is not head
            if plain and (bits == "int8" or layer.in_features % 2 == 0):
                setattr(parent, name, _quantised(layer, bits))
                quantised += layer.weight.numel()
    for p in model.parameters():
        p.data = p.data.clone()  # else a view keeps the whole file of weights in memory
    if not quantised:
        raise ModelError(f"model.quantization: {type(model).__name__} has no linear layers")
    return (
        f"model.quantization={bits}: {quantised:,} of {total:,} parameters; the weights take "
        f"{weight_bytes(model) / 2**20:.1f} MiB, {before / 2**20:.1f} MiB without"
    )


def _quantised(layer: nn.Linear, bits: str) -> QuantisedLinear:
    """Returns a layer with the integers and scales that torchao gives it."""
    try:
        with quiet():
            from torchao import quantization as torchao
    except ImportError as error:
        raise ModelError(f"model.quantization: {unusable('torchao', error)}") from None
    weight = layer.weight.detach()
    group = GROUP.get(bits, layer.in_features)
    group = group if layer.in_features % group == 0 else layer.in_features
    if bits == "nf4":
        nf4 = torchao.to_nf4(weight, group, 1)
        codes = torch.stack([nf4.quantized_data >> 4, nf4.quantized_data & 15], 1).view_as(weight)
        scale = weight.unflatten(1, (-1, group)).abs().amax(2)
        return QuantisedLinear(layer, codes, scale, nf4.nf4)
    how: Any = torchao.Int8WeightOnlyConfig()
    if bits == "int4":
        how = torchao.IntxWeightOnlyConfig(
            weight_dtype=torch.int4,  # type: ignore[attr-defined]
            granularity=torchao.PerGroup(group),
        )
    copy = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    copy.weight = nn.Parameter(weight, requires_grad=False)
    holder = nn.Sequential(copy)
    torchao.quantize_(holder, how)
    found: Any = holder[0].weight
    if bits == "int8":
        return QuantisedLinear(layer, found.qdata, found.scale)
    return QuantisedLinear(
        layer, found.qdata + 8, found.scale, torch.arange(-8, 8, device=found.qdata.device)
    )


def dequantise(model: nn.Module) -> None:
    """Replaces quantised layers by ordinary linear layers with the dequantised weights."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, QuantisedLinear):
                plain = nn.Linear(layer.in_features, layer.out_features, False, device="meta")
                plain.weight = nn.Parameter(layer.dequantised().detach(), requires_grad=False)
                plain.bias = layer.bias
                setattr(parent, name, plain)


def count(model: nn.Module) -> int:
    """Returns the number of a model's parameters, quantised ones included."""
    layers = [m for m in model.modules() if isinstance(m, QuantisedLinear)]
    stored = sum(m.weight.numel() + m.scale.numel() for m in layers)
    held = sum(m.in_features * m.out_features for m in layers)
    return sum(p.numel() for p in model.parameters()) - stored + held


def weight_bytes(model: nn.Module) -> int:
    """Returns the bytes of a model's parameters."""
    return sum(p.numel() * p.element_size() for p in model.parameters())
