"""What the methods beyond the paper's six promise beyond the contract and their renderings."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.quadratic import ZEROTH_ORDER, Quadratic, make, steps
from zo.noise import PhiloxEngine
from zo.optim import OPTIMIZERS
from zo.weights.space import ParameterSpace

NORMALISED = ("mezo_adam", "zo_sign", "zo_muon", "fzoo")
"""Their steps are as long at any scale of the loss; divided by it once more they are not."""


def problem(scale: float = 1.0) -> Quadratic:
    return Quadratic(restore="snapshot", curved=True, shape=(6, 5), scale=scale)


@pytest.mark.parametrize(
    "name", [n for n in ZEROTH_ORDER if n in OPTIMIZERS and n not in NORMALISED]
)
def test_step_norm_makes_the_first_step_as_long_whatever_the_slope(name):
    """v̂ = c² at t = 1: with one direction θ moves by lr · z/|z| of its slope, at any scale of the loss."""
    bszo = {"k": 1, "prior_std": 1.0, "noise_std": 1e-9} if name.startswith("bszo") else {}
    first = []
    for scale in (1.0, 64.0):
        loss = problem(scale)
        steps(make(name, loss, 1e-2, 42, step_norm="rms", **bszo), loss, 1)
        first.append(loss.flat())
    np.testing.assert_allclose(*first, rtol=0, atol=1e-5)
    assert np.abs(first[0] - problem().flat()).max() > 1e-6


def test_a_mask_of_displaced_weights_is_refused():
    for restore in ("subtract", "merged"):
        with pytest.raises(ValueError, match="must be one of snapshot, streamed: the method's"):
            make("sparse_mezo", Quadratic(restore=restore))


def test_fzoo_leaves_a_step_out_where_losses_tie():
    """All differ from f₀ alone, or by less than a loss is rounded by."""
    loss = Quadratic()
    opt, was = make("fzoo", loss), loss.flat()
    for rounding in (0.0, 1e-9):
        answers = iter([0.5, *(0.25 + i * rounding for i in range(8))])
        opt.step(lambda answers=answers: next(answers))
        np.testing.assert_allclose(loss.flat(), was, rtol=0, atol=1e-6)


def test_the_step_of_zo_muon_by_newton_schulz_is_about_orthogonal():
    loss = problem()
    opt = make("zo_muon", loss, lr=0.1, msign="newton_schulz", rank=3)
    for _ in range(5):
        was = loss.weights()[1]
        opt.step(loss)
        values = torch.linalg.svdvals((loss.params.tensors[1] - was).double()) / 0.1
        assert ((values[:3] > 0.5) & (values[:3] < 1.3)).all()
        assert (values[3:] < 1e-5).all()


LOW_RANK = ("lozo", "lozo_m", "subzero", "tezo", "zo_muon")


@pytest.mark.parametrize("name", [*LOW_RANK, "mezo"])
def test_methods_of_low_rank_draw_no_tensor_of_the_weights_size(name, monkeypatch):
    """Numbers drawn per pass over a matrix of 64 × 48 at rank 4: those of thin factors; MeZO's are its weights."""
    drawn = []
    one_by_one = PhiloxEngine.add_to_all_  # by `add_`
    monkeypatch.setattr("zo.noise.cpu.engine.NumbaEngine.add_to_all_", one_by_one)
    for method, at in (("_checked_draw", 1), ("add_", 4)):
        made = getattr(PhiloxEngine, method)

        def counted(*args, made=made, at=at, **more):
            drawn.append(args[1].numel() * (1 if at == 1 else len(args[at])))
            return made(*args, **more)

        monkeypatch.setattr(PhiloxEngine, method, counted)
    weight = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    params = ParameterSpace([("m", weight)], "snapshot", noise="philox")
    settings = {} if name == "mezo" else {"rank": 4}
    opt = OPTIMIZERS[name].optimizer(params, OPTIMIZERS[name].config(**settings), lr=1e-3, seed=0)
    drawn.clear()
    moves = opt.forwards_per_step - (not opt.config.two_sided) + 1
    opt.step(lambda: float(weight.square().mean()))
    if name == "mezo":
        assert sum(drawn) == moves * weight.numel()
    else:
        assert 0 < sum(drawn) <= moves * 4 * (64 + 48) + 4 * (64 + 48)
        assert max(drawn) <= 4 * 64


def folded(name: str, restore: str, **settings) -> list[Tensor]:
    """The weights of a small network after three steps, subspaces new after two."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(30, 8), nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 3))
    params = ParameterSpace.of(model, restore, "philox")
    config = OPTIMIZERS[name].config(**settings)
    if hasattr(config, "interval"):
        config.interval = 2
    opt = OPTIMIZERS[name].optimizer(params, config, lr=1e-3, seed=3)
    ids, target = torch.arange(20).view(4, 5), torch.arange(20) % 3
    for _ in range(3):
        with torch.no_grad():
            opt.step(lambda: nn.functional.cross_entropy(model(ids).flatten(0, 1), target).item())
    params.fold()
    return params.tensors


@pytest.mark.parametrize(
    ("name", "settings"),
    [("lozo_m", {}), ("subzero", {"rank": 3}), ("tezo", {}), ("tezo", {"variant": "momentum"})],
)
def test_low_rank_methods_run_with_factors(name, settings):
    """Both probes in one matrix, updates added up in A and folded: the weights of snapshot but for rounding."""
    pairs = zip(*(folded(name, r, **settings) for r in ("factors", "snapshot")), strict=True)
    for p, q in pairs:
        torch.testing.assert_close(p, q, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "settings"), [("zo_muon", {}), ("tezo", {"variant": "adam"}), ("fzoo", {})]
)
def test_factors_is_refused_where_a_move_is_not_of_low_rank(name, settings):
    with pytest.raises(ValueError, match="factors needs a method whose directions are all of low"):
        folded(name, "factors", **settings)
