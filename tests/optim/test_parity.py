"""Trajectories of the suite against the plain renderings, on the same noise, in float32.

With `restore="subtract"` both sides make the same displacements in the same order, each rounded once
to float32, so θ is compared bit for bit after every one of the 50 steps. (Σ stays diagonal as long as
the first directions are axes, so BSZO-B's are axes too; its oblique case is tried with given ones.)
"""

import copy
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import OPTConfig, OPTForCausalLM

from tests.support import plain_methods as plain
from zo.optim import OPTIMIZERS
from zo.params import ParamSpace
from zo.posterior import Posterior

STEPS = 50
PRIOR = {"prior_std": 1.5, "noise_std": 0.8}  # apart, so that mixing them up shows


def quadratic(dtype: torch.dtype) -> tuple[list[tuple[str, Tensor]], "Quadratic"]:
    """A 1-D and a 2-D tensor and their loss."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"v": (7,), "m": (4, 5)}
    named = [(n, torch.randn(s, generator=generator).to(dtype)) for n, s in shapes.items()]
    return named, Quadratic([t for _, t in named], generator)


class Quadratic:
    """½ Σ h (θ − t)², curvatures from 0.1 to 2, in float64 from the weights."""

    def __init__(self, tensors: list[Tensor], generator: torch.Generator):
        self.h = [torch.rand(t.shape, generator=generator).double() * 1.9 + 0.1 for t in tensors]
        self.t = [torch.randn(t.shape, generator=generator).double() for t in tensors]

    def __call__(self, tensors: list[Tensor]) -> float:
        pairs = zip(tensors, self.h, self.t, strict=True)
        return sum(float((h * (p.double() - t) ** 2).sum()) for p, h, t in pairs) / 2


class TinyOPT:
    """A two-layer OPT with random weights, its head tied to its embedding, and a batch of tokens."""

    def __init__(self):
        config = OPTConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=32,
            max_position_embeddings=16,
            word_embed_proj_dim=16,
            dropout=0.0,
        )
        with torch.random.fork_rng(devices=[]):
            self.model = OPTForCausalLM(config).eval()
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for p in self.model.parameters():
                p.normal_(0, 0.2, generator=generator)
        self.ids = torch.randint(2, 40, (4, 9), generator=generator)
        assert self.model.lm_head.weight is self.model.model.decoder.embed_tokens.weight

    @torch.no_grad()
    def loss(self, model: nn.Module | None = None) -> float:
        model = self.model if model is None else model
        return float(model(input_ids=self.ids, labels=self.ids).loss)


def suite_draw(opt, tensors: list[Tensor]) -> plain.Draw:
    """The suite's noise of its current step."""
    return lambda direction, j, shape: opt.direction(direction).sample(j, tensors[j])


def plain_runner(opt, config, lr: float):
    """A function (theta, loss) -> record that makes the step that `opt` is about to make."""
    settings = asdict(config)
    name = settings.pop("name")
    if name == "mezo":
        return lambda theta, loss: (
            plain.mezo_step(theta, loss, suite_draw(opt, theta), lr=lr, **settings),
        )
    n = opt.params.numel
    auto = np.sqrt(n / 1e6)
    if settings["prior_std"] is None:
        settings["prior_std"] = auto
    start = settings.pop("noise_std")
    noise = plain.Noise.start(auto if start is None else start)

    def run(theta, loss):
        result = plain.bszo_step(theta, loss, suite_draw(opt, theta), noise, lr=lr, **settings)
        assert result.forwards == opt.forwards_per_step
        return (*result.mu, noise.running_var)

    return run


def errors(
    method: str,
    settings: dict,
    lr: float,
    problem: str,
    steps: int = STEPS,
    dtype=torch.float32,
) -> tuple[float, float, float]:
    """Largest |Δ| of a record (slope; or μ and σ_e²) and of θ over a run, and how far θ went."""
    config = OPTIMIZERS[method].config(**settings)
    if problem == "quadratic":
        named, quadratic_loss = quadratic(dtype)
        params = ParamSpace(named)
        twin = [t.clone() for t in params.tensors]
        loss, twin_loss = lambda: quadratic_loss(params.tensors), lambda: quadratic_loss(twin)
    else:
        tiny = TinyOPT()
        other = copy.deepcopy(tiny.model)
        params = ParamSpace.of(tiny.model)
        twin = [p.detach() for p in other.parameters()]  # parameters() gives a tied one once
        loss, twin_loss = tiny.loss, lambda: tiny.loss(other)
    start = [t.clone() for t in params.tensors]
    opt = OPTIMIZERS[method].optimizer(params, config, lr=lr, seed=42)
    plain_step = plain_runner(opt, config, lr)
    d_record = d_theta = 0.0
    for _ in range(steps):
        expected = plain_step(twin, twin_loss)
        got = opt.step(loss).record
        d_record = max(d_record, *(abs(a - b) for a, b in zip(got, expected, strict=True)))
        d_theta = max(
            d_theta,
            *(float((a - b).abs().max()) for a, b in zip(params.tensors, twin, strict=True)),
        )
    moved = max(float((a - b).abs().max()) for a, b in zip(params.tensors, start, strict=True))
    return d_record, d_theta, moved


