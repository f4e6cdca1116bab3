"""What theory says of the methods: expectations, limits, and where two of them must agree."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from zo.distributed.processes import Processes
from zo.noise import NoiseKey
from zo.optim import OPTIMIZERS
from zo.run.loop import TIE, _step
from zo.weights.directions import Gaussian
from zo.weights.space import ParameterSpace


class Quadratic:
    """½ Σ h (θ − t)² over a 1-D and a 2-D tensor, in float64 from float32 weights."""

    def __init__(self, restore: str = "subtract"):
        generator = torch.Generator().manual_seed(21)
        shapes = {"v": (3,), "m": (2, 2)}
        named = [(n, torch.randn(s, generator=generator)) for n, s in shapes.items()]
        self.h = [torch.rand(t.shape, generator=generator).double() + 0.5 for _, t in named]
        self.t = [torch.randn(t.shape, generator=generator).double() for _, t in named]
        self.params = ParameterSpace(named, restore)

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


@pytest.mark.process
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


def test_automatic_scale_is_the_root_of_millions_of_weights():
    """σ_p = σ_e(0) = sqrt(n / 1e6), standard deviations."""
    loss = Quadratic()
    opt = make("bszo", loss, 0.0, k=2, m=2, adaptive_noise=False)
    info = opt.step(loss)
    assert info.scalars["noise_std"] == pytest.approx((7 / 1e6) ** 0.5)
    assert info.scalars["shrinkage"] == pytest.approx(0.5, abs=1e-4)  # equal prior and noise
    assert info.scalars["posterior_trace"] == pytest.approx(7 / 1e6, rel=1e-3)  # 2 · γ σ_e²


def directions_walked(opt, loss: Quadratic) -> tuple[list[np.ndarray], np.ndarray, float]:
    """Makes one step; returns where each forward pass was and Δθ, both from θ, and the record's slope."""
    home, visited = loss.flat(), []

    def watched() -> float:
        visited.append(loss.flat() - home)
        return loss()

    record = opt.step(watched).record
    return visited, loss.flat() - home, record[0]


@pytest.mark.parametrize("divide_by_rank", [False, True])
def test_lozo_steps_along_what_it_probed_also_when_v_is_new(divide_by_rank):
    """Twelve steps, V new at every fourth: Δθ = −η c Z with Z read off the probes, tensor by tensor."""
    loss = Quadratic("snapshot")
    settings = {"interval": 4, "rank": 2, "eps": 0.5, "divide_by_rank": divide_by_rank}
    opt = make("lozo", loss, 0.05, **settings)
    factor = np.array([1.0] * 3 + [0.5 if divide_by_rank else 1.0] * 4)  # v, then m
    for _ in range(12):
        (plus, minus), moved, slope = directions_walked(opt, loss)
        z = (plus - minus) / (2 * 0.5)
        np.testing.assert_allclose(moved, -0.05 * slope * factor * z, rtol=0, atol=2e-6)
        assert np.abs(moved).max() > 1e-4


def test_lozo_keeps_its_row_space_for_an_interval_and_then_leaves_it():
    """Rank of the 2 × 2 tensor's directions, one after another, with rank-1 V: 1 within, 2 across."""
    loss = Quadratic("snapshot")
    opt = make("lozo", loss, 0.05, interval=3, rank=1)
    rows = []
    for _ in range(9):
        rows.append(opt.direction().sample(1, loss.params.tensors[1]))
        opt.step(loss)
    for begin in (0, 3, 6):
        assert torch.linalg.matrix_rank(torch.cat(rows[begin : begin + 3]), rtol=1e-5) == 1
    for begin in (2, 5):
        assert torch.linalg.matrix_rank(torch.cat(rows[begin : begin + 2]), rtol=1e-5) == 2


