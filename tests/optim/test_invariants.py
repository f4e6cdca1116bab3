"""What theory says of the methods: expectations, limits, and where two of them must agree."""

import numpy as np
import pytest
import torch
from torch import Tensor

from zo.optim import OPTIMIZERS
from zo.params import ParamSpace


class Quadratic:
    """½ Σ h (θ − t)² over a 1-D and a 2-D tensor, in float64 from float32 weights."""

    def __init__(self, restore: str = "subtract"):
        generator = torch.Generator().manual_seed(21)
        shapes = {"v": (3,), "m": (2, 2)}
        named = [(n, torch.randn(s, generator=generator)) for n, s in shapes.items()]
        self.h = [torch.rand(t.shape, generator=generator).double() + 0.5 for _, t in named]
        self.t = [torch.randn(t.shape, generator=generator).double() for _, t in named]
        self.params = ParamSpace(named, restore)

    def __call__(self) -> float:
        parts = zip(self.params.tensors, self.h, self.t, strict=True)
        return sum(float((h * (p.double() - t) ** 2).sum()) for p, h, t in parts) / 2

    def flat(self) -> np.ndarray:
        return flat(self.params.tensors)

    def gradient(self) -> np.ndarray:
        parts = zip(self.params.tensors, self.h, self.t, strict=True)
        return flat([h * (p.double() - t) for p, h, t in parts])

    def put(self, tensors: list[Tensor]) -> None:
        for p, q in zip(self.params.tensors, tensors, strict=True):
            p.copy_(q)


def flat(tensors: list[Tensor]) -> np.ndarray:
    return torch.cat([t.double().flatten() for t in tensors]).numpy()


def make(name: str, loss: Quadratic, lr: float, seed: int = 5, **settings):
    config = OPTIMIZERS[name].config(**settings)
    return OPTIMIZERS[name].optimizer(loss.params, config, lr=lr, seed=seed)


def displacements(name: str, lr: float, steps: int, **settings) -> tuple[np.ndarray, np.ndarray]:
    """Δθ of many steps from one and the same θ, (steps, n), and the gradient there, (n,)."""
    loss = Quadratic("snapshot")
    opt = make(name, loss, lr, **settings)
    home, gradient = [t.clone() for t in loss.params.tensors], loss.gradient()
    moves = []
    for _ in range(steps):
        opt.step(loss)
        moves.append(loss.flat() - flat(home))
        loss.put(home)
    return np.array(moves), gradient


@pytest.mark.parametrize(
    ("name", "settings", "factor"),
    [
        # γ k with γ = σ_p² / (σ_p² + σ_e²): 9/13 · 2, 1/5 · 3
        ("bszo", {"k": 2, "m": 2, "prior_std": 3.0, "noise_std": 2.0}, 2 * 9 / 13),
        ("bszo_b", {"k": 3, "m": 3, "prior_std": 1.0, "noise_std": 2.0}, 3 / 5),
        ("mezo", {}, 1.0),
    ],
)
def test_expected_step_is_along_the_gradient(name, settings, factor):
    """Theorem (expected update): E[Δθ] = −η γ k ∇L; for MeZO −η ∇L. Within 4 standard errors.

    One standard error along the gradient is under 2 % of the step here, so a γ that is off by a
    tenth, or a missing k, is seen.
    """
    lr, fixed = 0.5, {} if name == "mezo" else {"adaptive_noise": False}
    moves, gradient = displacements(name, lr, 4000, eps=1e-3, **settings, **fixed)
    expected = -lr * factor * gradient
    error = moves.std(axis=0, ddof=1) / np.sqrt(len(moves))
    assert (np.abs(moves.mean(axis=0) - expected) < 4 * error).all()
    along = moves @ gradient / (gradient @ gradient)
    along_error = along.std(ddof=1) / np.sqrt(len(along))
    assert along_error < 0.02 * lr * factor * np.sqrt(2)
    assert abs(along.mean() + lr * factor) < 4 * along_error


def test_shrinkage_is_gamma_at_m_equal_k():
    loss = Quadratic()
    settings = {"k": 3, "m": 3, "prior_std": 3.0, "noise_std": 2.0, "adaptive_noise": False}
    info = make("bszo", loss, 0.1, **settings).step(loss)
    assert info.scalars["shrinkage"] == pytest.approx(9 / 13, abs=1e-8)
    assert info.scalars["noise_std"] == 2.0


@pytest.mark.parametrize("eps", [1e-2, 1e-3])
def test_mezo_measures_the_slope(eps):
    """c = z·∇L: exact on a quadratic but for the rounding of θ ± εz, at most 2⁻²⁴ |θ| each, over ε."""
    loss = Quadratic()
    opt = make("mezo", loss, 1e-2, eps=eps)
    for _ in range(50):
        z = flat([opt.direction(0).sample(i, p) for i, p in enumerate(loss.params.tensors)])
        gradient, size = loss.gradient(), np.abs(loss.flat()) + eps * np.abs(z)
        slope = opt.step(loss).scalars["slope"]
        rounding = 2 * 2.0**-24 * (np.abs(gradient) + eps * np.abs(z)) @ (size + 1e-3) / eps
        assert slope == pytest.approx(z @ gradient, rel=0, abs=2 * rounding)


