"""States and records of a loop of one's own: they go on with the same bits, or are refused by name."""

import copy
import pickle
from contextlib import nullcontext
from dataclasses import asdict

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.optim.lr_scheduler import CosineAnnealingLR

import zo
from tests.support.own_loop import SOME, loss_of, make, make_model, weights
from tests.support.pairwise import rotated
from tests.support.quadratic import same
from zo import trajectory
from zo.record.trajectory import TrajectoryError


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
    name, rounding, restore, file, tmp_path
):
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


WIDER = {"model": make_model(classes=3)}
HALF, PLAIN = {"model": make_model(torch.bfloat16), "noise": "philox"}, {"name": "mezo"}
OLD = ("settings", "shapes")
STATES = [
    ((), {}, {"seed": 1}, "made with seed=0, but this optimizer has seed=1"),
    ((), {}, {"eps": 2e-3}, "made with eps=0.001, but this optimizer has eps=0.002"),
    ((), {}, {"restore": "snapshot"}, "'merged', but this optimizer has restore='snapshot'"),
    ((), {}, {"noise": "torch"}, "noise='philox', but"),
    ((), HALF, HALF | {"rounding": "compensated"}, "rounding='nearest', but"),
    (OLD, HALF, HALF | {"rounding": "compensated"}, "lacks residual; it was made with other"),
    (OLD, HALF | {"rounding": "compensated"}, HALF, "has residual; it was made with other"),
    ((), PLAIN, PLAIN | WIDER, r"3.weight has the shape \(3, 8\), and"),
    (OLD, {}, WIDER, r"m of \(\(2, 8\), .*\), but the method here needs \(\(3, 8"),
    (OLD, {}, HALF, r"m of \(\(8, 6\), torch.float32\), but the method"),
    (("state",), {}, {}, "state: lacks state; give what state_dict"),
    (OLD, {}, {}, None),
    ((), {"lr": 1.0, "weight_decay": 0.1}, {}, None),
]


@pytest.mark.filterwarnings("ignore:seed=0")  # the models of STATES are trained several times
@pytest.mark.parametrize(("drop", "saved", "here", "says"), STATES, ids=str)
def test_a_state_of_other_settings_or_tensors_is_refused_by_name(drop, saved, here, says):
    before, after = (
        make(**{"name": "mezo_adam", "model": make_model(), **how}) for how in (saved, here)
    )
    before.step(lambda: 1.0)
    state = {key: of for key, of in before.state_dict().items() if key not in drop}
    with pytest.raises(ValueError, match=says) if says else nullcontext():
        after.load_state_dict(state)


def test_an_optimizer_is_saved_by_its_state_alone(tmp_path):
    model, twin = make_model(), make_model()
    optimizers = make("adamezo", model), make("adamezo", twin)
    optimizers[0].step(lambda: loss_of(model))
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            attempt(optimizers[0])
    with pytest.raises(TypeError, match=r"checkpoint.save\({'optimizer': optimizer}\)"):
        get_state_dict(model, optimizers[0])
    dcp.save({"model": model.state_dict(), "optimizer": optimizers[0]}, checkpoint_id=tmp_path)
    dcp.load({"model": twin.state_dict(), "optimizer": optimizers[1]}, checkpoint_id=tmp_path)
    for optimizer, of in zip(optimizers, (model, twin), strict=True):
        optimizer.param_groups[0]["lr"] = 1e-2
        optimizer.step(lambda: loss_of(of))  # noqa: B023
    assert same(weights(model), weights(twin))


def test_a_record_of_before_a_setting_makes_the_weights_of_then(file, monkeypatch):
    """Sparse-MeZO masked every tensor before it had a scope."""
    before = lambda of: {k: v for k, v in asdict(of).items() if k != "scope"}  # noqa: E731
    monkeypatch.setattr("zo.record.header.asdict", before)
    model, replayed = make_model(), make_model()
    train(model, file, 3, "sparse_mezo", scope="all", restore="snapshot")
    zo.replay(replayed, file)
    assert same(weights(replayed), weights(model))


def test_a_record_is_not_overwritten_and_not_replayed_on_other_weights(file):
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


def test_a_record_is_explained_and_its_replay_is_not_the_commands(file, tmp_path, capsys):
    train(make_model(), file, 3)
    assert trajectory.main(["info", str(file)]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (told["steps"], told["noise"], told["lr"]) == ("3", "philox-cpu", "0.01 to 0.0075")
    assert told["method"].startswith("bszo: ")
    file.write_bytes(file.read_bytes()[:-1])
    assert trajectory.main(["info", str(file)]) == 0
    assert "what follows step 2 is not whole" in capsys.readouterr().out
    replay = ["replay", str(file), "--to", "2", "--out", str(tmp_path / "weights")]
    assert trajectory.main(replay) == 2
    assert "zo.replay(model, " in capsys.readouterr().err