@pytest.mark.process
@pytest.mark.parametrize("divide_by_rank", [False, True])
def test_expected_step_of_lozo_is_r_times_the_gradient_unless_divided(divide_by_rank):
    """E[Z Zᵀ] = r I for a matrix and I for a vector: E[Δθ] = −η r ∇L and −η ∇L, within 4 standard errors."""
    settings = {"interval": 1, "rank": 2, "eps": 1e-3, "divide_by_rank": divide_by_rank}
    moves, gradient = displacements("lozo", 0.5, 4000, **settings)
    factor = np.array([1.0] * 3 + [1.0 if divide_by_rank else 2.0] * 4)
    expected = -0.5 * factor * gradient
    error = moves.std(axis=0, ddof=1) / np.sqrt(len(moves))
    assert (np.abs(moves.mean(axis=0) - expected) < 4 * error).all()
    along = (moves[:, 3:] @ gradient[3:]) / (gradient[3:] @ gradient[3:])
    along_error = along.std(ddof=1) / np.sqrt(len(along))
    assert along_error < 0.1  # so that r and 1 are told apart
    assert abs(along.mean() + 0.5 * factor[-1]) < 4 * along_error


@pytest.mark.parametrize(
    ("restore", "state_dtype"), [("subtract", "param"), ("snapshot", "float32")]
)
def test_hizoo_without_smoothing_is_mezo(restore, state_dtype):
    """H stays 1, so probes, slopes and steps are MeZO's to the last bit; only L(θ) is measured as well."""
    losses = {name: Quadratic(restore) for name in ("mezo", "hizoo")}
    settings = {"mezo": {}, "hizoo": {"hessian_smooth": 0.0, "state_dtype": state_dtype}}
    opts = {name: make(name, loss, 1e-2, **settings[name]) for name, loss in losses.items()}
    for _ in range(30):
        walks = {name: directions_walked(opt, losses[name]) for name, opt in opts.items()}
        first, *probes = walks["hizoo"][0]
        assert not first.any()
        np.testing.assert_array_equal(probes, walks["mezo"][0])
        assert walks["hizoo"][2] == walks["mezo"][2]
        np.testing.assert_array_equal(losses["hizoo"].flat(), losses["mezo"].flat())
    assert all(h.eq(1).all() for h in opts["hizoo"].state["h"])


def test_hizoo_measures_the_curvature():
    """(ℓ₊ + ℓ₋ − 2ℓ₀)/ε² = Σ h z²/H: exact on a quadratic, and H then grows by s/2 of it, times H z²."""
    loss = Quadratic("snapshot")
    s = 0.25
    opt = make("hizoo", loss, 1e-3, eps=0.1, hessian_smooth=s)
    for _ in range(10):
        z = [opt.direction().sample(i, p).double() for i, p in enumerate(loss.params.tensors)]
        was = [h.double().clone() for h in opt.state["h"]]
        parts = zip(loss.h, z, was, strict=True)
        curvature = sum(float((c * z_i**2 / h).sum()) for c, z_i, h in parts)
        assert opt.step(loss).scalars["curvature"] == pytest.approx(curvature, rel=1e-4)
        for h, before, z_i in zip(opt.state["h"], was, z, strict=True):
            expected = (1 - s) * before + s * curvature / 2 * before * z_i**2
            torch.testing.assert_close(h.double(), expected, rtol=1e-4, atol=0)


def test_hizoo_steps_with_the_new_h():
    """Δθ = −η c z/√H, H as the step left it, not as it was probed with."""
    loss = Quadratic("snapshot")
    opt = make("hizoo", loss, 0.01, eps=0.1, hessian_smooth=0.25)
    for _ in range(5):
        z = [opt.direction().sample(i, p).double() for i, p in enumerate(loss.params.tensors)]
        before = loss.flat()
        slope = opt.step(loss).scalars["slope"]
        roots = [h.double().sqrt() for h in opt.state["h"]]
        step = flat([z_i / root for z_i, root in zip(z, roots, strict=True)])
        np.testing.assert_allclose(loss.flat() - before, -0.01 * slope * step, rtol=0, atol=1e-6)


