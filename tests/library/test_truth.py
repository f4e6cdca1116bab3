"""Models that a policy may mistake: it measures the losses of weights moved by hand, or refuses the layer by name."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

import zo
from tests.lm.test_adapt import adapted, quantised
from tests.support import accelerator
from tests.support.tiny_models import MODELS, WINDOWS, random_model, t5
from tests.support.tiny_runs import TinyRun
from zo.weights import policy_check
from zo.weights.policy_check import PolicyCheck
from zo.weights.space import ParameterSpace

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
        return F.cross_entropy(self.head(found.mean(1)), Y.to(found.device))


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


def gapped():
    layer = nn.Linear(16, 16)
    layer.weight = nn.Parameter((torch.randn(16, 32) / 4)[:, ::2])
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


def beside(layer, x):
    return layer(x) + x @ layer.weight.T


def one_row(layer, x):
    return layer(x[0, 0]).expand(8, 1, 16)


def made(build):
    torch.manual_seed(0)
    return build().eval()


def optimizer_of(method, model, restore, **settings):
    given = {"restore": restore, "noise": "torch", **settings}
    given |= {"baseline": "population"} if method == "eggroll" else {}
    return zo.optimizer(method, model, 0.1, **given)


def test_a_parameter_of_another_class_is_read_at_theta_and_stays_of_its_class():
    model = made(lambda: Headed(owned()))
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
    memory = torch.randn(12, 12)
    given = [nn.Parameter(t) for t in views(memory)]
    named = zip("ab", given, strict=True)
    if says is None:
        zo.MeZO(named, 0.1)
    else:
        with pytest.raises(ValueError, match=says):
            zo.MeZO(named, 0.1)


class Escaped(Headed):
    """Reads an alias of a weight, which no guard of a policy sees."""

    def __init__(self, dtype):
        super().__init__(nn.Linear(16, 16))
        self.to(dtype)
        self.x, self.alias = X.to(dtype), self.layer.weight.data
        self.call = lambda layer, x: layer(x) + 4 * x @ self.alias.to(x.device).T


HALVES = (torch.bfloat16, torch.float16)
ESCAPES = []
ESCAPED = [("mezo", "streamed"), ("lozo", "factors")]
for kind in (*ESCAPED, ("eggroll", "factors")):
    ESCAPES += [(*kind, dtype) for dtype in (torch.float32, *HALVES)]


@pytest.mark.parametrize(("method", "restore", "dtype"), ESCAPES, ids=str)
def test_the_first_step_finds_a_weight_that_escapes_the_policy(method, restore, dtype):
    model = made(lambda: Escaped(dtype))
    old = [p.clone() for p in model.parameters()]
    optimizer = optimizer_of(method, model, restore)
    with pytest.raises(RuntimeError, match="the model computes with other weights"):
        optimizer.step(model.loss)
    assert all(map(torch.equal, old, model.parameters()))
    assert optimizer.step_index == 0
    model = made(lambda: Escaped(dtype))
    optimizer_of(method, model, restore, check_closure=False).step(model.loss)


ROOM = 1300
"""Bytes for copies of all tensors of `Headed` but its head's matrix."""
LESS = 600
"""Bytes for copies of all tensors but its layer's matrix."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("method", "restore"),
    [
        *ESCAPED,
        ("mezo", "merged"),
        ("hizoo", "streamed"),
        pytest.param("eggroll", "streamed", marks=pytest.mark.process),
    ],
)
def test_the_tensors_that_memory_has_room_for_are_compared(method, restore, dtype, monkeypatch):
    scale = dtype.itemsize / 4
    for room, says in ((LESS, "copies of 3 of 4 tensors, which alone were compared"), (ROOM, None)):
        monkeypatch.setattr(policy_check, "free_bytes", lambda device, free=room: free * scale)
        sound = [made(lambda: Headed(nn.Linear(16, 16), x=X.to(dtype)).to(dtype)) for _ in range(2)]
        with pytest.warns(UserWarning, match=says) if says else nullcontext():
            optimizer_of(method, sound[0], restore).step(sound[0].loss)
        optimizer_of(method, sound[1], restore, check_closure=False).step(sound[1].loss)
        assert all(map(torch.equal, *(m.state_dict().values() for m in sound)))
    model = made(lambda: Escaped(dtype))
    if restore != "merged":
        with pytest.raises(RuntimeError, match="the model computes with other weights"):
            optimizer_of(method, model, restore).step(model.loss)
    monkeypatch.setattr(policy_check, "free_bytes", lambda device: 0)
    model = made(lambda: Escaped(dtype))
    with pytest.warns(UserWarning, match="was not compared: no memory is free for a copy"):
        optimizer_of(method, model, restore).step(model.loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("where", "device"), [("disk", "cpu"), ("cpu", "pretend:0")])
@pytest.mark.parametrize("room", [1e9, 4 * ROOM])
def test_offloaded_weights_are_compared(where, device, room, dtype, tmp_path, monkeypatch):
    """All together, and where less than a quarter of the memory holds them, in two parts."""
    accelerator.register()
    monkeypatch.setattr(policy_check, "free_bytes", lambda _: room * dtype.itemsize / 4)

    def away(model, path):
        model.x = model.x.to(device)
        zo.offload(model, where, device=device, directory=tmp_path / path)
        return model

    sound = [made(lambda: Headed(nn.Linear(16, 16), x=X.to(dtype)).to(dtype)) for _ in range(2)]
    away(sound[0], "sound")
    given = [optimizer_of("mezo", m, "streamed", check_closure=False) for m in sound]
    check = PolicyCheck(given[0].method.params, sound[0].loss, lambda values: [list(values)])
    with check.watching():
        given[0].step(sound[0].loss)
    assert ("2 parts" in check.said) == (room < 1e9)
    given[1].step(sound[1].loss)
    assert all(map(torch.equal, *(m.state_dict().values() for m in sound)))
    for taken in ("before", "after"):
        model = away(made(lambda: Escaped(dtype)), taken)
        if taken == "after":
            model.alias = model.layer.weight.data
        old = [p.clone() for p in (*model.parameters(), model.alias)]
        with pytest.raises(RuntimeError, match="the model computes with other weights"):
            optimizer_of("mezo", model, "streamed").step(model.loss)
        assert all(map(torch.equal, old, (*model.parameters(), model.alias)))


class Kept(nn.Linear):
    """Computes with what its first call made of the weight."""

    kept = None

    def forward(self, x):
        self.kept = self.weight.t() * 2 if self.kept is None else self.kept
        return x @ self.kept + self.bias


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
    """Two layers compute with the halves of one parameter."""

    def __init__(self):
        super().__init__()
        self.whole = nn.Parameter(torch.randn(32, 16) / 4)

    def forward(self, x):
        return F.linear(F.linear(x, self.whole[:16]).tanh(), self.whole[16:])


class Half(nn.Module):
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
    model = Headed(nn.Linear(16, 16))
    model.other, model.layer.weight.requires_grad = nn.Parameter(torch.randn(16, 16)), False
    model.layer.register_forward_pre_hook(
        lambda layer, _: layer._parameters.update(weight=model.other)
    )
    return model


def functional(change):
    def call(layer, x):
        return torch.func.functional_call(layer, {"weight": change(layer.weight)}, (x,))

    return lambda: Headed(nn.Linear(16, 16), call)


@torch.jit.script_if_tracing
def scripted_linear(x, weight):
    return F.linear(x, weight)


def checkpointed(layer, x):
    return checkpoint(layer, x, use_reentrant=False)


def attention():
    """Its fast path gives the weights to one fused function."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return Headed(layer)


