"""Trajectories of the suite against the plain renderings, on the same noise, in float32.

With `restore="subtract"` both sides make the same displacements in the same order, each rounded once
to float32, so θ is compared bit for bit after every one of the 50 steps. (Σ stays diagonal as long as
the first directions are axes, so BSZO-B's are axes too; its oblique case is tried with given ones.)
Methods with arithmetic of their own (Adam's moments, HiZOO's H, LOZO's products, weight decay) may take
it in another order than the plain rendering: they have tolerances, in float32 units.
"""

import copy
import itertools
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import OPTConfig, OPTForCausalLM

from tests.support import plain_methods as plain
from zo.noise import SUBSPACE, NoiseKey, normal_
from zo.optim import OPTIMIZERS
from zo.optim.posterior import Posterior
from zo.weights.space import ParameterSpace

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

    def gradient(self, tensors: list[Tensor]) -> list[Tensor]:
        pairs = zip(tensors, self.h, self.t, strict=True)
        return [(h * (p.double() - t)).to(p.dtype) for p, h, t in pairs]


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

    def gradient(self, model: nn.Module) -> list[Tensor]:
        loss = model(input_ids=self.ids, labels=self.ids).loss
        return list(torch.autograd.grad(loss, list(model.parameters())))


class Problem:
    """θ of the suite and a twin of it, and their losses: two tensors on a quadratic, or a tiny OPT."""

    def __init__(self, kind: str, dtype: torch.dtype = torch.float32):
        if kind == "quadratic":
            named, quadratic_loss = quadratic(dtype)
            self.params = ParameterSpace(named, exempt=["v"])
            self.twin = [t.clone() for t in self.params.tensors]
            self.loss_at, self.gradient_at = quadratic_loss, quadratic_loss.gradient
            self.mine, self.other = self.params.tensors, self.twin
        else:
            tiny = TinyOPT()
            self.params = ParameterSpace.of(tiny.model)
            self.mine, self.other = tiny.model, copy.deepcopy(tiny.model)
            # parameters() gives a tied one once
            self.twin = [p.detach() for p in self.other.parameters()]
            self.loss_at, self.gradient_at = tiny.loss, tiny.gradient

    def __call__(self) -> float:
        return self.loss_at(self.mine)

    def backward(self) -> float:
        for p, g in zip(self.params.parameters, self.gradient_at(self.mine), strict=True):
            p.grad = g
        return self()

    def twin_loss(self) -> float:
        return self.loss_at(self.other)

    def twin_gradient(self) -> list[Tensor]:
        return self.gradient_at(self.other)


def suite_draw(opt, tensors: list[Tensor]) -> plain.Draw:
    """The suite's noise of its current step."""
    return lambda direction, j, shape: opt.direction(direction).sample(j, tensors[j])


def plain_runner(opt, config, lr: float, problem: Problem):
    """A function () -> record that makes on the twin the step that `opt` is about to make."""
    settings = asdict(config)
    name = settings.pop("name")
    settings.pop("directions", None)  # the suite's are drawn by `suite_draw`
    for key in ("step_norm", "norm_beta"):  # tests/optim/test_variants.py
        settings.pop(key, None)
    return RUNNERS[name](opt, settings, lr, problem, problem.twin, problem.twin_loss)


def run_mezo(opt, settings, lr, problem, theta, loss):
    settings |= {"lr": lr, "decays": problem.params.decays}
    return lambda: plain.mezo_step(theta, loss, suite_draw(opt, theta), **settings)


def run_mezo_adam(opt, settings, lr, problem, theta, loss):
    del settings["state_dtype"]
    settings |= {"lr": lr, "decays": problem.params.decays}
    moments = plain.Moments.start(theta)
    return lambda: plain.mezo_adam_step(theta, loss, suite_draw(opt, theta), moments, **settings)


def run_hizoo(opt, settings, lr, problem, theta, loss):
    smooth = settings["hessian_smooth"]
    h = [torch.ones(p.shape) for p in theta]
    kept = {k: settings[k] for k in ("eps", "weight_decay")} | {"decays": problem.params.decays}
    steps = itertools.count()

    def run():
        t, s = next(steps), smooth
        if settings["smooth_schedule"] == "cosine":
            s = smooth * 0.5 * (1 + np.cos(np.pi * min(1, t / settings["smooth_steps"])))
        return plain.hizoo_step(theta, loss, suite_draw(opt, theta), h, lr=lr, smooth=s, **kept)

    run.state = h
    return run


