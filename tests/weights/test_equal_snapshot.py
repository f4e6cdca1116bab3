"""Wherever weights are and however they move, losses and θ are those of `snapshot`, and a replay makes θ again."""

import re
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

import zo
from tests.lm.test_adapt import BITS, adapted, quantised
from tests.support import accelerator
from tests.support.pairwise import pairwise, rotated
from tests.support.quadratic import DTYPES, ROUNDED, ZEROTH_ORDER, same
from tests.support.tiny_models import MODELS, WHOLE, seeded, t5
from tests.support.tiny_runs import TinyRun
from zo.optim import OPTIMIZERS
from zo.weights.policy_check import PolicyCheck
from zo.weights.restore import RestoreError

F32 = DTYPES[0]
DRAWS = torch.Generator().manual_seed(0)
TOKENS = torch.randint(5, 300, (4, 7), generator=DRAWS)
IMAGES = torch.randn(6, 3, 8, 8, generator=DRAWS)
ROWS = torch.randn(6, 5, generator=DRAWS)
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2])


class VisionTransformer(nn.Module):
    """A class token and positions belong to no module of their own."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8) / 5)
        self.positions = nn.Parameter(torch.randn(1, 5, 8) / 5)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.layer(x)[:, 0])


class Recurrent(nn.Module):
    """All matrices of a GRU belong to one module."""

    def __init__(self):
        super().__init__()
        self.embedding, self.gru, self.head = nn.Embedding(300, 6), nn.GRU(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.gru(self.embedding(x).transpose(0, 1))[0][-1])


def linear():
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3))


def convolution():
    first = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4), nn.ReLU()
    return nn.Sequential(*first, nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(144, 3))


def of_tokens(model):
    return model(input_ids=TOKENS, labels=TOKENS).loss


def of_classes(inputs, model):
    given = inputs if inputs.dtype == torch.long else inputs.to(next(model.parameters()).dtype)
    return nn.functional.cross_entropy(model(given).float(), CLASSES[: len(inputs)])


def of_autocast(dtype, model):
    """What a probe displaces within the closure's calls is not cast."""
    with torch.autocast("cpu", dtype):
        return of_tokens(model)


def of_reference(lent, model):
    """Of the model, and of the same modules with weights that are lent to them and are not displaced."""
    own = model(TOKENS, labels=TOKENS)
    log_p = own.logits.log_softmax(-1)
    q = torch.func.functional_call(model, lent, (TOKENS,)).logits.softmax(-1)
    return own.loss + 100 * nn.functional.kl_div(log_p, q, reduction="none").mean()


def aliased():
    model = MODELS["llama"]()
    model.aliases = {name: p.detach() for name, p in model.named_parameters()}
    return model


def of_aliases(model):
    """Of weights that are lent and are the model's own, which are displaced whoever holds them."""
    return torch.func.functional_call(model, model.aliases, (TOKENS,)).logits.std()


def embedding_of(make):
    """Makes a model whose input embeddings alone are trained."""
    model = make().requires_grad_(False)
    model.get_input_embeddings().weight.requires_grad_(True)
    return model


def lent(make):
    return {name: 0.9 * p.detach() for name, p in make().named_parameters()}


OWN = {
    "linear": (linear, partial(of_classes, ROWS)),
    "vision transformer": (VisionTransformer, partial(of_classes, IMAGES)),
    "convolution": (convolution, partial(of_classes, IMAGES)),
    "recurrent": (Recurrent, partial(of_classes, TOKENS)),
}
"""Models with losses of their own; those of others are a mini-batch's."""
LENT = {
    **{
        f"{name}, lent": (MODELS[name], partial(of_reference, lent(MODELS[name])))
        for name in ("opt", "llama", "llama, tied")
    },
    "llama, aliases": (aliased, of_aliases),
}
CAST = {name: MODELS[name] for name in ("opt", "opt, untied", "llama", "llama, tied", "bert")}
CAST |= {"t5": t5, "t5, untied": partial(t5, tie_word_embeddings=False)}
CAST = {
    f"{name} as {dtype}, {part}": (partial(of, make), partial(of_autocast, dtype))
    for (name, make), (part, of), dtype in rotated(
        CAST.items(), {"all": lambda make: make(), "embedding": embedding_of}.items(), DTYPES[1:]
    )
}
BASES, VIRTUAL = ["llama, tied", "opt"], ["lora", "prefix", "prompt", "ia3"]
ADAPTERS = [
    *pairwise(BASES, [None, *BITS], VIRTUAL, ["float32", "model"]),
    *((*of, "") for of in pairwise(BASES, [None, *BITS], ["layers", "bias"])),
    *(("llama", bits, "scales", "") for bits in BITS),
    ("opt", "nf4", "none", ""),
]
"""Models, how they are quantised, adapters and their dtypes."""
ADAPTED = {" ".join(map(str, of)): of for of in ADAPTERS}


