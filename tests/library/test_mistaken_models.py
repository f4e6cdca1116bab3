"""Models that a policy may mistake: it measures the losses of weights moved by hand, or refuses the layer by name."""

from contextlib import nullcontext
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

import zo
from tests.support import accelerator
from tests.support.headed import IDS, Headed, X, headed, made, optimizer_of
from zo.weights import policy_check
from zo.weights.policy_check import PolicyCheck


def linear(forward, call=None):
    """Returns a model whose layer is a linear one with this forward."""
    return Headed(type("Layer", (nn.Linear,), {"forward": forward})(16, 16), call)


def table(change, call=None):
    """Returns a model whose layer changes the rows that it looks up."""
    forward = lambda self, ids: change(nn.Embedding.forward(self, ids), ids)  # noqa: E731
    return Headed(type("Table", (nn.Embedding,), {"forward": forward})(11, 16), call, IDS)


def rectified(layer):
    own = layer.forward
    layer.forward = lambda x: own(x).relu()
    return Headed(layer)


def transposed():
    layer = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    layer[2].weight = nn.Parameter(layer[0].weight.t())
    return Headed(layer)


class Own(nn.Parameter):
    """A parameter of a class of one's own."""


def owning(of, call=None):
    """Returns a model whose layer has another weight, made of its own."""
    model = headed(call)
    model.layer.weight = of(model.layer.weight.data)
    return model


def gapped(weight):
    return nn.Parameter(torch.cat([weight, weight], 1)[:, ::2])


class Gated(nn.LayerNorm):
    """Rows of a branch reach a norm's second input, too."""

    def forward(self, x, gate):
        return super().forward(x) * gate.sigmoid()


def keeping(self, x):
    """Computes with what its first call made of the weight."""
    if "kept" not in vars(self):
        self.kept = self.weight.t() * 2
    return x @ self.kept + self.bias


def caching(self, x):
    """Keeps it in a dictionary, and reads the weight at each call all the same."""
    kept = vars(self).setdefault("kept", {}).setdefault("product", self.weight.t() * 2)
    return x @ kept + self.bias


class Derived(nn.Linear):
    """Has a buffer made of the first weight, which neither backpropagation nor a step changes."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("scale", self.weight.detach().norm())

    def forward(self, x):
        return super().forward(x) / self.scale


class Borrowed(nn.Module):
    """One call of a layer has another one's weight."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        own, self.b._parameters["weight"] = self.b.weight, self.a.weight
        try:
            x = self.b(x).tanh()
        finally:
            self.b._parameters["weight"] = own
        return self.b(self.a(x))


class Halves(nn.Module):
    """Computes with the halves of one parameter."""

    def __init__(self):
        super().__init__()
        self.whole = nn.Parameter(torch.randn(32, 16) / 4)

    def forward(self, x):
        return F.linear(F.linear(x, self.whole[:16]).tanh(), self.whole[16:])


class Half(nn.Module):
    """Computes with some rows of another module's parameter."""

    def __init__(self, of, rows):
        super().__init__()
        self.of, self.rows = [of], rows

    def forward(self, x):
        return F.linear(x, self.of[0].whole[self.rows])


def borrowed_halves():
    of = Halves()
    layer = nn.Sequential(Half(of, slice(16)), nn.Tanh(), Half(of, slice(16, 32)))
    layer.of = of
    return Headed(layer)


def hooked():
    """A hook gives the layer another parameter before each call."""
    model = headed()
    model.other, model.layer.weight.requires_grad = nn.Parameter(torch.randn(16, 16)), False
    model.layer.register_forward_pre_hook(
        lambda layer, _: layer._parameters.update(weight=model.other)
    )
    return model


def functional(change):
    """Returns a model whose layer is called with a function of its weight."""
    given = lambda layer: {"weight": change(layer.weight)}  # noqa: E731
    return headed(lambda layer, x: torch.func.functional_call(layer, given(layer), (x,)))


@torch.jit.script_if_tracing
def scripted_linear(x, weight):
    return F.linear(x, weight)


