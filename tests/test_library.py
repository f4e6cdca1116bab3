"""The methods as torch optimizers in a loop of one's own."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import zo
from tests.support.pairwise import rotated
from tests.support.quadratic import same
from zo import trajectory
from zo.library import METHODS as CLASSES
from zo.optim import OPTIMIZERS
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


def loss_of(model):
    return nn.functional.cross_entropy(model(X.to(model[0].weight.dtype)), Y)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def make(name, model, lr=1e-2, **kwargs):
    return zo.optimizer(name, model, lr, **{"eps": 1e-3, **SETTINGS.get(name, {}), **kwargs})


@pytest.mark.parametrize("name", SOME)
def test_steps_are_those_of_the_suites_method(name):
    model, twin = make_model(), make_model()
    optimizer = make(name, model, seed=3)
    config = OPTIMIZERS[name].config(eps=1e-3, **SETTINGS.get(name, {}))
    space = ParameterSpace.of(twin, "merged")
    method = OPTIMIZERS[name].optimizer(space, config, lr=1e-2, seed=3)
    for _ in range(3):
        loss = optimizer.step(lambda: loss_of(model))
        with torch.no_grad():
            info = method.step(lambda: loss_of(twin).item())
        assert type(loss) is float
        assert loss == info.loss == optimizer.info.loss
        assert optimizer.info.forwards == len(info.losses) == method.forwards_per_step
    assert same(weights(model), weights(twin))
    assert all(p.grad is None for p in model.parameters())


GROUPS = [
    (torch.float32, {"noise": "torch"}),
    (torch.float32, {"noise": "philox", "restore": "snapshot"}),
    (torch.bfloat16, {"noise": "philox", "rounding": "compensated"}),
]
GROUPED = [
    pytest.param(name, *group, marks=[pytest.mark.process] * (name not in SOME))
    for name, group in rotated(METHODS, GROUPS)
]


@pytest.mark.parametrize(("name", "dtype", "how"), GROUPED)
def test_groups_have_their_own_learning_rate_and_decay(name, dtype, how):
    """A group moves as it does where all tensors have its rates."""

    def after(*rates):
        model = make_model(dtype)
        halves = list(model[0].parameters()), [*model[1].parameters(), *model[3].parameters()]
        groups = [{"params": p, **of} for p, of in zip(halves, rates, strict=True)]
        make(name, groups, **how).step(lambda: loss_of(model))
        return weights(model)

    slow, fast = {"lr": 1e-3, "weight_decay": 0.0}, {"lr": 2e-2, "weight_decay": 0.5}
    mixed, all_slow, all_fast = after(slow, fast), after(slow, slow), after(fast, fast)
    no_decay = after(slow, fast | {"weight_decay": 0.0})
    assert not same(all_slow, all_fast)
    assert not same(mixed[2:], no_decay[2:])
    assert same(mixed[:2], all_slow[:2])
    assert same(mixed[2:], all_fast[2:])


def stepped(closure=loss_of, make_model=make_model, **kwargs):
    """Returns what makes one step with a closure of a model."""
    model = make_model()
    return lambda: make("bszo", model, **kwargs).step(lambda: closure(model))


def moved_afterwards():
    model = make_model()
    optimizer = make("mezo", model)
    model.to(torch.bfloat16)
    optimizer.step(lambda: loss_of(model))


def dropout():
    return nn.Sequential(nn.Linear(6, 2), nn.Dropout(0.5))


BATCHES = iter(X.split(4))
REFUSED = [
    (lambda: make("bszo", make_model()).step(), "needs a closure"),
    (stepped(lambda _: None), "must return a number"),
    (stepped(lambda _: X), r"shape \(32, 6\)"),
    (stepped(lambda _: float("nan")), "loss is nan"),
    (stepped(make_model=dropout), r"dropout is on \(call model.eval\(\)\)"),
    (stepped(lambda m: m(next(BATCHES)).square().mean()), "draws its own batch"),
    (moved_afterwards, "0.weight: moved since the optimizer was made"),
    (stepped(ep=1e-3), r"ep: bszo has no such setting; did you mean eps\?"),
    (stepped(rank=2), "rank: bszo has no such setting; there are step_norm, "),
    (stepped(k=0), "k=0: must be at least 1"),
    (stepped(restore="copy"), "restore='copy': must be one of"),
    (stepped(lr=-1.0), "lr=-1.0: must be at least 0"),
    (stepped(directions="uniform"), "must be .*one of gaussian, rademacher"),
    (lambda: make("hizoo", make_model(), directions="rademacher"), "must be .*z², which"),
    (lambda: make("adam", make_model()), "must be one of mezo, mezo_adam"),
]


@pytest.mark.parametrize(("attempt", "says"), REFUSED)
def test_what_makes_no_step_is_refused_by_name(attempt, says):
    with pytest.raises((TypeError, ValueError, RuntimeError, zo.NonFiniteError), match=says):
        attempt()


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
    middle = weights(model)
    train(model, file, 2, state=state, **how)  # steps that are made again
    saved, *state = torch.load(tmp_path / "state.pt", weights_only=True)
    again.load_state_dict(saved)
    train(again, file, 3, state=state, **how)
    assert same(weights(again), weights(whole))
    assert file.read_bytes() == (tmp_path / "whole.zo").read_bytes()
    assert file.stat().st_size < 2000
    for steps, expected in ((3, middle), (None, weights(whole)), (0, weights(start))):
        replayed = make_model(torch.bfloat16)
        zo.replay(replayed, file, steps=steps)
        assert same(weights(replayed), expected), steps


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
    train(make_model(), file, 3)
    assert trajectory.main(["info", str(file)]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (told["steps"], told["noise"], told["lr"]) == ("3", "torch-cpu", "0.01 to 0.0075")
    assert told["method"].startswith("bszo: ")
    file.write_bytes(file.read_bytes()[:-1])
    assert trajectory.main(["info", str(file)]) == 0
    assert "what follows step 2 is not whole" in capsys.readouterr().out
    replay = ["replay", str(file), "--to", "2", "--out", str(tmp_path / "weights")]
    assert trajectory.main(replay) == 2
    assert "zo.replay(model, " in capsys.readouterr().err