def made(name, dtype):
    """Returns a model and its loss; None is that of a mini-batch."""
    if name in OWN | LENT | CAST:
        make, loss = (OWN | LENT | CAST)[name]
        return seeded(make).to(dtype), loss
    if name in WHOLE:
        return WHOLE[name]().to(dtype), None
    base, bits, adapter, of = ADAPTED[name]
    settings = {"dtype": of} if of else {}
    return adapted(
        quantised(bits, lambda: MODELS[base]().to(dtype)), adapter, **settings
    ).model, None


PLACES = {
    "snapshot": ("snapshot", "snapshot", None),
    "merged": ("merged", "subtract", None),
    "streamed": ("streamed", "snapshot", None),
    "disk": ("streamed", "snapshot", {"where": "disk", "device": "cpu"}),
    "host": ("streamed", "snapshot", {"where": "cpu", "device": "pretend:0"}),
    "factors": ("factors", "snapshot", None),
}
"""Place of the weights: the policy there, the one in memory whose steps it makes, and what `zo.offload` takes."""

UNFIT = {
    "streamed": ("vision transformer", "recurrent"),
    "disk": ("vision transformer", "recurrent", "llama, aliases"),
    "factors": ("vision transformer", "recurrent", "convolution", "ia3", "scales"),
}
"""Models that a place refuses by name."""
CANDIDATES = [(1, 4, 2), (1, 1)]
"""Lengths in tokens; those of one token are looked up."""
METHODS = [*ZEROTH_ORDER, "sparse_mezo"]
SMALL_STATE = [n for n in METHODS if not OPTIMIZERS[n.split()[0]].config.state_tensors]
LOW_RANK = [
    *(("lozo", of) for of in ({}, {"two_sided": False}, {"n": 2, "divide_by_rank": True})),
    ("lozo", {"n": 2, "rank": 1, "two_sided": False}),
    ("lozo_m", {}),
    ("subzero", {"rank": 3}),
    *(("tezo", of) for of in ({"variant": "sgd"}, {"variant": "momentum"}, {"anchor": "start", "anchor_decay": 1e3})),
    ("es", {"directions": "low_rank", "rank": 2}),
    ("es", {"directions": "low_rank", "n": 5, "mirrored": False, "weight_decay": 10.0}),
    ("es", {"directions": "low_rank", "anchor": "start", "anchor_decay": 100.0}),
    ("eggroll", {"baseline": "population", "n": 8}),
]  # fmt: skip


def cases():
    """Yields models and methods of each place, every one of them at least once."""
    every = [*WHOLE, *OWN, *LENT, *ADAPTED]
    nearest = [of for of in ROUNDED if of[2] == "nearest"]
    single = [of for of in nearest if of[0] == F32]
    axes = {
        "snapshot": (every[::2], METHODS, ROUNDED),
        "merged": (every, ZEROTH_ORDER, ROUNDED),
        "streamed": ([*every, *CAST, *every], METHODS, ROUNDED),
        "disk": ([*every, *CAST], SMALL_STATE, nearest),
        "host": (["opt", "opt, untied"], SMALL_STATE, single[1:]),
        "factors": (every, LOW_RANK, nearest),
        "disk, few": (["opt None bias "], [n for n in METHODS if n not in SMALL_STATE], nearest),
    }
    for place, (models, methods, rounded) in axes.items():
        for i in range(max(len(models), len(methods))):
            name, turn = models[i % len(models)], i // len(rounded)
            if any(unfit in name for unfit in UNFIT.get(place, ())):
                continue
            fit = nearest if name in ADAPTED else rounded
            fit = single if name in CAST | LENT or "scales" in name else fit
            how = fit[(i + turn) % len(fit)]
            yield place.partition(",")[0], name, methods[i % len(methods)], *how, CANDIDATES[i % 2]