@pytest.mark.parametrize("eps", [1e-1, 1e-2])
def test_one_sided_slopes_are_off_by_half_the_curvature(eps):
    """(L(θ + εz) − L(θ)) / ε = z·∇L + ε zᵀHz/2 on a quadratic; a two-sided one loses the last term."""
    loss = Quadratic()
    one_sided = make("mezo", loss, 0.0, eps=eps, two_sided=False)
    z = [one_sided.direction(0).sample(i, p).double() for i, p in enumerate(loss.params.tensors)]
    curvature = sum(float((h * z_i**2).sum()) for h, z_i in zip(loss.h, z, strict=True))
    exact = flat(z) @ loss.gradient()
    slope = one_sided.step(loss).scalars["slope"]
    assert slope == pytest.approx(exact + eps * curvature / 2, rel=1e-3)
    two_sided = make("mezo", loss, 0.0, eps=eps).step(loss).scalars["slope"]
    assert two_sided == pytest.approx(exact, rel=1e-3)


def paired_run(steps: int, restore: str, scale: float = 1.0, **settings) -> list[float]:
    """max |θ(BSZO) − θ(BSZO-B)| after each step, both from scale times one start."""
    losses = {name: Quadratic(restore) for name in ("bszo", "bszo_b")}
    for loss in losses.values():
        loss.put([scale * t for t in loss.params.tensors])
    opts = {name: make(name, loss, 2e-2, **settings) for name, loss in losses.items()}
    apart = []
    for _ in range(steps):
        for name, opt in opts.items():
            opt.step(losses[name])
        apart.append(float(np.abs(losses["bszo"].flat() - losses["bszo_b"].flat()).max()))
    return apart


BELIEF = {"prior_std": 3.0, "noise_std": 2.0, "eps": 1e-3}


@pytest.mark.parametrize("k", [1, 2, 4])
def test_bszo_b_is_bszo_when_theta_comes_back_exactly(k):
    """Σ is diagonal when the one extra measurement is made, so its direction is an axis measured
    before; at the same θ the loss answers the same, and fresh equals cached bit for bit.
    """
    assert paired_run(50, "snapshot", k=k, **BELIEF) == [0.0] * 50


def test_bszo_b_follows_bszo_until_rounding():
    """Under subtract a probe returns θ to within a rounding, so the extra slope differs from the
    cached one in its last digits, and θ by less than one float32 unit of a weight of size one per
    step (2⁻²³; measured 6e-8 in all, since on a quadratic the steps contract). The start is near
    zero, where weights are smaller than a probe and lose bits to it: larger ones return exactly.
    """
    steps = 50
    apart = paired_run(steps, "subtract", scale=1e-4, **BELIEF)
    assert max(apart) < steps * 2.0**-23


def test_adaptive_noise_settles_at_the_size_of_the_residuals():
    """σ_e² is a running mean of r²: held at one θ, it forgets its start and tracks their size."""
    loss = Quadratic("snapshot")
    opt = make("bszo", loss, 0.0, prior_std=0.01, noise_std=100.0, noise_floor=0.0, noise_ema=0.02)
    infos = [opt.step(loss) for _ in range(300)]
    tail = infos[-100:]
    measured = np.mean([info.scalars["noise_std"] ** 2 for info in tail])
    # a tiny prior believes nothing: residuals are the slopes themselves, E y² = |∇L|²
    squares = np.mean([info.scalars["residual_rms"] ** 2 for info in tail])
    gradient = loss.gradient()
    assert measured == pytest.approx(squares, rel=0.5)
    assert measured == pytest.approx(gradient @ gradient, rel=0.5)


def test_noise_floor_holds():
    """With slopes of nothing σ_e falls to the floor's share of its start, and no further."""
    for floor in (0.0, 0.1, 1.0):
        loss = Quadratic()
        opt = make("bszo", loss, 0.0, noise_std=2.0, prior_std=1.0, noise_floor=floor)
        for _ in range(100):
            info = opt.step(lambda: 1.0)
        expected = 2.0 * floor
        if floor:
            assert info.scalars["noise_std"] == expected
        else:
            assert info.scalars["noise_std"] == pytest.approx(2.0 * 0.9**150)
        assert info.scalars["mu_norm"] == 0.0


def test_automatic_scale_is_the_root_of_millions_of_weights():
    """σ_p = σ_e(0) = sqrt(n / 1e6), standard deviations."""
    loss = Quadratic()
    opt = make("bszo", loss, 0.0, k=2, m=2, adaptive_noise=False)
    info = opt.step(loss)
    assert info.scalars["noise_std"] == pytest.approx((7 / 1e6) ** 0.5)
    assert info.scalars["shrinkage"] == pytest.approx(0.5, abs=1e-4)  # equal prior and noise
    assert info.scalars["posterior_trace"] == pytest.approx(7 / 1e6, rel=1e-3)  # 2 · γ σ_e²