EVERY = {"merged", "streamed", "factors", "offload"}
NO_LINEAR = {"merged", "streamed", "offload"}
READ = r"layer\.weight is read outside|layer"
LOOKUP = r"layer \(Table\) computes more than a lookup"
BESIDE = lambda layer, x: layer(x) + x @ layer.weight.T  # noqa: E731
SITUATIONS = {
    "unit": (lambda: table(lambda x, _: F.normalize(x, dim=-1) * 4), NO_LINEAR, LOOKUP),
    "shifted": (lambda: table(lambda x, _: x + 1.0), NO_LINEAR, LOOKUP),
    "scaled": (lambda: table(lambda x, _: x * 4.0), EVERY),
    "tuple": (lambda: table(lambda *of: of, lambda layer, x: layer(x)[0]), NO_LINEAR, LOOKUP),
    "forward": (lambda: rectified(nn.Linear(16, 16)), NO_LINEAR, "has a forward of its own"),
    "norm": (lambda: rectified(nn.LayerNorm(16)), EVERY),
    "transposed": (transposed, {"merged"}, r"layer\.2\.weight|shares its memory"),
    "gapped": (lambda: owning(gapped), EVERY - {"streamed"}, "is a view of another weight"),
    "scripted": (lambda: Headed(torch.jit.trace(nn.Linear(16, 16), X)), {"merged"}, "ScriptModule"),
    "subclass": (lambda: owning(Own), EVERY - {"offload"}, "layer.weight: is a Own"),
    "subclass read": (lambda: owning(Own, BESIDE), {"merged"}, READ),
    "linear(input=x)": (lambda: headed(lambda layer, x: layer(input=x)), EVERY),
    "layer_norm(input=x)": (lambda: Headed(nn.LayerNorm(16), lambda of, x: of(input=x)), EVERY),
    "vector": (lambda: headed(lambda layer, x: layer(x[0, 0]).expand(8, 1, 16)), EVERY),
    "gated": (lambda: Headed(Gated(16), lambda layer, x: layer(x, gate=x)), EVERY),
    "keeps a product": (lambda: linear(keeping), set()),
    "keeps it in a dictionary": (lambda: linear(caching), set()),
    "buffer of a weight": (lambda: Headed(Derived(16, 16)), NO_LINEAR),
    "borrowed weight": (lambda: Headed(Borrowed()), NO_LINEAR),
    "halves": (lambda: Headed(Halves()), NO_LINEAR),
    "borrowed halves": (borrowed_halves, {"merged"}),
    "hook swaps": (hooked, {"merged", "offload"}),
    "functional_call": (lambda: functional(lambda w: w), EVERY),
    "functional_call, changed": (lambda: functional(lambda w: w * 2), {"merged"}),
    "weight_norm": (lambda: Headed(weight_norm(nn.Linear(16, 16))), NO_LINEAR),
    "spectral_norm": (lambda: Headed(spectral_norm(nn.Linear(16, 16))), NO_LINEAR),
    "attention": (  # its fast path gives the weights to one fused function
        lambda: Headed(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)),
        {"merged"},
    ),
    "checkpoint": (lambda: headed(partial(checkpoint, use_reentrant=False)), EVERY),
    "script_if_tracing": (
        lambda: linear(lambda self, x: scripted_linear(x, self.weight) + self.bias),
        NO_LINEAR,
    ),
    "vmap": (lambda: headed(lambda layer, x: torch.func.vmap(layer)(x)), EVERY),
}
"""Models, the places of weights where they are measured, and what is said elsewhere."""


def by_hand(build, optimizer):
    """Returns the first two losses of a new model, displaced along a step's direction."""
    space, z, found = optimizer.method.params, optimizer.method.direction(0), []
    for sign in (1, -1):
        model = made(build)
        named = dict(model.named_parameters())
        with torch.no_grad():
            for i, (name, p) in enumerate(zip(space.names, space.like, strict=True)):
                named[name].add_(0.1 * sign * z.sample(i, p))
            found.append(float(model.loss()))
    return found


@pytest.mark.parametrize("policy", sorted(EVERY))
@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.filterwarnings("error:.*does not depend on it")
def test_losses_are_those_by_hand_or_the_weight_is_named(name, policy, tmp_path):
    build, computes, *says = SITUATIONS[name]

    def measured():
        model = made(build)
        if policy == "offload":
            zo.offload(model, "disk", device="cpu", directory=tmp_path)
        restore = policy.replace("offload", "streamed")
        optimizer = optimizer_of("lozo" if policy == "factors" else "mezo", model, restore, eps=0.1)
        truth = by_hand(build, optimizer) if policy in computes else []
        optimizer.step(model.loss)
        return optimizer.info.losses[:2], truth

    if policy in computes:
        found, truth = measured()
        assert found == pytest.approx(truth, abs=2e-6)
    else:
        with pytest.raises((ValueError, RuntimeError), match=says[0] if says else "layer|other"):
            measured()


def test_a_parameter_of_another_class_is_read_at_theta_and_stays_of_its_class():
    model = made(lambda: owning(Own))
    with zo.LOZO(model, 0.1, restore="factors") as optimizer:
        optimizer.step(model.loss)
        assert model.state_dict()["layer.weight"].equal(model.layer.weight)
        live = float(model.loss().detach())
    assert type(model.layer.weight) is Own
    assert float(model.loss().detach()) == pytest.approx(live, abs=1e-6)


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
    given = map(nn.Parameter, views(torch.randn(12, 12)))
    with pytest.raises(ValueError, match=says) if says else nullcontext():
        zo.MeZO(zip("ab", given, strict=True), 0.1)


