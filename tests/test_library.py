"""The methods as torch optimizers in a loop of one's own."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

import zo
from tests.support.pairwise import rotated
from zo import trajectory
from zo.library import METHODS as CLASSES
from zo.optim import OPTIMIZERS
from zo.optim.base import Rates
from zo.run.trajectory import TrajectoryError
from zo.weights.space import ParameterSpace

METHODS = [name for name in CLASSES if not OPTIMIZERS[name].config.reads_weights]
SOME = ["mezo", "lozo", "mezo_adam", "bszo"]
"""No state, a subspace, tensors and numbers; each method's own steps are tried in tests/optim."""
SETTINGS = {"mezo": {"n": 2}, "lozo": {"interval": 2}, "hizoo": {"hessian_smooth": 1e-3}}
X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def loss_of(model, reduction="mean"):
    dtype = next(model.parameters()).dtype
    return nn.functional.cross_entropy(model(X.to(dtype)), Y, reduction=reduction)


def bits(model):
    return [p.detach().clone().view(torch.uint8) for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def make(name, model, lr=1e-2, **kwargs):
    return zo.optimizer(name, model, lr, **{"eps": 1e-3, **SETTINGS.get(name, {}), **kwargs})


@pytest.mark.parametrize("name", SOME)
def test_steps_are_those_of_the_suites_method_at_a_schedulers_rates(name, recwarn):
    model, twin = make_model(), make_model()
    optimizer = make(name, model, seed=3)
    config = OPTIMIZERS[name].config(eps=1e-3, **SETTINGS.get(name, {}))
    space = ParameterSpace.of(twin, "merged")
    method = OPTIMIZERS[name].optimizer(space, config, lr=1e-2, seed=3)
    schedule = OneCycleLR(optimizer, 1e-1, total_steps=6, cycle_momentum=False)
    for _ in range(3):
        method.rates = [Rates(optimizer.param_groups[0]["lr"], 0.0)]
        loss = optimizer.step(lambda: loss_of(model))
        schedule.step()
        with torch.no_grad():
            info = method.step(lambda: loss_of(twin).item())
        assert type(loss) is float
        assert loss == info.loss == optimizer.info.loss
        assert optimizer.info.forwards == len(info.losses) == method.forwards_per_step
    assert same(bits(model), bits(twin))
    assert all(p.grad is None for p in model.parameters())
    assert not [w for w in recwarn if "lr_scheduler.step" in str(w.message)]


GROUPS = [
    (torch.float32, {"noise": "torch"}),
    (torch.float32, {"noise": "philox", "restore": "snapshot"}),
    (torch.bfloat16, {"noise": "philox", "rounding": "compensated"}),
]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        pytest.param(n, GROUPS[i % 3], marks=[pytest.mark.process] * (n not in SOME))
        for i, n in enumerate(METHODS)
    ],
)
def test_groups_have_their_own_learning_rate_and_decay(name, group):
    """A group moves as it does where all tensors have its rates."""
    dtype, how = group

    def after(*rates):
        model = make_model(dtype)
        halves = list(model[0].parameters()), [*model[1].parameters(), *model[3].parameters()]
        groups = [
            {"params": p, "lr": lr, "weight_decay": wd}
            for p, (lr, wd) in zip(halves, rates, strict=True)
        ]
        optimizer = make(name, groups, **how)
        assert len(optimizer.param_groups) == 2
        optimizer.step(lambda: loss_of(model))
        return bits(model)

    slow, fast = (1e-3, 0.0), (2e-2, 0.5)
    mixed, all_slow, all_fast = after(slow, fast), after(slow, slow), after(fast, fast)
    no_decay = after(slow, (2e-2, 0.0))
    assert not same(all_slow, all_fast)
    assert not same(mixed[2:], no_decay[2:])
    assert same(mixed[:2], all_slow[:2])
    assert same(mixed[2:], all_fast[2:])


def test_dropout_and_a_closure_that_draws_its_batch_are_refused():
    model = nn.Sequential(nn.Linear(6, 2), nn.Dropout(0.5))
    with pytest.raises(ValueError, match=r"dropout is on \(call model.eval\(\)\)"):
        make("bszo", model).step(lambda: loss_of(model))
    make("bszo", model, check_closure=False).step(lambda: loss_of(model))
    make("bszo", model.eval()).step(lambda: loss_of(model))
    batches = iter(X.split(4))
    with pytest.raises(ValueError, match="draws its own batch"):
        make("bszo", model).step(lambda: model(next(batches)).square().mean())


@pytest.mark.parametrize(
    ("closure", "error", "says"),
    [
        (None, TypeError, "needs a closure"),
        (lambda: None, TypeError, "must return a number"),
        (lambda: X, ValueError, r"shape \(32, 6\)"),
        (lambda: float("nan"), zo.NonFiniteError, "loss is nan"),
    ],
)
def test_a_closure_without_a_loss_is_refused_and_nothing_moves(closure, error, says):
    model = make_model()
    optimizer, before = make("bszo", model), bits(model)
    with pytest.raises(error, match=says):
        optimizer.step(closure)
    assert same(bits(model), before)


