"""The methods as torch optimizers in a loop of one's own."""

import copy
import doctest
import importlib.util
import pickle
import re
import warnings
from contextlib import nullcontext
from dataclasses import asdict

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.optim.lr_scheduler import CosineAnnealingLR

import zo
from tests.support.pairwise import rotated
from tests.support.quadratic import same
from tests.support.tiny_models import llama
from zo import trajectory
from zo.library.methods import METHODS as CLASSES
from zo.noise import compiling
from zo.optim import OPTIMIZERS
from zo.record.trajectory import TrajectoryError
from zo.weights.space import ParameterSpace

METHODS = [name for name in CLASSES if not OPTIMIZERS[name].config.reads_weights]
SOME = ["mezo", "lozo", "mezo_adam", "bszo"]
"""No state, a subspace, tensors and numbers; each method's own steps are tried in tests/optim."""
SETTINGS = {
    "eggroll": {"baseline": "population"},
    "mezo": {"n": 2},
    "lozo": {"interval": 2},
    "hizoo": {"hessian_smooth": 1e-3},
}
X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()


def make_model(dtype=torch.float32, classes=2):
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, classes)
    return nn.Sequential(*layers).to(dtype)


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
    space = ParameterSpace.of(twin, "merged", "philox")
    method = OPTIMIZERS[name].optimizer(space, config, lr=1e-2, seed=3)
    for _ in range(3):
        loss = optimizer.step(lambda: loss_of(model))
        with torch.no_grad():
            info = method.step(lambda: loss_of(twin).item())
        assert type(loss) is float
        assert loss == info.loss == optimizer.info.loss
        assert optimizer.info.forwards == len(info.losses) == method.config.forwards_per_step
    assert same(weights(model), weights(twin))
    assert all(p.grad is None for p in model.parameters())


def test_noise_is_philox_where_it_is_compiled_and_its_compilation_is_told(monkeypatch, capsys):
    model = make_model()
    optimizer = make("mezo", model, check_closure=False)
    assert optimizer.method.params.engine.backend == "philox-cpu"
    optimizer.step(lambda: compiling.add(6.2) or loss_of(model))  # called four times
    told = "zo: 25 s of this step compiled noise='philox'; later steps and processes have it\n"
    assert capsys.readouterr().err.endswith(told)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert make("mezo", model).method.params.engine.backend.startswith("torch-cpu")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert make("mezo", model).method.params.engine.backend.startswith("torch-cpu")


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


@pytest.mark.parametrize("given", ["model", "tensors", "pairs", "groups"])
def test_frozen_tensors_are_left_out_and_stay_as_they_are(given):
    """Noise belongs to positions among the trained tensors, so all four move alike."""
    model, whole = make_model(), make_model()
    for of in (model, whole):
        of[0].requires_grad_(False)
        of[3].bias.requires_grad_(False)
    groups = {"model": model, "tensors": model.parameters(), "pairs": model.named_parameters()}
    groups["groups"] = [{"params": model[0]}, {"params": model[1]}, {"params": model[3]}]
    start = weights(model)
    optimizer = make("mezo", groups[given])
    optimizer.step(lambda: loss_of(model))
    make("mezo", whole).step(lambda: loss_of(whole))
    assert same(weights(model), weights(whole))
    moved = [not torch.equal(p, q) for p, q in zip(weights(model), start, strict=True)]
    assert [i for i, of in enumerate(moved) if not of] == [0, 1, 5]
    assert optimizer.method.params.numel == 8 + 8 + 16
    for tensor, now in ((model[3].weight, False), (model[0].weight, True)):
        tensor.requires_grad_(now)
        with pytest.raises(RuntimeError, match=f"requires_grad is {now} and was {not now} when"):
            optimizer.step(lambda: loss_of(model))
        tensor.requires_grad_(not now)


def stepped(closure=loss_of, make_model=make_model, **kwargs):
    model = make_model()
    return lambda: make("bszo", model, **kwargs).step(lambda: closure(model))