class Scripted(nn.Linear):
    def forward(self, x):
        return scripted_linear(x, self.weight) + self.bias


EVERY = {"merged", "streamed", "factors", "offload"}
NO_LINEAR = {"merged", "streamed", "offload"}
READ = r"layer\.weight is read outside|layer"
LOOKUP = r"layer \(Table\) computes more than a lookup"
SITUATIONS = {
    "unit": (lambda: table(unit), NO_LINEAR, LOOKUP),
    "shifted": (lambda: table(shifted), NO_LINEAR, LOOKUP),
    "scaled": (lambda: table(scaled), EVERY),
    "tuple": (lambda: table(pair, lambda layer, x: layer(x)[0]), NO_LINEAR, LOOKUP),
    "forward": (lambda: rectified(nn.Linear(16, 16)), NO_LINEAR, "has a forward of its own"),
    "norm": (lambda: rectified(nn.LayerNorm(16)), EVERY),
    "transposed": (transposed, {"merged"}, r"layer\.2\.weight|shares its memory"),
    "gapped": (gapped, EVERY - {"streamed"}, "is a view of another weight, or of a larger"),
    "scripted": (scripted, {"merged"}, "ScriptModule"),
    "subclass": (lambda: Headed(owned()), EVERY - {"offload"}, "layer.weight: is a Own"),
    "subclass read": (lambda: Headed(owned(), beside), {"merged"}, READ),
    "linear(input=x)": (lambda: keyword(nn.Linear(16, 16)), EVERY),
    "layer_norm(input=x)": (lambda: keyword(nn.LayerNorm(16)), EVERY),
    "vector": (lambda: Headed(nn.Linear(16, 16), one_row), EVERY),
    "gated": (gated, EVERY),
    "keeps a product": (lambda: Headed(Kept(16, 16)), set()),
    "buffer of a weight": (lambda: Headed(Derived(16, 16)), NO_LINEAR),
    "borrowed weight": (lambda: Headed(Borrowed()), NO_LINEAR),
    "halves": (lambda: Headed(Halves()), NO_LINEAR),
    "borrowed halves": (borrowed_halves, {"merged"}),
    "hook swaps": (hooked, {"merged", "offload"}),
    "functional_call": (functional(lambda w: w), EVERY),
    "functional_call, changed": (functional(lambda w: w * 2), {"merged"}),
    "weight_norm": (lambda: Headed(weight_norm(nn.Linear(16, 16))), NO_LINEAR),
    "spectral_norm": (lambda: Headed(spectral_norm(nn.Linear(16, 16))), NO_LINEAR),
    "attention": (attention, {"merged"}),
    "checkpoint": (lambda: Headed(nn.Linear(16, 16), checkpointed), EVERY),
    "script_if_tracing": (lambda: Headed(Scripted(16, 16)), NO_LINEAR),
    "vmap": (lambda: Headed(nn.Linear(16, 16), lambda m, x: torch.func.vmap(m)(x)), EVERY),
}


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
    restore = "streamed" if policy == "offload" else policy

    def made_step():
        model = made(build)
        if policy == "offload":
            zo.offload(model, "disk", device="cpu", directory=tmp_path)
        optimizer = optimizer_of("lozo" if policy == "factors" else "mezo", model, restore, eps=0.1)
        truth = by_hand(build, optimizer) if policy in computes else []
        optimizer.step(model.loss)
        return optimizer.info.losses[:2], truth

    if policy in computes:
        found, truth = made_step()
        assert found == pytest.approx(truth, abs=2e-6)
    else:
        with pytest.raises((ValueError, RuntimeError), match=says[0] if says else "layer|other"):
            made_step()