CASES = [
    pytest.param(case, id="-".join(map(str, case)), marks=[pytest.mark.process] * (i % 5 != 0))
    for i, case in enumerate(cases())
]


def made_run(place, name, method, dtype, noise, rounding, candidates, restore, offload=None):
    if place == "host":
        accelerator.register()
        model, loss = MODELS[name](attn_implementation="eager"), of_tokens
    else:
        model, loss = made(name, dtype)
    if offload is not None:
        zo.offload(model, **offload)
    method, settings = method if isinstance(method, tuple) else (method, {})
    config = OPTIMIZERS[method.split()[0]].config
    settings = {"eps": 1e-3 if dtype == F32 or place == "factors" else 1e-2, **settings}
    settings |= {"state_dtype": "float32"} if hasattr(config, "state_dtype") else {}
    settings |= {"interval": 2} if method in ("lozo", "lozo_m", "subzero") else {}
    lr = 1e-4 if place == "factors" else 1e-2 if name in ADAPTED else 1e-3
    how = {"loss": loss, "rounding": rounding, "candidates": candidates, "lr": lr}
    return TinyRun(model, method, restore, noise, **how, **settings)


def compare(directory, place, name, method, dtype, *how):
    """Makes steps in a place and those that they should be, and again by a replay of their losses."""
    restore, like, offload = PLACES[place]
    if offload is not None:
        offload = {**offload, "directory": directory}
    run_under = partial(made_run, place, name, method, dtype, *how)
    plain, run = run_under(like), run_under(restore, offload)
    start = plain.weights()
    evaluate = run.loss if run.loss.branched else run.loss.__call__
    check = PolicyCheck(run.params, evaluate, lambda values: [list(values)])
    expected = [plain.optimizer.step(plain.loss) for _ in range(3)]
    with check.watching():
        found = [run.optimizer.step(run.loss)]
    found += [run.optimizer.step(run.loss) for _ in range(2)]
    assert "displaced by hand" in check.said
    losses = [loss for info in found for loss in info.losses]
    assert len({*losses}) > 3, "the probes go somewhere"
    if restore == "factors":
        run.params.policy.merge_factors()
    moved = run.weights()
    assert not same(moved, start)
    if restore != "factors":
        assert found == expected
        assert same(moved, plain.weights())
    elif dtype == F32 or "float32" in name:
        of_plain = [loss for info in expected for loss in info.losses]
        coarse = dtype != F32 and 2 * torch.finfo(dtype).eps
        assert losses == pytest.approx(of_plain, abs=coarse or 2e-5, rel=0)
        torch.testing.assert_close(moved, plain.weights(), rtol=0, atol=coarse or 5e-6)
    again = run_under(restore)
    for info in found:
        again.optimizer.replay(info.losses)
    if restore == "factors":
        again.params.policy.merge_factors()
    assert same(again.weights(), moved)


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_snapshot(case, tmp_path):
    """Bit for bit, and the check of policies finds nothing; those of factors within rounding."""
    compare(tmp_path, *case)


@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS, ("es", {"directions": "low_rank"})], ids=str)
def test_every_combination_is_refused_in_a_sentence_or_steps_as_snapshot(method, tmp_path):
    models = [*OWN, "opt", "llama", "llama, tied None lora float32"]
    places = PLACES.keys() - {"host"}  # whose device computes transformers' models alone
    for number, (place, name, how) in enumerate(product(sorted(places), models, ROUNDED)):
        said = ": "
        try:
            compare(tmp_path / str(number), place, name, method, *how, CANDIDATES[0])
        except (ValueError, TypeError, RestoreError) as error:
            said = str(error)
        assert re.fullmatch(r".*[:;] .*", said), (place, name, how)
