"""What a loop with backpropagation keeps or may do: a step keeps it, says that it does not, or refuses it by name."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

import zo
from tests.support.headed import IDS, Headed, X, headed, made
from tests.support.tiny_models import WHOLE, random_model, t5
from zo.weights.space import ParameterSpace


def one_of_two():
    layers = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
    return Headed(layers, lambda layers, x: layers[0](x))


def of_a_softmax():
    """Of the same number added to all of its values softmax and a norm before it show nothing."""
    model = headed(lambda layer, x: F.layer_norm(layer(x).mean(1, True), (16,)))
    model.head.seen = torch.zeros(3)  # as of what a layer keeps of its weight
    nn.init.zeros_(model.head.bias)
    return model


def unlike_backpropagation():
    model = Headed(nn.Embedding(11, 16, padding_idx=3), x=IDS)
    model.head.weight.register_hook(lambda grad: grad * 0)
    return model


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (one_of_two, ["layer.1.weight, layer.1.bias: the closure's loss does not depend on it"]),
        (of_a_softmax, []),
        (
            unlike_backpropagation,
            [
                "head.weight: its gradient hook is never called",
                "layer.weight: row 3 is padding_idx's",
            ],
        ),
    ],
)
def test_what_backpropagation_would_keep_is_said_once(build, said, recwarn):
    model = made(build)
    optimizer = zo.MeZO(model, 0.0, noise="torch")
    with ThreadPoolExecutor(1) as thread:
        elsewhere = lambda: thread.submit(model.loss).result()  # noqa: E731  where no read is seen
        for _ in range(2):
            optimizer.step(elsewhere if build is of_a_softmax else model.loss)
    texts = [str(w.message) for w in recwarn if "backprop" in str(w.message)]
    assert len(texts) == len(said)
    assert all(text.startswith(of) for text, of in zip(texts, said, strict=True))


def writing(of, change=lambda t: t.clip(-1, 1)):
    """Returns a model whose layer's forward writes its weight through an alias of it."""

    def forward(self, ids):
        of(self.weight)[:] = change(of(self.weight))
        return nn.Embedding.forward(self, ids)

    return Headed(type("Clamped", (nn.Embedding,), {"forward": forward})(11, 16), x=IDS)


class Replaced(nn.Linear):
    def forward(self, x):
        self.weight.data = F.normalize(self.weight.data, dim=-1)
        return super().forward(x)


def changing():
    """Later calls of its loss have another batch."""
    model = headed()
    calls, loss = iter(range(100)), model.loss

    def changed():
        model.x = X.roll(max(0, next(calls) - 2), 0)
        return loss()

    model.loss = changed
    return model


def normed():
    return Headed(weight_norm(nn.Linear(16, 16)))


def edited(change):
    """Returns what changes an optimizer's groups."""
    return lambda optimizer: [change(optimizer.param_groups), nullcontext()][1]


EVERY, DRIFTING = ("merged", "subtract", "snapshot", "streamed"), ("merged", "subtract")
WRITES, EDITED = r"writes layer\.weight", "param_groups: tensors or groups were"
FREEZING = partial(torch._inductor.config.patch, freezing=True)
REFUSED = {
    "max_norm": (lambda: Headed(nn.Embedding(11, 16, max_norm=1.0), x=IDS), DRIFTING, WRITES),
    "writes detached": (lambda: writing(lambda w: w.detach()), DRIFTING, WRITES),
    "writes data": (lambda: writing(lambda w: w.data), DRIFTING, WRITES),
    "writes by numpy": (lambda: writing(lambda w: w.detach().numpy()), DRIFTING, WRITES),
    "writes equal sums": (
        lambda: writing(lambda w: w.data, lambda t: t.sort(0).values),
        DRIFTING,
        WRITES,
    ),
    "replaces": (lambda: Headed(Replaced(16, 16)), EVERY, r"replaces the memory of layer\.weight"),
    "changes": (changing, EVERY, "closure: at the same weights it gave"),
    "keeps a weight": (normed, EVERY, "parametrize.cached", lambda _: parametrize.cached()),
    "is frozen": (normed, EVERY, "freezing", lambda _: FREEZING()),
    "a group less": (headed, EVERY, EDITED, edited(lambda of: of.pop(0))),
    "an empty group": (headed, EVERY, EDITED, edited(lambda of: of[0].update(params=[]))),
    "other order": (headed, EVERY, EDITED, edited(lambda of: of.reverse())),
    "a group more": (headed, EVERY, EDITED, edited(lambda of: of.append({**of[0]}))),
    "a tensor less": (headed, EVERY, EDITED, edited(lambda of: of[0]["params"].pop())),
}
"""Models, the policies that refuse their step, why, and what is done before it."""