def test_weights_that_change_no_loss_are_named():
    model = made(lambda: Headed(nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])))
    model.call = lambda layers, x: layers[0](x)
    old = model.layer[1].weight.clone()
    with pytest.warns(
        UserWarning, match=r"layer\.1\.weight, layer\.1\.bias: the closure's loss does"
    ):
        zo.MeZO(model, 0.0, restore="streamed", noise="torch").step(model.loss)
    assert torch.equal(model.layer[1].weight, old)


def test_a_head_of_a_softmax_is_not_taken_for_unused(recwarn):
    """Of the same number added to all of its values softmax and a norm before it show nothing."""

    def build():
        model = Headed(
            nn.Linear(16, 16), lambda layer, x: F.layer_norm(layer(x).mean(1, True), (16,))
        )
        model.head.seen = torch.zeros(3)  # as of what a layer keeps of its weight
        return model

    model = made(build)
    nn.init.zeros_(model.head.bias)
    with ThreadPoolExecutor(1) as thread:  # where no read is seen
        zo.MeZO(model, 0.0, noise="torch").step(lambda: thread.submit(model.loss).result())
    assert not [w for w in recwarn if "does not depend" in str(w.message)]


def clamped(of, change=lambda t: t.clip(-1, 1)):
    """A layer whose forward writes its weight through an alias of it."""

    def forward(self, ids):
        of(self.weight)[:] = change(of(self.weight))
        return nn.Embedding.forward(self, ids)

    return type("Clamped", (nn.Embedding,), {"forward": forward})


