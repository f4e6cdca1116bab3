"""Models that a policy may mistake: it measures the losses of weights moved by hand, or refuses the layer by name."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import zo

X = torch.randn(8, 5, 16, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(0, 11, (8, 5), generator=torch.Generator().manual_seed(3))
Y = torch.arange(8) % 7


class Headed(nn.Module):
    """A layer, called with `call`, and a head."""

    def __init__(self, layer: nn.Module, call=lambda layer, x: layer(x), x=X):
        super().__init__()
        self.layer, self.call, self.x = layer, call, x
        self.head = nn.Linear(16, 7)

    def loss(self):
        found = self.call(self.layer, self.x)
        return F.cross_entropy(self.head(found.mean(1)), Y)


class Own(nn.Parameter):
    """A parameter of a class of one's own."""


def unit(self, ids):
    return F.normalize(nn.Embedding.forward(self, ids), dim=-1) * 4


def shifted(self, ids):
    return nn.Embedding.forward(self, ids) + 1.0


def scaled(self, ids):
    return nn.Embedding.forward(self, ids) * 4.0


def pair(self, ids):
    return nn.Embedding.forward(self, ids), ids


def table(forward, call=lambda layer, x: layer(x)):
    return Headed(type("Table", (nn.Embedding,), {"forward": forward})(11, 16), call, IDS)


def rectified(layer):
    own = layer.forward
    layer.forward = lambda x: own(x).relu()
    return Headed(layer)


def transposed():
    layer = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    layer[2].weight = nn.Parameter(layer[0].weight.t())
    return Headed(layer)


def owned():
    layer = nn.Linear(16, 16)
    layer.weight = Own(layer.weight.data)
    return layer


def scripted():
    return Headed(torch.jit.trace(nn.Linear(16, 16), X))


def keyword(layer):
    return Headed(layer, lambda layer, x: layer(input=x))


def gated():
    """Rows of a branch reach a norm's second input, too."""

    class Gated(nn.LayerNorm):
        def forward(self, x, gate):
            return super().forward(x) * gate.sigmoid()

    return Headed(Gated(16), lambda layer, x: layer(x, gate=x))


READ = r"layer\.weight is read outside"
BESIDE = Headed(nn.Linear(16, 16)), lambda layer, x: layer(x) + x @ layer.weight.T
CASES = {
    "unit": (lambda: table(unit), r"layer \(Table\) computes more than a lookup"),
    "shifted": (lambda: table(shifted), r"layer \(Table\) computes more than a lookup"),
    "scaled": (lambda: table(scaled), None),
    "tuple": (lambda: table(pair, lambda layer, x: layer(x)[0]), "computes more than a lookup"),
    "forward": (lambda: rectified(nn.Linear(16, 16)), r"layer \(Linear\) has a forward of its own"),
    "norm": (lambda: rectified(nn.LayerNorm(16)), None),
    "transposed": (transposed, r"layer\.2\.weight is a view of another weight"),
    "scripted": (scripted, "Linear is a ScriptModule"),
    "subclass": (lambda: Headed(owned()), None),
    "subclass read": (lambda: Headed(owned(), BESIDE[1]), READ),
    "linear(input=x)": (lambda: keyword(nn.Linear(16, 16)), None),
    "layer_norm(input=x)": (lambda: keyword(nn.LayerNorm(16)), None),
    "vector": (lambda: Headed(nn.Linear(16, 16), lambda m, x: m(x[0, 0]).expand(8, 1, 16)), None),
    "gated": (gated, None),
}
FACTORS_ALONE = {"unit", "shifted", "tuple", "forward"}


def made(build):
    torch.manual_seed(0)
    return build().eval()


def losses(build, method, restore):
    model = made(build)
    with zo.optimizer(method, model, 0.1, eps=0.1, restore=restore, noise="torch") as optimizer:
        optimizer.step(model.loss)
        return optimizer.info.losses[:4]


@pytest.mark.parametrize(
    ("method", "restore"), [("lozo", "factors"), ("eggroll", "factors"), ("mezo", "streamed")]
)
@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_under_snapshot_or_the_layer_is_refused(name, method, restore):
    build, refused = CASES[name]
    if refused and (restore == "factors" or name not in FACTORS_ALONE):
        with pytest.raises((ValueError, RuntimeError), match=refused):
            losses(build, method, restore)
    else:
        truth = losses(build, method, "snapshot")
        assert losses(build, method, restore) == pytest.approx(truth, abs=2e-6)


def test_a_parameter_of_another_class_is_read_at_theta_and_stays_of_its_class():
    model = made(lambda: Headed(owned()))
    with zo.LOZO(model, 0.1, restore="factors") as optimizer:
        optimizer.step(model.loss)
        assert model.state_dict()["layer.weight"].equal(model.layer.weight)
        live = float(model.loss())
    assert type(model.layer.weight) is Own
    assert float(model.loss()) == pytest.approx(live, abs=1e-6)


@pytest.mark.parametrize(
    ("views", "says"),
    [
        (lambda t: (t[:6], t[3:9]), "b: shares a part of its memory with a"),
        (lambda t: (t[3:9], t[:6]), "a: shares a part of its memory with b"),
        (lambda t: (t[:6, :4], t[:4, :6]), "b: is another view of the memory of a"),
        (lambda t: (t[:, :6], t[:, 6:]), None),
        (lambda t: (t[::2], t[1::2]), None),
        (lambda t: (t, t.t()), None),
    ],
)
def test_tensors_that_share_a_part_of_their_memory_are_refused(views, says):
    memory = torch.randn(12, 12)
    given = [nn.Parameter(t) for t in views(memory)]
    named = zip("ab", given, strict=True)
    if says is None:
        zo.MeZO(named, 0.1)
    else:
        with pytest.raises(ValueError, match=says):
            zo.MeZO(named, 0.1)