def changed(change, make_model=make_model):
    """Makes a step, and another one behind a change of the model or of the group's rates."""
    model = make_model().eval()
    optimizer = make("mezo", model)
    for _ in range(2):
        optimizer.step(lambda: loss_of(model))
        change(model) if callable(change) else optimizer.param_groups[0].update(change)


def dropout():
    return nn.Sequential(nn.Linear(6, 2), nn.Dropout(0.5))


def normalised():
    return nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2))


def thin():
    return nn.Sequential(nn.Linear(6, 1), nn.Linear(8, 4))  # a side of 1 is a vector


def guarded():
    layer = nn.Linear(6, 4)
    layer.optimizer = zo.LOZO(layer, 1.0, restore="factors")
    return layer


LOW_RANK = {"directions": "low_rank", "rank": 5}
BATCHES = iter(X.split(4))
REFUSED = [
    (lambda: make("bszo", make_model()).step(), "needs a closure"),
    (lambda: make("bszo", make_model()).step(0.5), r"closure .* again, as step\(lambda: model"),
    (lambda: zo.MeZO(make_model(), lr="1e-3"), "lr='1e-3': must be a number"),
    (lambda: zo.optimizer(make_model(), "mezo", 1e-3), r"first, as zo.optimizer\('mezo', model"),
    (lambda: zo.optimizer("Mezo", make_model(), 1e-3), "did you mean mezo"),
    (stepped(lambda _: None), "must return a number"),
    (stepped(lambda _: torch.tensor(1j)), "must return a number"),
    (stepped(lambda _: X), r"shape \(32, 6\)"),
    (stepped(lambda _: float("nan")), "loss is nan"),
    (stepped(lambda m: torch.amp.GradScaler("cpu").scale(loss_of(m))), "GradScaler.scale multipli"),
    (stepped(make_model=dropout), r"dropout is on \(call model.eval\(\)\)"),
    (stepped(lambda m: m(next(BATCHES)).square().mean()), "draws its own batch"),
    (lambda: changed(nn.Module.bfloat16), "0.weight: moved since the optimizer was made"),
    (stepped(ep=1e-3), "ep: no such setting of bszo; did you mean eps?"),
    (lambda: type("Mine", (zo.MeZO,), {})(make_model(), 1e-3, epss=1e-3), "epss: no such setting"),
    (stepped(k=0), "k=0: must be at least 1"),
    (lambda: changed(nn.Module.train, dropout), r"dropout is on \(call model.eval\(\)\)"),
    (stepped(make_model=normalised), "every call changes 1.num_batches_tracked, as BatchNorm does"),
    (lambda: changed({"lr": float("nan")}), "lr=nan: of parameter group 0 must be at least 0"),
    (lambda: changed({"weight_decay": -1.0}), "weight_decay=-1.0: of parameter group 0 must"),
    (lambda: zo.MeZO([{"params": make_model(), "lr": -1.0}], 1), "lr=-1.0: of parameter group 0"),
    (lambda: zo.MeZO([{"params": make_model(), "eps": 1}], 1), "eps: .*lr and weight_decay"),
    (lambda: nn.Parameter(guarded().weight), r"nn.Parameter\(\), as register_parametrization"),
    (stepped(seed=2**63), "seed=9223372036854775808: must fit into 64 bits"),
    (stepped(seed=None), "seed=None: must be a whole number"),
    (stepped(k="2"), "k='2': must be a whole number"),
    (stepped(m=2.5), "m=2.5: must be a whole number or None"),
    (stepped(eps="1e-3"), "eps='1e-3': must be a number"),
    (stepped(eps=float("inf")), "eps=inf: must be finite"),
    (stepped(two_sided=1), "two_sided=1: must be True or False"),
    (stepped(restore="copy"), "restore='copy': must be one of"),
    (stepped(lr=-1.0), "lr=-1.0: must be at least 0"),
    (stepped(directions="uniform"), "must be .*one of gaussian, rademacher"),
    (lambda: zo.MeZO("gpt2", 1), "params: str is no tensor; give a model, its tensors"),
    (lambda: make("hizoo", make_model(), directions="rademacher"), "must be .*z², which"),
    (lambda: make("adam", make_model()), "must be one of mezo, mezo_adam"),
    (lambda: make("es", thin().parameters(), **LOW_RANK), "rank=5: must be at most 4, the shorter"),
]