@pytest.mark.parametrize("restore", EVERY)
@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_cannot_be_measured_or_would_drift_is_refused_and_moves_nothing(name, restore):
    build, refusing, says, *around = REFUSED[name]
    model = made(build)
    model.loss()
    old = [p.detach().clone() for p in model.parameters()]
    groups = [{"params": [*of.parameters()]} for of in (model.layer, model.head)]
    given = groups if says is EDITED else model
    optimizer = zo.MeZO(given, 0.0, eps=1e-2, restore=restore, noise="torch", model=model)
    during = around[0](optimizer) if around else nullcontext()
    refusal = pytest.raises((RuntimeError, ValueError), match=says)
    with refusal if restore in refusing else nullcontext(), during:
        optimizer.step(model.loss)
    torch.testing.assert_close([*model.parameters()], old, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda model, path: zo.LOZO(model, 0.1, restore="factors"),
        lambda model, path: zo.offload(model, "disk", device="cpu", directory=path),
    ],
)
def test_weights_made_in_inference_mode_are_named_where_they_cannot_be_moved(attempt, tmp_path):
    with torch.inference_mode():
        model = headed()
    with pytest.raises(ValueError, match=r"layer\.weight:? was made under torch\.inference_mode"):
        attempt(model, tmp_path)


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
        model = made(lambda: Headed(Versioned(16, 16)))
        model.layer.anew = anew
        if restore == "disk":
            zo.offload(model, "disk", device="cpu", directory=tmp_path / str(anew))
        policy = restore.replace("disk", "streamed")
        optimizer = zo.optimizer(method, model, lr=1e-2, restore=policy, noise=noise)
        losses = [optimizer.step(model.loss) for _ in range(3)]
        with torch.no_grad():
            found.append([losses, optimizer.info.losses, model.loss().item()])
    assert found[0] == found[1]


def test_hooks_of_a_state_are_called_as_torch_calls_them():
    optimizer, calls = zo.MeZO(made(), 0.1, noise="torch"), []
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


MAMBA = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 8}
MAMBA |= {"num_heads": 4, "head_dim": 8, "n_groups": 1, "expand": 2}
DECAYED = {
    **WHOLE,
    "mamba 2": partial(random_model, "Mamba2ForCausalLM", **MAMBA),
    "t5": t5,
    "lstm": lambda: nn.LSTM(4, 4),
    "attention": lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True),
    "bilinear": lambda: nn.Bilinear(2, 2, 2),
}


@pytest.mark.parametrize("name", DECAYED)
def test_weight_decay_spares_biases_and_norms(name):
    space = ParameterSpace.of(DECAYED[name](), "merged")
    decayed = {n for n, decays in zip(space.names, space.decays, strict=True) if decays}
    known = re.compile(
        r"(^|\.)bias|bias$|norm[^.]*\.(weight|bias|gamma)$|\.ln_\w+\.weight$|_bias\b", re.I
    )
    relative = {n for n in decayed if "relative_attention_bias.weight" in n}  # an embedding's
    assert [n for n in decayed - relative if known.search(n)] == []
    matrices = {n for n, p in zip(space.names, space.like, strict=True) if p.dim() > 1}
    assert {n for n in matrices if n.endswith(("proj.weight", "fc1.weight"))} <= decayed
