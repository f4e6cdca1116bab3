"""What the methods beyond the paper's six promise beyond the contract and their renderings."""

import numpy as np
import pytest
import torch

from tests.support.quadratic import ZEROTH_ORDER, Quadratic, make, steps
from zo.noise import torch_generator
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
    drawn, draw = [], torch_generator.normal_

    def counted(out, *key):
        drawn.append(out.numel())
        return draw(out, *key)

    monkeypatch.setattr(torch_generator, "normal_", counted)
    weight = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    params = ParameterSpace([("m", weight)], "snapshot")
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