class Narrow(Quadratic):
    """The same problem with weights in half precision."""

    def __init__(self, dtype: torch.dtype):
        super().__init__("snapshot")
        named = zip(self.params.names, self.params.tensors, strict=True)
        self.params = ParameterSpace([(name, t.to(dtype)) for name, t in named], "snapshot")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_h_moves_in_half_precision_only_if_it_is_float32(dtype):
    """Fifty steps that each let H grow by a few 1e-6: far below half a unit of bf16 or fp16."""
    grown = {}
    for state_dtype in ("param", "float32"):
        loss = Narrow(dtype)
        opt = make("hizoo", loss, 1e-3, eps=0.05, hessian_smooth=1e-6, state_dtype=state_dtype)
        for _ in range(50):
            opt.step(loss)
        grown[state_dtype] = torch.cat([h.flatten() for h in opt.state["h"]])
    assert grown["param"].dtype == dtype
    assert grown["param"].eq(1).all()
    assert grown["float32"].dtype == torch.float32
    assert grown["float32"].ne(1).all()


@pytest.mark.parametrize("two_sided", [True, False])
def test_n_spsa_averages_n_single_steps(two_sided):
    """One step of n = 4 is the mean of the four steps along its directions, each from the same θ."""
    loss = Quadratic("snapshot")
    opt = make("mezo", loss, 0.1, n=4, eps=1e-2, two_sided=two_sided)
    home, start = loss.flat(), [t.clone() for t in loss.params.tensors]
    record = opt.step(loss).record
    moved = loss.flat() - home
    assert len(record) == 4
    single = make("mezo", loss, 0.1, n=1, eps=1e-2, two_sided=two_sided)
    steps = []
    for i in range(4):
        loss.put(start)
        single.direction = lambda _=0, i=i: Gaussian(NoiseKey(5, 0, 0, i))
        info = single.step(loss)
        single.step_index = 0
        assert info.record == (record[i],)
        steps.append(loss.flat() - home)
    np.testing.assert_allclose(moved, np.mean(steps, axis=0), rtol=0, atol=1e-6)
    assert np.abs(moved).max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_moments_in_half_precision_are_those_that_torchs_adam_keeps(dtype):
    """Fed with c z rounded to that dtype: v to the last bit, m within the rounding of another order."""
    loss = Narrow(dtype)
    opt = make("mezo_adam", loss, 0.0, state_dtype="param")
    twins = [t.clone() for t in loss.params.tensors]
    adam = torch.optim.Adam(twins, lr=0.0)
    for step in range(20):
        c = (-1) ** step * 30.0 / (1 + step)
        for j, twin in enumerate(twins):
            twin.grad = (c * opt.direction().sample(j, twin)).to(dtype)
        adam.step()
        opt.advance((c,))
    for twin, m, v in zip(twins, opt.state["m"], opt.state["v"], strict=True):
        assert torch.equal(v, adam.state[twin]["exp_avg_sq"])
        unit = torch.finfo(dtype).eps * 3.0  # of a moment of size three, the largest on the way
        torch.testing.assert_close(m, adam.state[twin]["exp_avg"], rtol=0, atol=4 * unit)


class Constant(Quadratic):
    """The same loss everywhere."""

    def __call__(self) -> float:
        return 1.5


METHODS = [n for n, m in OPTIMIZERS.items() if m.config.trains and m.config.replays]


@pytest.mark.parametrize("name", METHODS)
def test_equal_losses_are_counted_as_a_tie_and_move_nothing(name):
    rows = []
    for loss in (Quadratic("snapshot"), Constant("snapshot")):
        loss.seconds = 0.0
        assembly = SimpleNamespace(params=loss.params, optimizer=make(name, loss, 1e-3))
        home = loss.flat()
        session = SimpleNamespace(
            assembly=assembly,
            processes=Processes(),
            scorer=SimpleNamespace(differentiable=False),
            loss_of=lambda _, loss=loss: loss,
        )
        rows.append((_step(session, [])[TIE], (loss.flat() == home).all()))
    assert rows == [(0, False), (1, True)]