@pytest.fixture
def one_thread():
    """Tiny matrices are slower on more threads, the more so beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_bit_equal(method: str, settings: dict, lr: float, problem: str) -> None:
    d_record, d_theta, moved = errors(method, settings, lr, problem)
    assert (d_record, d_theta) == (0.0, 0.0)
    assert moved > 1e-3, "the trajectory went somewhere"


AUTO_LR = 100.0  # the automatic scale sqrt(n / 1e6) believes little of so small a model's slopes


@pytest.mark.parametrize(
    ("method", "settings", "lr"),
    [
        ("mezo", {}, 1e-3),
        ("mezo", {"eps": 1e-3}, 1e-2),
        ("mezo", {"two_sided": False}, 1e-2),
        ("bszo", {}, AUTO_LR),
        ("bszo", PRIOR, 1e-2),
        ("bszo_b", {}, AUTO_LR),
        ("bszo_b", PRIOR, 1e-2),
    ],
)
def test_fifty_steps_on_a_quadratic(method, settings, lr):
    assert_bit_equal(method, settings, lr, "quadratic")


@pytest.mark.parametrize(("method", "lr"), [("mezo", 1e-3), ("bszo", 1.0), ("bszo_b", 1.0)])
def test_fifty_steps_on_a_tied_transformer(method, lr, one_thread):
    assert_bit_equal(method, {}, lr, "opt")


@pytest.mark.parametrize(("method", "settings"), [("mezo", {}), ("bszo", PRIOR | {"k": 1})])
def test_one_direction_in_bfloat16(method, settings):
    """With one z each pass rounds once on both sides, so half precision is bit-equal too. With more
    it is not, and is not meant to be: the box updates z by z, the suite rounds their sum once.
    """
    d_record, d_theta, moved = errors(
        method, {**settings, "eps": 0.05}, 1e-2, "quadratic", dtype=torch.bfloat16
    )
    assert (d_record, d_theta) == (0.0, 0.0)
    assert moved > 0.1


SWITCHES = {
    "k=1": {"k": 1},
    "k=4": {"k": 4},
    "m=k": {"m": 2},
    "m=k+3": {"m": 5},
    "k=4,m=7": {"k": 4, "m": 7},
    "k=1,m=3": {"k": 1, "m": 3},
    "two_sided": {"two_sided": True, "eps": 1e-3},
    "two_sided,m=k": {"two_sided": True, "m": 2},
    "noise fixed": {"adaptive_noise": False},
    "noise fixed,m=k+3": {"adaptive_noise": False, "m": 5},
    "ema": {"noise_ema": 0.5},
    "ema=1": {"noise_ema": 1.0},
    "extra": {"noise_update": "extra"},
    "extra,k=3": {"noise_update": "extra", "k": 3},
    "extra,k=1,m=3": {"noise_update": "extra", "k": 1, "m": 3},
    "extra,m=k+3": {"noise_update": "extra", "m": 5},
    "extra,noise fixed": {"noise_update": "extra", "adaptive_noise": False},
    "extra,sampling fixed": {"noise_update": "extra", "adaptive_sampling": False, "m": 4},
    "floor=0": {"noise_floor": 0.0, "noise_std": 10.0, "noise_ema": 0.9},
    "floor=1": {"noise_floor": 1.0, "noise_std": 10.0, "noise_ema": 0.9},
    "floor reached": {"noise_std": 100.0, "noise_ema": 0.5},
    "sampling fixed": {"adaptive_sampling": False},
    "sampling fixed,k=3,m=8": {"adaptive_sampling": False, "k": 3, "m": 8},
    "sampling fixed,two_sided": {"adaptive_sampling": False, "two_sided": True, "m": 4},
    "all fixed": {"adaptive_sampling": False, "adaptive_noise": False, "m": 5},
}


@pytest.mark.parametrize("method", ["bszo", "bszo_b"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_of_bszo(method, switch):
    settings = {**PRIOR, **SWITCHES[switch]}
    d_record, d_theta, moved = errors(method, settings, 1e-2, "quadratic", steps=20)
    assert (d_record, d_theta) == (0.0, 0.0)
    assert moved > 1e-3


@pytest.mark.parametrize("settings", [{}, {"two_sided": True}, {"m": 7}], ids=str)
def test_oblique_directions_of_bszo_b(monkeypatch, settings):
    """Extra measurements along d neither an axis nor of unit length, one entry of it negligible.

    Sums over d may be taken in either order: μ to 1e-9, θ to one float32 unit per step.
    """
    d = np.array([1.2, -0.9, 1e-12])
    monkeypatch.setattr(Posterior, "widest_direction", lambda self: d)
    monkeypatch.setattr(plain, "top_eigenvector", lambda cov: d)
    config = {**PRIOR, "k": 3, "m": 5, **settings}
    d_record, d_theta, moved = errors("bszo_b", config, 1e-2, "quadratic", steps=20)
    assert d_record < 1e-9
    assert d_theta <= 20 * 2.0**-23
    assert moved > 1e-3