class Escaped(Headed):
    """Reads an alias of a weight, which no guard of a policy sees."""

    def __init__(self, dtype):
        super().__init__(nn.Linear(16, 16), lambda of, x: of(x) + 4 * x @ self.alias.to(x.device).T)
        self.to(dtype)
        self.x, self.alias = X.to(dtype), self.layer.weight.data


def sound(dtype):
    return Headed(nn.Linear(16, 16), x=X.to(dtype)).to(dtype)


PLACES = {
    "mezo": ("streamed", None),
    "lozo": ("factors", None),
    "eggroll": ("factors", None),
    "hizoo": ("streamed", None),
    "mezo, merged": ("merged", None),
    "eggroll, streamed": ("streamed", None),
    "mezo, disk": ("streamed", {"where": "disk", "device": "cpu"}),
    "mezo, host": ("streamed", {"where": "cpu", "device": "pretend:0"}),
}
"""Methods and places of the weights."""
WHOLE, MOST, LESS = 1e9, 1300, 600
"""Bytes for copies: of all tensors, of all but the head's matrix, of all but the layer's."""
SAID = {LESS: "copies of 3 of 4 tensors, which alone were compared"}
SAID[0] = "was not compared: no memory is free for a copy"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CASES = [
    *((place, WHOLE, dtype) for place in PLACES for dtype in DTYPES),
    *((place, room, DTYPES[(i + i // 3) % 3]) for i, (place, room) in enumerate(product(PLACES, (MOST, LESS, 0)))
        if PLACES[place][1] is None),
    *((place, 4 * MOST, dtype) for place, of in PLACES.items() if of[1] for dtype in DTYPES[:2]),
]  # fmt: skip


@pytest.mark.parametrize(("place", "room", "dtype"), CASES, ids=str)
def test_the_first_step_compares_the_tensors_that_memory_has_room_for(
    place, room, dtype, tmp_path, monkeypatch
):
    """It changes no bit of a sound model's, and moves none that computes with a weight which escapes the policy."""
    monkeypatch.setattr(policy_check, "free_bytes", lambda _: room * dtype.itemsize / 4)
    restore, away = PLACES[place]

    def prepared(build, name, check=False):
        model = made(lambda: build(dtype))
        if away:
            accelerator.register()
            model.x = model.x.to(away["device"])
            zo.offload(model, **away, directory=tmp_path / name)
            if name == "alias after it":
                model.alias = model.layer.weight.data
        return model, optimizer_of(place.partition(",")[0], model, restore, check_closure=check)

    (model, optimizer), (plain, unwatched) = prepared(sound, "watched"), prepared(sound, "plain")
    check = PolicyCheck(optimizer.method.params, model.loss, lambda values: [list(values)])
    with check.watching():
        optimizer.step(model.loss)
    unwatched.step(plain.loss)
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))
    assert SAID.get(room, "displaced by hand") in check.said
    assert ("2 parts" in check.said) == (room in (MOST, 4 * MOST))
    for alias in ["alias before it", "alias after it"] if away else [""]:
        model, optimizer = prepared(Escaped, alias, check=True)
        old = [p.clone() for p in (*model.parameters(), model.alias)]
        if room in SAID:
            with pytest.warns(UserWarning, match=SAID[room]):
                optimizer.step(model.loss)
        elif restore == "merged":  # reads weights where they are
            optimizer.step(model.loss)
        else:
            with pytest.raises(RuntimeError, match="the model computes with other weights"):
                optimizer.step(model.loss)
            assert all(map(torch.equal, old, (*model.parameters(), model.alias)))
            assert optimizer.step_index == 0


def hook(model):
    weight = model.layer.weight.data
    model.layer.register_forward_hook(lambda layer, args, out: out + 4 * args[0] @ weight.T)


def resumed(model):
    weight = model.layer.weight.data
    model.call = lambda layer, x: layer(x) + 4 * x @ weight.T


@pytest.mark.parametrize(("method", "restore"), [("mezo", "streamed"), ("lozo", "factors")])
@pytest.mark.parametrize("change", [hook, resumed])
def test_a_changed_model_and_a_resumed_training_are_compared_again(method, restore, change):
    model = made(headed)
    optimizer = optimizer_of(method, model, restore)
    for _ in range(2):
        optimizer.step(model.loss)
    change(model)
    if change is resumed:
        state = optimizer.state_dict()
        optimizer.close()
        optimizer = optimizer_of(method, model, restore)
        optimizer.load_state_dict(state)
    with pytest.raises(RuntimeError, match="the model computes with other weights"):
        optimizer.step(model.loss)