def run_lozo(opt, settings, lr, problem, theta, loss):
    """U new at each step; V drawn when the interval begins, and kept here until the next one."""
    rank, interval = settings["rank"], settings.pop("interval")
    del settings["n"], settings["two_sided"]
    settings |= {"lr": lr, "decays": problem.params.decays}
    kept: list[Tensor | None] = []

    def columns_of(key, j: int, length: int) -> Tensor:
        return normal_(torch.empty(rank, length), key, j).T  # (length, rank)

    def run():
        step = opt.step_index
        if step % interval == 0:
            key = NoiseKey(opt.seed, SUBSPACE, step // interval, 0)
            kept[:] = [
                columns_of(key, j, p.numel() // len(p)) if p.dim() > 1 else None
                for j, p in enumerate(theta)
            ]

        def draw(_, j, shape):
            key = NoiseKey(opt.seed, 0, step, 0)
            if kept[j] is None:
                return normal_(torch.empty(shape), key, j)
            return columns_of(key, j, shape[0])

        return [plain.lozo_step(theta, loss, draw, kept, **settings)]

    return run


def run_adam(opt, settings, lr, problem, theta, loss):
    decayed, moments = lr * settings.pop("weight_decay"), plain.Moments.start(theta)

    def run():
        g = problem.twin_gradient()
        plain.decay(theta, decayed, problem.params.decays)
        plain.adam_update(theta, g, moments, lr=lr, **settings)
        return ()

    return run


def run_sgd(opt, settings, lr, problem, theta, loss):
    weight_decay, velocity = settings["weight_decay"], [torch.zeros(p.shape) for p in theta]

    def run():
        pairs = zip(problem.twin_gradient(), theta, problem.params.decays, strict=True)
        g = [g + weight_decay * p if decays else g for g, p, decays in pairs]
        plain.sgd_update(theta, g, velocity, lr=lr, mu=settings["momentum"])
        return ()

    return run


def run_bszo(opt, settings, lr, problem, theta, loss):
    assert settings.pop("weight_decay") == 0.0, "neither paper nor released code decays"
    auto = np.sqrt(opt.params.numel / 1e6)
    if settings["prior_std"] is None:
        settings["prior_std"] = auto
    start = settings.pop("noise_std")
    noise = plain.Noise.start(auto if start is None else start)

    def run():
        result = plain.bszo_step(theta, loss, suite_draw(opt, theta), noise, lr=lr, **settings)
        assert result.forwards == opt.forwards_per_step
        return (*result.mu, noise.running_var)

    return run


RUNNERS = {
    "mezo": run_mezo,
    "mezo_adam": run_mezo_adam,
    "hizoo": run_hizoo,
    "lozo": run_lozo,
    "adam": run_adam,
    "sgd": run_sgd,
    "bszo": run_bszo,
    "bszo_b": run_bszo,
}


def errors(
    method: str, settings: dict, lr: float, problem: str, steps: int = STEPS, dtype=torch.float32
) -> tuple[float, float, float]:
    """Largest |Δ| of a record (slope; or μ and σ_e²) and of θ over a run, and how far θ went."""
    config = OPTIMIZERS[method].config(**settings)
    pair = Problem(problem, dtype)
    params, twin = pair.params, pair.twin
    start = [t.clone() for t in params.tensors]
    opt = OPTIMIZERS[method].optimizer(params, config, lr=lr, seed=42)
    plain_step = plain_runner(opt, config, lr, pair)
    d_record = d_theta = 0.0
    for _ in range(steps):
        expected = plain_step()
        got = opt.step(pair).record
        d_record = max([d_record, *(abs(a - b) for a, b in zip(got, expected, strict=True))])
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


def assert_bit_equal(method: str, settings: dict, lr: float, problem: str, steps=STEPS) -> None:
    d_record, d_theta, moved = errors(method, settings, lr, problem, steps)
    assert (d_record, d_theta) == (0.0, 0.0)
    assert moved > 1e-3, "the trajectory went somewhere"


AUTO_LR = 100.0  # the automatic scale sqrt(n / 1e6) believes little of so small a model's slopes


@pytest.mark.parametrize(
    ("method", "settings", "lr"),
    [
        ("mezo", {"eps": 1e-3}, 1e-2),
        ("mezo", {"two_sided": False}, 1e-2),
        ("mezo", {"n": 3}, 1e-3),
        ("mezo", {"n": 3, "two_sided": False}, 1e-3),
        ("hizoo", {}, 1e-3),  # with 1e-8 of smoothing H moves by less than a float32 unit
        ("bszo", {}, AUTO_LR),
        ("bszo", PRIOR, 1e-2),
        ("bszo_b", {}, AUTO_LR),
        ("bszo_b", PRIOR, 1e-2),
    ],
)
def test_fifty_steps_on_a_quadratic(method, settings, lr):
    assert_bit_equal(method, settings, lr, "quadratic")


@pytest.mark.parametrize(
    ("method", "settings", "lr"),
    [
        ("mezo", {}, 1e-3),
        ("mezo", {"n": 2}, 1e-3),
        ("hizoo", {}, 1e-3),
        ("bszo", {}, 1.0),
        ("bszo_b", {}, 1.0),
    ],
)
def test_steps_on_a_tied_transformer(method, settings, lr, one_thread):
    assert_bit_equal(method, settings, lr, "opt", steps=20)


MOVING_H = {"eps": 0.05, "hessian_smooth": 0.01}  # a large ε: curvatures are divided by its square
COSINE = {"smooth_schedule": "cosine", "smooth_steps": 30, "weight_decay": 0.1}
OTHER_RANK = {"eps": 0.01, "rank": 3, "interval": 7}
ADAM = {"adam_eps": 1e-4}  # gradients that are zero but for rounding stay small


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("mezo", {"eps": 0.01, "weight_decay": 0.1}),
        ("mezo_adam", {"eps": 0.01}),
        ("mezo_adam", {"eps": 0.01, "state_dtype": "float32", "n": 2, "weight_decay": 0.1}),
        ("mezo_adam", {"eps": 0.01, "beta1": 0.5, "beta2": 0.9, "adam_eps": 0.01}),
        ("mezo_adam", {"eps": 0.01, "two_sided": False}),
        ("hizoo", MOVING_H),
        ("hizoo", MOVING_H | {"state_dtype": "float32"}),
        ("hizoo", MOVING_H | COSINE),
        ("lozo", {"eps": 0.01, "interval": 20}),
        ("lozo", OTHER_RANK | {"divide_by_rank": True}),
        ("lozo", OTHER_RANK | {"weight_decay": 0.1}),
        ("adam", ADAM),
        ("adam", ADAM | {"weight_decay": 0.1, "beta1": 0.5, "beta2": 0.9}),
        ("sgd", {}),
        ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
    ],
    ids=str,
)
def test_fifty_steps_within_float32(method, settings):
    """θ within one float32 unit of a weight of size one (2⁻²³) per step, and the methods do move:
    the least of them 0.003, five hundred times the tolerance.
    """
    assert_within_float32(method, settings, "quadratic", 1e-2)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("mezo", {"eps": 0.01, "weight_decay": 0.1}),
        ("mezo_adam", {"eps": 0.01}),
        ("hizoo", MOVING_H),
        ("lozo", OTHER_RANK | {"weight_decay": 0.1}),
        ("adam", ADAM | {"weight_decay": 0.1, "beta1": 0.5, "beta2": 0.9}),
        ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
    ],
    ids=str,
)
def test_steps_on_a_tied_transformer_within_float32(method, settings, one_thread):
    assert_within_float32(method, settings, "opt", 1e-3, steps=20)