WRITING = [
    partial(nn.Embedding, max_norm=1.0),
    clamped(lambda w: w.detach()),
    clamped(lambda w: w.data),
    clamped(lambda w: w.detach().numpy()),
    clamped(lambda w: w.data, lambda t: t.sort(0).values),  # the sum stays
]


@pytest.mark.parametrize("layer", WRITING)
@pytest.mark.parametrize("restore", ["merged", "subtract", "snapshot", "streamed"])
def test_a_forward_that_writes_weights_is_refused_where_they_would_drift(layer, restore):
    model = made(lambda: Headed(layer(11, 16), x=IDS))
    model.loss()
    old = model.layer.weight.detach().clone()
    optimizer = zo.MeZO(model, 0.0, eps=1e-2, restore=restore, noise="torch")
    if restore in ("merged", "subtract"):
        with pytest.raises(RuntimeError, match=r"writes layer\.weight"):
            optimizer.step(model.loss)
    else:
        optimizer.step(model.loss)
    torch.testing.assert_close(model.layer.weight, old, rtol=1e-5, atol=1e-6)


class Replaced(nn.Linear):
    def forward(self, x):
        self.weight.data = F.normalize(self.weight.data, dim=-1)
        return super().forward(x)


@pytest.mark.parametrize("restore", ["merged", "snapshot"])
def test_a_forward_that_replaces_a_weights_memory_is_refused_before_a_step(restore):
    model = made(lambda: Headed(Replaced(16, 16)))
    old = model.state_dict(keep_vars=True)["head.weight"].clone()
    optimizer = zo.MeZO(model, 0.1, restore=restore, noise="torch")
    with pytest.raises(ValueError, match=r"closure: replaces the memory of layer\.weight"):
        optimizer.step(model.loss)
    assert torch.equal(model.head.weight, old)


@pytest.mark.parametrize("restore", ["merged", "snapshot", "streamed"])
def test_a_closure_whose_later_calls_differ_is_refused_as_such(restore):
    model = made(lambda: Headed(nn.Linear(16, 16)))
    calls = iter(range(100))

    def closure():
        model.x = X.roll(max(0, next(calls) - 2), 0)
        return model.loss()

    with pytest.raises(ValueError, match="closure: at the same weights it gave"):
        zo.MeZO(model, 0.1, restore=restore, noise="torch").step(closure)


def test_weights_made_in_inference_mode_are_named_where_they_cannot_be_moved(tmp_path):
    with torch.inference_mode():
        model = Headed(nn.Linear(16, 16))
    with pytest.raises(ValueError, match=r"layer\.weight was made under torch\.inference_mode"):
        zo.LOZO(model, 0.1, restore="factors")
    with pytest.raises(ValueError, match=r"layer\.weight: was made under torch\.inference_mode"):
        zo.offload(model, "disk", device="cpu", directory=tmp_path)


def cached(step):
    with parametrize.cached():
        step()


def frozen(step):
    with torch._inductor.config.patch(freezing=True):
        step()


