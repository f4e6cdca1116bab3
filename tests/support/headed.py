"""A layer of any kind below a head: what a step of the library may mistake."""

import torch
import torch.nn.functional as F
from torch import nn

import zo

X = torch.randn(8, 5, 16, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(0, 11, (8, 5), generator=torch.Generator().manual_seed(3))
Y = torch.arange(8) % 7


class Headed(nn.Module):
    """A layer, called with `call`, and a head."""

    def __init__(self, layer, call=None, x=X):
        super().__init__()
        self.layer, self.call, self.x = layer, call or (lambda layer, x: layer(x)), x
        self.head = nn.Linear(16, 7)

    def loss(self):
        found = self.call(self.layer, self.x)
        return F.cross_entropy(self.head(found.mean(1)), Y.to(found.device))


def headed(call=None):
    return Headed(nn.Linear(16, 16), call)


def made(build=headed):
    torch.manual_seed(0)
    return build().eval()


def optimizer_of(method, model, restore, **settings):
    given = {"restore": restore, "noise": "torch", **settings}
    given |= {"baseline": "population", "n": 4} if method == "eggroll" else {}
    return zo.optimizer(method, model, 0.1, **given)
