"""How far theory says that a step on ½ ‖θ‖² goes: along the gradient, and in all.

Of a step Δ at g = ∇L = θ the progress a = −⟨Δ, g⟩ / η‖g‖² and the square b = ‖Δ‖² / η²‖g‖² decide the rate of
convergence: in the mean L falls by the factor 1 − 2ηa + η²b. Their expectations are exact sums over the directions'
moments. docs/reference/methods.md says which of them follow from what a paper states. Seeds are fixed; a step that is
a fifth too long or too short is found.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from zo.optim import OPTIMIZERS
from zo.weights.space import ParameterSpace

ROWS, COLUMNS = 6, 8
D = ROWS * COLUMNS
LR = 1e-3
HOME = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(4))
SQUARE = float(HOME.double().square().sum())
NORM = math.sqrt(SQUARE)


class Bowl:
    """½ ‖θ‖² of a matrix, and a method that begins at HOME."""

    def __init__(self, name: str, **settings):
        params = ParameterSpace([("m", HOME.clone())], "snapshot")
        (self.theta,) = params.tensors
        config = OPTIMIZERS[name].config(**{"eps": 1e-3, **settings})
        assert not config.problems()
        self.opt = OPTIMIZERS[name].optimizer(params, config, lr=LR, seed=5)

    def __call__(self) -> float:
        return float(torch.linalg.vector_norm(self.theta, dtype=torch.float64)) ** 2 / 2

    def moves(self, count: int, prepare: Callable[[object], None] | None = None) -> Tensor:
        """Steps over η, (count, rows, columns), that all begin at HOME."""
        ends = []
        for _ in range(count):
            self.theta.copy_(HOME)
            if prepare is not None:
                prepare(self.opt)
            self.opt.step(self)
            ends.append(self.theta.clone())
        return (torch.stack(ends).double() - HOME.double()) / LR


def progress(moves: Tensor) -> float:
    return -float((moves * HOME.double()).sum()) / len(moves) / SQUARE


def length(moves: Tensor) -> float:
    return float(moves.square().sum()) / len(moves) / SQUARE


def normals(n: int, d: int = D) -> tuple[float, float]:
    """E c²‖z‖² = (d + 2) ‖g‖², and n − 1 other directions."""
    return 1.0, (d + n + 1) / n


def posterior(k: int, prior: float, noise: float) -> tuple[float, float]:
    """E Δ = −η γ k g with γ = σ_p² / (σ_p² + σ_e²)."""
    shrink = prior**2 / (prior**2 + noise**2)
    return shrink * k, shrink**2 * k * (D + k + 1)


def cone(angle: float) -> tuple[float, float]:
    """A momentum along g: z is a = √d cos ϑ longer there, and as long as s = sin ϑ elsewhere."""
    a2, s2 = D * math.cos(angle) ** 2, math.sin(angle) ** 2
    return a2 + s2, a2 * a2 + 6 * a2 * s2 + 3 * s2 * s2 + (a2 + s2) * s2 * (D - 1)


def along_g(opt) -> None:
    opt.state["m"][0].copy_(HOME)
    opt.numbers["norm"] = NORM


def four(opt) -> None:
    opt.state["h"][0].fill_(4.0)


def small(share: float, n: int) -> tuple[float, float]:
    """The smallest weights' share of ‖g‖², and as many directions."""
    squares, count = HOME.square().flatten().sort().values.double(), int(share * D)
    kept = float(squares[:count].sum()) / SQUARE
    return kept, kept * normals(n, count)[1]


BSZO = {"prior_std": 3.0, "noise_std": 2.0, "adaptive_noise": False}
NEW = {"interval": 1, "rank": 3}  # new factors at every step
LOZO = (ROWS * (COLUMNS * 3 + 2) + 2 * (COLUMNS + 3 + 1)) / 3
WINDOW_OF_ONE = {"window": 1, "scale": 1.0, "adam_eps": 1e-12}  # m / √v = c z / |c z|
TEZO = (3 * (ROWS + 2) * (COLUMNS + 2) + (3 - 1) * (D + 2)) / 3