@pytest.mark.parametrize(("keep", "says"), [(cached, "parametrize.cached"), (frozen, "freezing")])
def test_a_step_where_torch_keeps_earlier_weights_is_refused(keep, says):
    model = made(lambda: Headed(weight_norm(nn.Linear(16, 16))))
    optimizer = zo.MeZO(model, 0.1, noise="torch")
    with pytest.raises(RuntimeError, match=says):
        keep(lambda: optimizer.step(model.loss))
    optimizer.step(model.loss)


def test_what_backpropagation_would_keep_is_said(recwarn):
    model = made(lambda: Headed(nn.Embedding(11, 16, padding_idx=3), x=IDS))
    model.head.weight.register_hook(lambda grad: grad * 0)
    optimizer = zo.MeZO(model, 0.1, noise="torch")
    optimizer.step(model.loss)
    optimizer.step(model.loss)
    texts = [str(warning.message) for warning in recwarn if "backprop" in str(warning.message)]
    assert [t.split(",")[0] for t in texts] == [
        "head.weight: its gradient hook is never called",
        "layer.weight: row 3 is padding_idx's",
    ]


EDITS = [
    lambda o: o.param_groups.pop(0),
    lambda o: o.param_groups[0].update(params=[]),
    lambda o: o.param_groups.reverse(),
    lambda o: o.param_groups.append({**o.param_groups[0]}),
    lambda o: o.param_groups[0]["params"].pop(),
]


@pytest.mark.parametrize("edit", EDITS)
def test_edited_parameter_groups_are_refused(edit):
    model = made(lambda: Headed(nn.Linear(16, 16)))
    layers = (model.layer, model.head)
    groups = [{"params": list(of.parameters()), "lr": 0.1} for of in layers]
    optimizer = zo.MeZO(groups, 0.1, noise="torch")
    edit(optimizer)
    with pytest.raises(RuntimeError, match="param_groups: tensors or groups were"):
        optimizer.step(model.loss)


def test_hooks_of_a_state_are_called_as_torch_calls_them():
    optimizer, calls = zo.MeZO(made(lambda: Headed(nn.Linear(16, 16))), 0.1, noise="torch"), []
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "note": 1})
    optimizer.register_load_state_dict_pre_hook(lambda o, state: calls.append(state.pop("note")))
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append("loaded"))
    state = optimizer.state_dict()
    assert state["param_groups"] == torch.optim.Optimizer.state_dict(optimizer)["param_groups"]
    optimizer.load_state_dict(state)
    assert calls[0] == "before saving"
    assert calls[-2:] == [1, "loaded"]
    assert state["note"] == 1


POLICIES = [("mezo", "merged"), ("mezo", "subtract"), ("bszo", "snapshot"), ("fzoo", "streamed")]
POLICIES += [("lozo", "factors"), ("eggroll", "factors")]
DTYPES = (torch.float32, *HALVES)
NAMES = [n for n in (*MODELS, *WINDOWS) if n not in ("gemma 3, with pictures", "gpt-oss")]
WHOLE = {name: {**MODELS, **WINDOWS}[name] for name in NAMES}


def of_low_rank(bits, name, adapter_dtype, dtype):
    return adapted(quantised(bits, lambda: MODELS["llama"]().to(dtype)), name, dtype=adapter_dtype)


