"""A small model in a loop of one's own, and the library's methods with settings that suit it."""

import torch
from torch import nn

import zo

SOME = ["mezo", "lozo", "mezo_adam", "bszo"]
"""No state, a subspace, tensors and numbers; each method's own steps are tried in tests/optim."""

SETTINGS = {
    "eggroll": {"baseline": "population"},
    "mezo": {"n": 2},
    "lozo": {"interval": 2},
    "hizoo": {"hessian_smooth": 1e-3},
}
X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()


def make_model(dtype=torch.float32, classes=2):
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, classes)
    return nn.Sequential(*layers).to(dtype)


def loss_of(model):
    return nn.functional.cross_entropy(model(X.to(model[0].weight.dtype)), Y)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def make(name, model, lr=1e-2, **kwargs):
    return zo.optimizer(name, model, lr, **{"eps": 1e-3, **SETTINGS.get(name, {}), **kwargs})
