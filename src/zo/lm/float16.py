"""float16 products on a CPU as a GPU makes them: factors in float16, sums in float32, rounded to float16 once.

Most CPUs have no float16 arithmetic, and there PyTorch's own product of float16 matrices takes some ten times as long
as that of the same matrices in float32.
"""

import functools

import torch.nn.functional as F
from torch import Tensor, nn

from zo.weights.patching import put_forward


def widen(model: nn.Module) -> None:
    """Has every linear layer of a model widen its factors to float32 for the time of a product, see the module."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
            put_forward(module, functools.partial(_product, module))


def _product(layer: nn.Linear, x: Tensor) -> Tensor:
    """Returns x Wᵀ + b in x's dtype, with the tensors that the layer holds now."""
    bias = None if layer.bias is None else layer.bias.float()
    return F.linear(x.float(), layer.weight.float(), bias).to(x.dtype)
