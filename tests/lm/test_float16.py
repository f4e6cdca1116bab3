"""float16 products on a CPU: the float32 sum of the layer's present factors, rounded once."""

import pytest
import torch
from torch import nn

from zo.lm.float16 import widen

X = torch.randn(7, 300, generator=torch.Generator().manual_seed(0)).half()


def layer(bias: bool = True) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(300, 40, bias=bias).half()


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_a_product_is_the_float32_sum_rounded_once(bias):
    plain = layer(bias)
    exact = X.double() @ plain.weight.double().T + (plain.bias.double() if bias else 0.0)
    model = nn.Sequential(plain)
    widen(model)
    assert model(X).dtype == torch.float16
    wrong = model(X) != exact.half()
    assert wrong.float().mean() < 0.01  # where float32's own last digit decides a tie
    assert torch.allclose(model(X).double(), exact, rtol=2**-11, atol=2**-20)


@torch.no_grad()
def test_it_reads_the_weights_that_the_layer_holds_when_it_is_called():
    model = nn.Sequential(layer())
    widen(model)
    before = model(X)
    model[0]._parameters["weight"] = torch.zeros_like(model[0].weight)
    assert (model(X) == model[0].bias).all()
    assert not (before == model[0].bias).all()
    model[0].weight.add_(1.0)
    assert not (model(X) == model[0].bias).all()
