"""What single methods promise beyond the contract and their renderings, and when a step is a tie."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.quadratic import ZEROTH_ORDER, Quadratic, make, start, steps
from zo.distributed.processes import Processes
from zo.noise.torch_generator import TorchEngine
from zo.optim import OPTIMIZERS
from zo.run.loop import TIE, _step
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
    drawn, draw = [], TorchEngine.draw_

    def counted(engine, out, *key):
        drawn.append(out.numel())
        return draw(engine, out, *key)

    monkeypatch.setattr(TorchEngine, "draw_", counted)
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_h_moves_in_half_precision_only_if_it_is_float32(dtype):
    """Fifty steps that each let H grow by a few 1e-6: far below half a unit of bf16 or fp16."""
    grown = {}
    for state_dtype in ("param", "float32"):
        loss = Quadratic(dtype, "snapshot", curved=True)
        settings = {"eps": 0.05, "hessian_smooth": 1e-6, "state_dtype": state_dtype}
        opt = make("hizoo", loss, 1e-3, **settings)
        for _ in range(50):
            opt.step(loss)
        grown[state_dtype] = torch.cat([h.flatten() for h in opt.state["h"]])
    assert grown["param"].dtype == dtype
    assert grown["param"].eq(1).all()
    assert grown["float32"].dtype == torch.float32
    assert grown["float32"].ne(1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_moments_in_half_precision_are_those_that_torchs_adam_keeps(dtype):
    """Fed with c z rounded to that dtype: v to the last bit, m within the rounding of another order."""
    loss = Quadratic(dtype, "snapshot")
    opt = make("mezo_adam", loss, 0.0, state_dtype="param")
    twins = loss.weights()
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


@pytest.mark.parametrize("name", ZEROTH_ORDER)
def test_equal_losses_are_counted_as_a_tie_and_move_nothing(name):
    rows = []
    for flat in (False, True):
        loss = Quadratic(restore="snapshot")
        loss.answers, loss.seconds = dict.fromkeys(range(99), 1.5) if flat else {}, 0.0
        home, assembly = loss.weights(), SimpleNamespace(params=loss.params)
        assembly.optimizer = start(name, loss)
        session = SimpleNamespace(
            assembly=assembly,
            processes=Processes(),
            scorer=SimpleNamespace(differentiable=False),
            loss_of=lambda _, loss=loss: loss,
        )
        tie = _step(session, [])[TIE]
        rows.append((tie, all(map(torch.equal, loss.weights(), home))))
    assert rows == [(0, False), (1, True)]