RATES = [
    ("mezo", {"n": 4}, normals(4), None),
    ("mezo", {"directions": "rademacher", "n": 4}, (1.0, (D + 3) / 4), None),
    ("bszo", {"k": 2, "m": 2, **BSZO}, posterior(2, 3.0, 2.0), None),
    ("bszo_b", {"k": 3, "m": 3, **BSZO}, posterior(3, 3.0, 2.0), None),
    ("hizoo", {"hessian_smooth": 0.0}, (1 / 4, (D + 2) / 16), four),  # H = 4
    ("sparse_mezo", {"share": 0.75, "n": 4}, small(0.75, 4), None),
    ("conmezo", {"angle": 1.0}, cone(1.0), along_g),
    ("lozo", {**NEW, "divide_by_rank": True}, (1.0, LOZO), None),
    ("subzero", NEW, (1.0, D * (9 + 2) / 9), None),  # E‖ĝ‖² = (r² + 2) ‖Pᵀ g Q‖², times mn / r²
    ("tezo", NEW, (1.0, TEZO), None),
    ("zo_conservative", {}, normals(1), None),  # a short step forward is always the best of three
]


@pytest.mark.parametrize(
    ("name", "settings", "expected", "prepare"), RATES, ids=[of[0] for of in RATES]
)
def test_progress_and_length_of_a_step_are_those_of_theory(name, settings, expected, prepare):
    moves = Bowl(name, **settings).moves(400 if settings.get("n") else 800, prepare)
    assert progress(moves) == pytest.approx(expected[0], rel=0.1)
    assert length(moves) == pytest.approx(expected[1], rel=0.15)


@pytest.mark.parametrize(("name", "settings"), [("zo_sign", {}), ("adamezo", WINDOW_OF_ONE)])
def test_a_sign_is_right_with_the_probability_that_makes_the_rate_of_zo_sign(name, settings):
    """½ + arcsin(g_i / ‖g‖) / π: progress of about 2/π ‖g‖ / η at a length of √d, whence O(√d / √T)."""
    moves = Bowl(name, **settings).moves(800)[2:]
    expected = 2 / math.pi * float((HOME * (HOME / NORM).arcsin()).sum())
    assert progress(moves) * SQUARE == pytest.approx(expected, rel=0.1)
    assert length(moves) * SQUARE == pytest.approx(D, rel=1e-3)


def test_fzoo_and_step_norm_are_normalised_sgd():
    """The standard deviation of N normals of variance ‖g‖², and the root of a mean of c², stand for ‖g‖."""
    n, gamma = 8, math.gamma
    root = math.sqrt((n - 1) / 2)
    std = gamma(n / 2) / gamma((n - 1) / 2) / root  # E s, and below E 1/s
    inverse = root * gamma((n - 2) / 2) / gamma((n - 1) / 2)
    moves = Bowl("fzoo", n=n).moves(400)
    assert progress(moves) * NORM == pytest.approx(((n - 1) * std + inverse) / n, rel=0.1)
    moves = Bowl("mezo", step_norm="rms").moves(1000)[200:]
    assert progress(moves) * NORM == pytest.approx(1.0, rel=0.1)


def test_a_settled_momentum_makes_steps_of_one_over_one_minus_beta():
    moves = Bowl("zo_momentum", n=4, momentum=0.8).moves(600)[30:]
    assert progress(moves) == pytest.approx(5.0, rel=0.1)


def test_a_settled_momentum_of_lozo_m_is_the_gradient_within_its_subspace():
    bowl = Bowl("lozo_m", interval=2000, rank=3, momentum=0.8)
    moves, v = bowl.moves(1500)[30:], bowl.opt.direction().right(0, bowl.theta)
    inside = (HOME @ v.mT @ v).double()
    assert -float((moves.mean(0) * inside).sum()) == pytest.approx(
        float(inside.square().sum()), rel=0.1
    )


def test_zo_muon_lowers_all_singular_values_by_the_learning_rate():
    """With directions enough to know g, and no subspace: η of each, so that L falls by η times their sum."""
    (move,) = Bowl("zo_muon", n=1500, rank=ROWS, msign="svd").moves(1)
    assert torch.linalg.svdvals(move) == pytest.approx(torch.ones(ROWS), rel=1e-3)
    fall = torch.linalg.svdvals(HOME).sum().item()
    assert progress(move[None]) * SQUARE == pytest.approx(fall, rel=0.05)


def test_the_first_step_of_mezo_adam_is_the_learning_rate_in_every_weight():
    """m̂ / √v̂ = sign(g), where directions are enough to know it."""
    moves = Bowl("mezo_adam", n=1000, state_dtype="float32").moves(1)
    assert moves.abs() == pytest.approx(torch.ones(1, ROWS, COLUMNS), rel=1e-2)
    assert progress(moves) * SQUARE == pytest.approx(float(HOME.abs().sum()), rel=0.05)