ADAPTED = {
    f"{bits}, {name} in {of}": partial(of_low_rank, bits, name, of)
    for bits in ("int8", "nf4")
    for name in ("lora", "ia3")
    for of in ("float32", "model")
}
ROTATED = [
    (name, *POLICIES[(i + j) % 6], DTYPES[(i + j) % 3 - j // 3])
    for j in range(6)
    for i, name in enumerate(NAMES)
]
ROTATED += [  # IA3's vectors belong to no layer that factors displaces
    (name, *policy, dtype)
    for i, name in enumerate(ADAPTED)
    for j, policy in enumerate(POLICIES)
    for dtype in [torch.bfloat16 if "factors" in policy else DTYPES[(i + j) % 3]]
    if not ("ia3" in name and "factors" in policy)
]
DEFAULT = {
    *ROTATED[: len(NAMES)],
    *(of for of in ROTATED if of[0] in ADAPTED and of[2] == "factors"),
}
SOUND = [
    pytest.param(*case, marks=[] if case in DEFAULT else [pytest.mark.process]) for case in ROTATED
]


@pytest.mark.parametrize(("name", "method", "restore", "dtype"), SOUND, ids=str)
def test_sound_models_pass_and_their_step_has_the_same_bits(name, method, restore, dtype):
    if name in ADAPTED:
        models = [ADAPTED[name](dtype).model for _ in range(2)]
    else:
        models = [WHOLE[name]().to(dtype) for _ in range(2)]
    runs = [TinyRun(model, method, restore, eps=1e-3) for model in models]
    check = PolicyCheck(runs[0].params, runs[0].loss, lambda values: [list(values)])
    with check.watching():
        found = runs[0].optimizer.step(runs[0].loss)
    assert "displaced by hand" in check.said
    assert found == runs[1].optimizer.step(runs[1].loss)
    assert all(map(torch.equal, *(run.weights() for run in runs)))


MAMBA = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 8}
MAMBA |= {"num_heads": 4, "head_dim": 8, "n_groups": 1, "expand": 2}
WILD = {**WHOLE}
WILD["mamba 2"] = partial(random_model, "Mamba2ForCausalLM", **MAMBA)
WILD["t5"] = t5


@pytest.mark.parametrize("name", WILD)
def test_weight_decay_spares_biases_and_norms_of_transformers_models(name):
    space = ParameterSpace.of(WILD[name](), "merged")
    decayed = {n for n, decays in zip(space.names, space.decays, strict=True) if decays}
    known = re.compile(r"bias$|norm[^.]*\.(weight|bias|gamma)$|\.ln_\w+\.weight$|_bias\b", re.I)
    relative = {n for n in decayed if "relative_attention_bias.weight" in n}  # an embedding's
    assert [n for n in decayed - relative if known.search(n)] == []
    matrices = {n for n, p in zip(space.names, space.like, strict=True) if p.dim() > 1}
    assert {n for n in matrices if n.endswith(("proj.weight", "fc1.weight"))} <= decayed


@pytest.mark.parametrize(
    "layer", [nn.LSTM(4, 4), nn.MultiheadAttention(8, 2, add_bias_kv=True), nn.Bilinear(2, 2, 2)]
)
def test_weight_decay_spares_biases_of_torchs_layers(layer):
    space = ParameterSpace.of(layer, "merged")
    assert all(("bias" in n) != d for n, d in zip(space.names, space.decays, strict=True))


class Versioned(nn.Linear):
    """Computes with what it has made of its weight, which it makes anew once the weight is written."""

    made, version = None, -1

    def forward(self, x):
        if self.anew or self.version != self.weight._version:
            self.made, self.version = self.weight.detach().tanh().clone(), self.weight._version
        return F.linear(x, self.made, self.bias)


@pytest.mark.parametrize("noise", ["torch", "philox"])
@pytest.mark.parametrize(
    ("method", "restore"),
    [("mezo", of) for of in ("merged", "subtract", "snapshot", "streamed", "disk")]
    + [("mezo_adam", "merged"), ("mezo_adam", "streamed"), ("lozo", "streamed"), ("lozo", "disk")],
)
def test_a_layer_that_keeps_what_it_made_of_a_weight_sees_that_steps_write_it(
    tmp_path, method, restore, noise
):
    """All passes over weights and state count as writes, compiled ones, too."""
    found = []
    for anew in (True, False):
        torch.manual_seed(0)
        model = Headed(Versioned(16, 16))
        model.layer.anew = anew
        if restore == "disk":
            zo.offload(model, "disk", device="cpu", directory=tmp_path / str(anew))
        policy = restore.replace("disk", "streamed")
        optimizer = zo.optimizer(method, model, lr=1e-2, restore=policy, noise=noise)
        losses = [optimizer.step(model.loss) for _ in range(3)]
        with torch.no_grad():
            found.append([losses, optimizer.info.losses, model.loss().item()])
    assert found[0] == found[1]