@pytest.mark.parametrize(("attempt", "says"), REFUSED)
def test_what_makes_no_step_is_refused_by_name(attempt, says):
    with pytest.raises((TypeError, ValueError, RuntimeError, zo.NonFiniteError), match=says):
        attempt()


def test_numpys_numbers_are_numbers(file):
    given = {"k": np.int64(2), "prior_std": np.float32(1.0), "seed": np.int64(3), "eps": 1}
    optimizer = make("bszo", make_model(), record=file, **given)
    optimizer.step(lambda: 1.0)
    assert type(optimizer.method.config.k) is type(optimizer.method.seed) is int


TOKENS = torch.arange(12).view(2, 6)
REPLACED = [  # by hand, a new parameter, a new module, tied
    ("model.embed_tokens.weight", lambda m: m.load_state_dict(llama().state_dict(), assign=True)),
    ("model.norm.weight", lambda m: setattr(m.model.norm, "weight", nn.Parameter(torch.ones(32)))),
    ("lm_head.weight", lambda m: setattr(m, "lm_head", nn.Linear(32, 300, bias=False))),
    ("lm_head.weight", lambda m: setattr(m.lm_head, "weight", m.model.embed_tokens.weight)),
    ("lm_head.bias", lambda m: setattr(m.lm_head, "bias", nn.Parameter(torch.zeros(300)))),
]


@pytest.mark.parametrize("restore", ["merged", "streamed", "factors"])
@pytest.mark.parametrize(("name", "replace"), REPLACED)
def test_a_weight_that_is_replaced_after_the_optimizer_was_made_is_refused(name, replace, restore):
    model, method = llama(), zo.LOZO if restore == "factors" else zo.MeZO
    optimizer = method(model, 1e-3, restore=restore)
    optimizer.step(lambda: model(TOKENS, labels=TOKENS).loss)
    replace(model)
    added = "came into the model after the optimizer was made"
    for _ in range(2):
        says = added if name == "lm_head.bias" else "is no longer in the model"
        with pytest.raises(RuntimeError, match=f"{name}: {says}"):
            optimizer.step(lambda: model(TOKENS, labels=TOKENS).loss)


def test_what_changes_none_of_the_trained_weights_is_not_refused():
    model = llama(tie_word_embeddings=True)
    tuner = zo.MeZO([*model.model.layers.parameters()], 1e-3, model=model)
    optimizer = zo.MeZO(model, 1e-3)
    model.tie_weights()
    model.model.more = nn.Linear(4, 4).requires_grad_(False)
    optimizer.step(lambda: model(TOKENS, labels=TOKENS).loss)
    model.model.even_more = nn.Linear(4, 4)
    tuner.step(lambda: model(TOKENS, labels=TOKENS).loss)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_closure_that_backpropagates_is_refused_in_a_sentence(gradients):
    """As Lightning's, which switches gradients on."""
    model = make_model()

    def closure():
        with torch.set_grad_enabled(gradients or torch.is_grad_enabled()):
            loss = loss_of(model)
            loss.backward()
        return loss

    with pytest.raises(ValueError, match=r"closure: calls backward"):
        make("mezo", model).step(closure)


def of_a_surrogate(model):
    return model[0].weight.sum() * 0 + 1


