"""float16 products on a CPU: the float32 sum of the layer's present factors, rounded once."""

import pytest
import torch
from torch import nn

from zo.lm.float16 import widen

X = torch.randn(7, 300, generator=torch.Generator().manual_seed(0)).half()


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_a_product_is_the_float32_sum_of_the_present_weights_rounded_once(bias):
    torch.manual_seed(1)
    plain = nn.Linear(300, 40, bias=bias).half()
    exact = X.double() @ plain.weight.double().T + (plain.bias.double() if bias else 0.0)
    model = nn.Sequential(plain)
    widen(model)
    assert model(X).dtype == torch.float16
    wrong = model(X) != exact.half()
    assert wrong.float().mean() < 0.01  # where float32's own last digit decides a tie
    assert torch.allclose(model(X).double(), exact, rtol=2**-11, atol=2**-20)
    plain._parameters["weight"] = torch.zeros_like(plain.weight)
    assert (model(X) == (plain.bias if bias else 0)).all()
    plain.weight.add_(1.0)
    assert not (model(X) == (plain.bias if bias else 0)).any(dim=1).all()