@pytest.mark.parametrize(
    ("kwargs", "error", "says"),
    [
        ({"ep": 1e-3}, TypeError, "ep: bszo has no such setting; did you mean eps?"),
        ({"rank": 2}, TypeError, "rank: bszo has no such setting; there are step_norm, "),
        ({"k": 0}, ValueError, "k=0: must be at least 1"),
        ({"directions": "uniform"}, ValueError, "must be .*one of gaussian, rademacher"),
        ({"lr": -1.0}, ValueError, "lr=-1.0: must be at least 0"),
        ({"restore": "copy"}, ValueError, "restore='copy': must be one of"),
    ],
)
def test_what_a_method_has_not_is_named(kwargs, error, says):
    with pytest.raises(error, match=says.replace("?", r"\?")):
        zo.BSZO(make_model(), **{"lr": 1e-3, **kwargs})
    for name, why in (("hizoo", "z², which is 1"), ("lozo", "U and V")):
        with pytest.raises(ValueError, match=f"directions=rademacher: must be .*{why}"):
            zo.optimizer(name, make_model(), lr=1e-3, directions="rademacher")
    with pytest.raises(ValueError, match="must be one of mezo, mezo_adam"):
        zo.optimizer("adam", make_model(), lr=1e-3)


def test_a_model_that_was_moved_afterwards_is_refused():
    model = make_model()
    optimizer = make("mezo", model)
    model.to(torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"0.weight: moved since the optimizer was made"):
        optimizer.step(lambda: loss_of(model))


def train(model, record, steps, name="bszo", state=None, **kwargs):
    optimizer = make(name, model, record=record, **kwargs)
    schedule = CosineAnnealingLR(optimizer, T_max=6)
    if state is not None:
        optimizer.load_state_dict(state[0])
        schedule.load_state_dict(state[1])
    for _ in range(steps):
        optimizer.step(lambda: loss_of(model))
        schedule.step()
    return optimizer.state_dict(), schedule.state_dict()


@pytest.mark.parametrize(
    ("name", "rounding", "restore"),
    rotated(SOME, ["nearest", "compensated"], ["merged", "snapshot"]),
)
def test_a_resumed_training_has_the_same_bits_and_a_record_that_makes_any_step_again(
    name, rounding, restore, tmp_path
):
    file = tmp_path / "run.zo"
    how = {"name": name, "rounding": rounding, "restore": restore, "weight_decay": 0.1}
    start, whole, model, again = (make_model(torch.bfloat16) for _ in range(4))
    train(whole, tmp_path / "whole.zo", 6, **how)
    state = train(model, file, 3, **how)
    torch.save((model.state_dict(), *state), tmp_path / "state.pt")
    middle = bits(model)
    train(model, file, 2, state=state, **how)  # steps that are made again
    saved, *state = torch.load(tmp_path / "state.pt", weights_only=True)
    again.load_state_dict(saved)
    train(again, file, 3, state=state, **how)
    assert same(bits(again), bits(whole))
    assert file.read_bytes() == (tmp_path / "whole.zo").read_bytes()
    assert file.stat().st_size < 2000
    for steps, expected in ((3, middle), (None, bits(whole)), (0, bits(start))):
        replayed = make_model(torch.bfloat16)
        zo.replay(replayed, file, steps=steps)
        assert same(bits(replayed), expected), steps


def test_a_record_is_not_overwritten_and_not_replayed_on_other_weights(tmp_path):
    file = tmp_path / "run.zo"
    train(make_model(), file, 2)
    with pytest.raises(FileExistsError, match="remove it or name another file"):
        train(make_model(), file, 1)
    other = make_model()
    with torch.no_grad():
        other[0].weight[0, 0] += 1
    with pytest.raises(TrajectoryError, match="starts from other weights"):
        zo.replay(other, file)
    with pytest.raises(TrajectoryError, match="other tensors or parameter groups"):
        zo.replay(list(make_model().parameters()), file)
    with pytest.raises(ValueError, match="has 2"):
        zo.replay(make_model(), file, steps=3)


def test_a_record_is_explained_and_its_replay_is_not_the_commands(tmp_path, capsys):
    file = tmp_path / "run.zo"
    train(make_model(), file, 3, "bszo")
    assert trajectory.main(["info", str(file)]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert told["steps"] == "3"
    assert told["method"].startswith("bszo: ")
    assert told["lr"] == "0.01 to 0.0075"
    assert told["noise"] == "torch-cpu"
    assert "torn" not in told
    file.write_bytes(file.read_bytes()[:-1])
    assert trajectory.main(["info", str(file)]) == 0
    assert "what follows step 2 is not whole" in capsys.readouterr().out
    replay = ["replay", str(file), "--to", "2", "--out", str(tmp_path / "weights")]
    assert trajectory.main(replay) == 2
    assert "zo.replay(model, " in capsys.readouterr().err
