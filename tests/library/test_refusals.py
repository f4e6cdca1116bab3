"""What a step, an optimizer or a model in a loop of one's own is refused or warned of for, by name."""

import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import zo
from tests.support.own_loop import X, loss_of, make, make_model, weights
from tests.support.quadratic import same
from tests.support.tiny_models import llama
from zo.weights import policy_check
from zo.weights.directions import Gaussian
from zo.weights.restore import RestoreError


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


def test_a_small_model_is_told_that_bszo_hardly_moves_it():
    with pytest.warns(UserWarning, match=r"prior_std: .*prior_std=1\.0"):
        zo.BSZO(make_model(), lr=1e-2)
    with warnings.catch_warnings(action="error"):
        zo.BSZO(make_model(), lr=1e-2, prior_std=1.0)


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


@pytest.mark.parametrize("restore", ["merged", "subtract"])
def test_after_a_pass_that_failed_other_weights_make_no_step_and_no_state(restore, monkeypatch):
    """As one for which a GPU had no memory: some weights are displaced, and others are not."""
    model, own = make_model(), Gaussian.sample

    def sample(self, i, p, rows=None):
        if i == 2:
            raise torch.OutOfMemoryError("no memory")
        return own(self, i, p, rows)

    optimizer = zo.MeZO(model, 1e-2, noise="torch", restore=restore, check_closure=False)
    optimizer.step(lambda: loss_of(model))
    monkeypatch.setattr(Gaussian, "sample", sample)
    with pytest.raises(torch.OutOfMemoryError):
        optimizer.step(lambda: loss_of(model))
    monkeypatch.undo()
    for go_on in (lambda: optimizer.step(lambda: loss_of(model)), optimizer.state_dict):
        with pytest.raises(RuntimeError, match=r"a pass .* failed .*no memory.* are not θ"):
            go_on()


def test_streamed_refuses_what_it_cannot_displace():
    """Layers of another optimizer's factors, made later, and calls from another thread."""
    model = make_model()
    optimizer = zo.MeZO(model, 1e-2, restore="streamed", check_closure=False)
    other = zo.LOZO(model, 1e-2, restore="factors")
    with pytest.raises(ValueError, match="another optimizer with restore='factors' moves it"):
        optimizer.step(lambda: loss_of(model))
    other.close()
    optimizer.step(lambda: loss_of(model))
    with ThreadPoolExecutor(1) as pool, pytest.raises(RestoreError, match="in another thread"):
        optimizer.step(lambda: pool.submit(loss_of, model).result())


@pytest.mark.parametrize("method", ["mezo", "bszo"])
def test_streamed_displaces_weights_of_double_precision(method):
    losses = []
    for restore in ("snapshot", "streamed"):
        model = make_model(torch.float64)
        optimizer = make(method, model, restore=restore)
        losses.append([optimizer.step(lambda model=model: loss_of(model)) for _ in range(3)])
    assert losses[0] == losses[1]


@pytest.mark.filterwarnings("ignore:restore=merged was compared")
def test_a_check_by_parts_leaves_a_methods_state_alone(monkeypatch):
    """ConMeZO's momentum, where there is no memory for a copy of all weights."""
    found = []
    for room in (1e12, 200.0):
        monkeypatch.setattr(policy_check, "free_bytes", lambda _, room=room: room)
        model = make_model()
        optimizer = make("conmezo", model, seed=3)
        optimizer.step(lambda model=model: loss_of(model))
        found.append(weights(model))
    assert same(*found)
