"""The automatic scale of BSZO, what half precision does to their state, and when a step is a tie."""

from types import SimpleNamespace

import pytest
import torch

from tests.support.quadratic import ZEROTH_ORDER, Quadratic, make, start
from zo.distributed.processes import Processes
from zo.run.loop import TIE, _step


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