@pytest.mark.parametrize("loss", [loss_of, of_a_surrogate])
def test_steps_that_measure_nothing_are_reported_once_with_the_usual_causes(loss, recwarn):
    model = make_model()
    optimizer = make("bszo", model.parameters())  # of a model, other weights are refused
    if loss is loss_of:
        model.load_state_dict(make_model().state_dict(), assign=True)
    recwarn.clear()
    causes = r"step 1: all . losses are .*load_state_dict\(assign=True\), merge_and_unload.*GRPO"
    for _ in range(2):
        optimizer.step(lambda: loss(model))
    (told,) = (of for of in recwarn.list if "depend on it," not in str(of.message))
    assert told.filename == __file__
    assert re.match(causes, str(told.message))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_loss_of_few_digits_is_said_once(dtype, recwarn):
    model = make_model()
    optimizer = make("mezo", model)
    for _ in range(2):
        optimizer.step(lambda: loss_of(model).to(dtype))
    said = [of for of in recwarn.list if f"its loss is in {dtype}" in str(of.message)]
    assert [of.filename for of in said] == [__file__] * (dtype != torch.float32)


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


def test_a_small_model_is_told_that_bszo_hardly_moves_it():
    with pytest.warns(UserWarning, match=r"prior_std: .*prior_std=1\.0"):
        zo.BSZO(make_model(), lr=1e-2)
    with warnings.catch_warnings(action="error"):
        zo.BSZO(make_model(), lr=1e-2, prior_std=1.0)


class Rated:
    """A loss that is a mean over texts and knows the mean square of their numbers."""

    def __init__(self, model, square=7.0, equal=False):
        self.model, self.square, self.equal, self.since = model, square, equal, 0

    def __call__(self):
        self.since += 1
        return 1.0 if self.equal else loss_of(self.model)

    def mean_square(self):
        passes, self.since = self.since, 0
        return self.square if passes in (2, 4) else float("nan")  # two checks, then a step's four


@pytest.mark.parametrize("method", ["eggroll", "es"])
def test_the_texts_mean_square_of_a_closure_is_the_steps(method):
    model = make_model()
    optimizer = make(method, model, n=4, baseline="prompt")
    optimizer.step(Rated(model))
    assert optimizer.info.losses[-1] == 7.0
    with pytest.raises(ValueError, match="baseline='prompt': the closure"):
        optimizer.step(lambda: loss_of(model))


def test_equal_losses_beside_a_mean_square_are_reported():
    model = make_model()
    with pytest.warns(UserWarning, match="nothing was measured"):
        make("eggroll", model, n=4).step(Rated(model, equal=True))


def test_going_on_with_the_same_seed_is_warned_of_and_starting_again_is_not():
    def step(seed: int, state: dict | None = None) -> dict:
        optimizer = zo.MeZO([w], lr=1e-2, seed=seed)
        if state is not None:
            optimizer.load_state_dict(state)
        optimizer.step(lambda: w.square().sum())
        return optimizer.state_dict()

    w = torch.nn.Parameter(torch.ones(4))
    with warnings.catch_warnings(action="error"):
        state = step(0)
        step(0, state)
        step(1)
    with pytest.warns(UserWarning, match="seed=0: .* give seed=2"):
        step(0)
    w.data.fill_(1.0)
    with warnings.catch_warnings(action="error"):
        step(0)


DOCUMENTED = [*CLASSES.values(), zo.optimizer, zo.replay, zo.offload]


@pytest.mark.parametrize("what", DOCUMENTED, ids=lambda what: what.__name__)
def test_the_example_in_a_docstring_runs(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    globs = {"zo": zo, "copy": copy, "model": make_model(), "x": X}
    example = doctest.DocTestParser().get_doctest(what.__doc__, globs, what.__name__, None, 0)
    assert len(example.examples) >= 2
    assert doctest.DocTestRunner().run(example).failed == 0


def test_an_optimizers_repr_has_the_settings_of_its_method():
    shown = repr(zo.BSZO(make_model(), lr=1e-3, k=3, prior_std=1.0))
    assert shown.startswith("BSZO(lr=0.001, weight_decay=0.0, ")
    for said in ("k=3", "prior_std=1.0", "seed=0", "restore='merged'", "rounding='nearest'"):
        assert f", {said}" in shown