def assert_within_float32(method, settings, problem, lr, steps=STEPS):
    if method == "lozo":
        lr /= 2  # entries of U Vᵀ are √r as large
    d_record, d_theta, moved = errors(method, settings, lr, problem, steps)
    assert d_theta <= steps * 2.0**-23
    assert d_record < 2e-4  # slopes: a float32 unit of the loss over ε
    assert moved > 0.003 * steps / STEPS


@pytest.mark.parametrize("state_dtype", ["param", "float32"])
def test_h_itself_is_the_plain_one(state_dtype):
    """H after 50 steps on the quadratic, grown from 1 to several: within 5e-5 of it, which is the
    rounding of θ in the losses, over ε² and gathered.
    """
    config = OPTIMIZERS["hizoo"].config(**MOVING_H, state_dtype=state_dtype)
    pair = Problem("quadratic")
    opt = OPTIMIZERS["hizoo"].optimizer(pair.params, config, lr=1e-2, seed=42)
    plain_step = plain_runner(opt, config, 1e-2, pair)
    for _ in range(STEPS):
        plain_step()
        opt.step(pair)
    for h, expected in zip(opt.state["h"], plain_step.state, strict=True):
        torch.testing.assert_close(h, expected, rtol=5e-5, atol=0)
    h = torch.cat([h.flatten() for h in opt.state["h"]])
    assert 1 < 2 * h.min() < h.max()


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
    "m=k": {"m": 2},
    "k=4,m=7": {"k": 4, "m": 7},
    "k=1,m=3": {"k": 1, "m": 3},
    "two_sided,m=k": {"two_sided": True, "m": 2},
    "noise fixed,m=k+3": {"adaptive_noise": False, "m": 5},
    "ema=1": {"noise_ema": 1.0},
    "extra,k=3": {"noise_update": "extra", "k": 3},
    "extra,k=1,m=3": {"noise_update": "extra", "k": 1, "m": 3},
    "extra,noise fixed": {"noise_update": "extra", "adaptive_noise": False},
    "extra,sampling fixed": {"noise_update": "extra", "adaptive_sampling": False, "m": 4},
    "floor=0": {"noise_floor": 0.0, "noise_std": 10.0, "noise_ema": 0.9},
    "floor=1": {"noise_floor": 1.0, "noise_std": 10.0, "noise_ema": 0.9},
    "floor reached": {"noise_std": 100.0, "noise_ema": 0.5},
    "sampling fixed,k=3,m=8": {"adaptive_sampling": False, "k": 3, "m": 8},
    "sampling fixed,two_sided": {"adaptive_sampling": False, "two_sided": True, "m": 4},
    "all fixed": {"adaptive_sampling": False, "adaptive_noise": False, "m": 5},
}


@pytest.mark.parametrize("method", ["bszo", "bszo_b"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_of_bszo(method, switch):
    settings = {**PRIOR, **SWITCHES[switch]}
    d_record, d_theta, moved = errors(method, settings, 1e-2, "quadratic", steps=10)
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
