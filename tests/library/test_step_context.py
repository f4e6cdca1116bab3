"""What happens around the closure of a step: signals, threads and autocast."""

import random
import signal
import sys
import threading
import time
from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import zo
from tests.library.test_library import loss_of, make_model, weights
from tests.support.pairwise import rotated
from tests.support.quadratic import same
from tests.support.tiny_models import MODELS, llama, t5
from zo.record.trajectory import TrajectoryError
from zo.weights.constraints import RESTORE_POLICIES

pytestmark = pytest.mark.filterwarnings("ignore:seed=3")  # models are trained again


PAIRS = [(restore, noise) for restore in RESTORE_POLICIES for noise in ("torch", "philox")]
STEPS = 3


def make(model, restore, **kwargs):
    name = "lozo" if restore == "factors" else "mezo"
    return zo.optimizer(name, model, 1e-2, seed=3, eps=1e-3, restore=restore, **kwargs)


class InterruptAt:
    """Traces lines; sends Ctrl-C at the one with this number."""

    def __init__(self, number):
        self.number, self.lines = number, 0

    def __call__(self, frame, event, arg):
        if event == "line":
            self.lines += 1
            if self.lines == self.number:
                signal.raise_signal(signal.SIGINT)
        return self


def interrupted(optimizer, model, number):
    """Makes a step with Ctrl-C at a line; returns its number of lines."""
    weights(model)  # read before every step: under factors that merges
    tracer, before = InterruptAt(number), sys.gettrace()
    sys.settrace(tracer)
    try:
        optimizer.step(lambda: loss_of(model))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return tracer.lines


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("tries", [6, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("restore", "noise"), PAIRS)
def test_ctrl_c_at_any_line_leaves_whole_steps_that_replay(restore, noise, tries, tmp_path):
    model, after, before = make_model(), [], signal.getsignal(signal.SIGINT)
    clean = make(model, restore, noise=noise)
    for _ in range(STEPS):
        clean.step(lambda: loss_of(model))
        after.append(weights(model))
    lines = interrupted(clean, model, None)
    numbers = random.Random(restore + noise)
    for trial in range(tries):
        model, number, file = make_model(), numbers.randrange(1, lines), tmp_path / f"{trial}.zo"
        optimizer = make(model, restore, noise=noise, record=file)
        optimizer.step(lambda: loss_of(model))  # noqa: B023
        interrupted(optimizer, model, number)
        assert same(weights(model), after[optimizer.step_index - 1]), number
        while optimizer.step_index < STEPS:
            optimizer.step(lambda: loss_of(model))  # noqa: B023
            weights(model)
        assert same(weights(model), after[-1]), number
        again = make_model()
        zo.replay(again, file)
        assert same(weights(again), after[-1]), number
        assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_does_not_wait_and_the_record_says_that_a_step_is_missing(tmp_path):
    model = make_model()
    optimizer = make(model, "merged", record=tmp_path / "run.zo", check_closure=False)

    def loss():
        signal.raise_signal(signal.SIGINT)
        return loss_of(model)

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(loss)
    assert optimizer.step_index == 0
    with pytest.raises(TrajectoryError, match="left rounding in the weights"):
        optimizer.step(lambda: loss_of(model))


def test_an_alarm_of_the_closure_itself_interrupts_it_at_once(monkeypatch):
    model = make_model()
    optimizer = make(model, "merged")
    alarms = []

    def alarm(number, frame):
        raise TimeoutError

    def loss():
        try:
            signal.raise_signal(signal.SIGALRM)
        except TimeoutError:
            alarms.append(optimizer.step_index)
        return loss_of(model)

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        optimizer.step(loss)
        assert signal.getsignal(signal.SIGALRM) is alarm
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(alarms) == 4  # the check's two calls, and the step's


def test_steps_in_another_thread_are_the_same_whatever_signals_the_main_thread_gets():
    model, twin, received = make_model(), make_model(), []
    for _ in range(STEPS):
        expected = make(twin, "merged")
        expected.step(lambda: loss_of(twin))

    def loss():  # not before a signal has come while the weights are displaced
        came, late = len(received), time.monotonic() + 60
        while len(received) == came and time.monotonic() < late:
            time.sleep(1e-4)
        return loss_of(model)

    def train():
        for _ in range(STEPS):
            make(model, "merged").step(loss)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        thread = threading.Thread(target=train)
        thread.start()
        while thread.is_alive():
            signal.raise_signal(signal.SIGUSR1)
            thread.join(1e-3)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(received) >= 2 * STEPS
    assert same(weights(model), weights(twin))


@pytest.mark.parametrize(
    ("name", "restore"),
    [("mezo", of) for of in RESTORE_POLICIES if of != "factors"]
    + [("lozo", "factors"), ("lozo_m", "merged"), ("zo_muon", "snapshot")],
)
def test_autocast_around_a_step_is_autocast_in_its_closure(name, restore):
    """The cache of autocast hides displaced weights, and the method's own products are not cast."""

    def trained(within):
        model = make_model()
        optimizer = zo.optimizer(name, model, 1e-2, eps=1e-1, restore=restore)

        def loss():
            with torch.autocast("cpu", torch.bfloat16, enabled=not within):
                return loss_of(model)

        def outside():
            return loss_of(model)

        found = []
        for _ in range(STEPS):
            if within:
                with torch.autocast("cpu", torch.bfloat16):
                    optimizer.step(outside)
                    found.append(loss_of(model))  # sees the moved weights, too
            else:
                optimizer.step(loss)
                found.append(loss())
        return [*weights(model), *found], optimizer.info.losses

    around, losses = trained(within=True)
    inside, expected = trained(within=False)
    assert losses == expected
    assert len(set(losses)) > 1
    assert same(around, inside)


class Exits(nn.Module):
    """Blocks with a head behind any of them; `more` enters behind the first."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(5, 1)

    def forward(self, x, blocks=3, more=None):
        for number, block in enumerate(self.blocks[:blocks]):
            x = block(x)
            if number == 0 and more is not None:
                x += more  # in place, as models do that read pictures
        return self.head(x).square().mean()


ROWS = torch.linspace(-1, 1, 20).view(4, 5)
TOKENS = torch.arange(24).view(2, 12) + 5


def exits():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Exits().eval()
    model.blocks[:2].requires_grad_(False)
    return model


def of_two_exits(model, step):
    return model(ROWS) + 10 * model(ROWS, blocks=1)


def of_an_input_that_later_batches_have(model, step):
    return model(ROWS, more=None if step == 0 else ROWS.flip(0))


def tuned():
    """A Llama with LoRA in both blocks, of which the last one's trains."""
    model = get_peft_model(llama(), LoraConfig(target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
    return trained_last(model.eval())


def trained_last(model):
    for name, p in model.named_parameters():
        p.requires_grad_("lora" in name and "layers.1" in name)
    return model


def of_policy_and_reference(model, step):
    policy = model(TOKENS, labels=TOKENS).loss
    with model.disable_adapter():
        reference = model(TOKENS, labels=TOKENS).loss
    trained_last(model)  # peft makes all adapters trainable behind the block
    return policy - 2 * reference


@pytest.mark.parametrize("restore", RESTORE_POLICIES)
@pytest.mark.parametrize(
    ("make_model", "loss"),
    [
        (exits, of_two_exits),
        (exits, of_an_input_that_later_batches_have),
        (tuned, of_policy_and_reference),
    ],
)
def test_a_step_measures_what_the_closure_says_where_the_first_blocks_are_frozen(
    make_model, loss, restore
):
    """A model that no step knows gets each probe's weights and computes the losses that are expected."""
    name = "lozo" if restore == "factors" else "mezo"
    whole = "snapshot" if restore in ("streamed", "factors") else restore  # these lend no weights
    model, twin, expected = make_model(), make_model(), []
    optimizer = zo.optimizer(name, model, 1e-2, eps=1e-2, restore=whole)
    for step in range(2):

        def closure(step=step):
            twin.load_state_dict(model.state_dict())
            expected.append(loss(twin, step).item())
            return loss(model, step)

        optimizer.step(closure)
    again = make_model()
    optimizer, found = zo.optimizer(name, again, 1e-2, eps=1e-2, restore=restore), []
    for step in range(2):

        def closure(step=step):
            found.append(loss(again, step))
            return found[-1]

        optimizer.step(closure)
    assert len({*expected}) >= 5, "each probe is elsewhere"
    assert [float(x) for x in found] == pytest.approx(expected, rel=1e-5)


CAST = {
    **{name: MODELS[name] for name in ("opt", "opt, untied", "llama", "llama, tied", "bert")},
    "t5": t5,
    "t5, untied": partial(t5, tie_word_embeddings=False),
}
LOW_RANK = ("lozo", "subzero", "tezo", "zo_muon")


@pytest.mark.parametrize(
    ("name", "trained", "restore", "method"),
    rotated(CAST, ["all", "embedding"], ["streamed", "offload"], ["mezo", *LOW_RANK]),
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_closure_under_autocast_displaces_as_without(
    name, trained, restore, method, dtype, tmp_path
):
    """What a probe displaces within the closure's calls is not cast: the losses are those of `snapshot`."""
    found = []
    for policy in ("snapshot", restore):
        model = CAST[name]()
        model.requires_grad_(trained == "all")
        model.get_input_embeddings().weight.requires_grad_(True)
        if policy == "offload":
            zo.offload(model, "disk", device="cpu", directory=tmp_path)
        how = "streamed" if policy == "offload" else policy
        optimizer = zo.optimizer(method, model, 1e-2, eps=1e-2, restore=how)

        def closure():
            with torch.autocast("cpu", dtype):
                return model(input_ids=TOKENS, labels=TOKENS).loss  # noqa: B023

        for _ in range(2):
            optimizer.step(closure)
            found.append(optimizer.info.losses)
    assert found[:2] == found[2:]
    assert len({*found[0]}) > 1


def of_a_reference(model, weights):
    """Cross entropy, and KL to the same module with other weights: what those are does not depend on θ."""
    own = model(TOKENS, labels=TOKENS)
    other = torch.func.functional_call(model, weights, (TOKENS,)).logits
    log_p, q = own.logits.log_softmax(-1), other.softmax(-1)
    divergence = nn.functional.kl_div(log_p, q, reduction="none").mean()
    return own.loss + 100 * divergence


@pytest.mark.parametrize("make_model", [llama, MODELS["llama, tied"], MODELS["opt"]])
@pytest.mark.parametrize("restore", [*RESTORE_POLICIES, "offload"])
def test_weights_that_functional_call_lends_are_not_displaced(make_model, restore, tmp_path):
    method = zo.LOZO if restore == "factors" else zo.MeZO
    found = []
    for policy in ("snapshot", restore):
        model = make_model()
        lent = {name: 0.9 * p.detach() for name, p in model.named_parameters()}
        if policy == "offload":
            zo.offload(model, "disk", device="cpu", directory=tmp_path)
        with torch.no_grad():
            before = torch.func.functional_call(model, lent, (TOKENS,)).logits
        how = "streamed" if policy == "offload" else policy
        optimizer = method(model, 1e-2, eps=1e-2, restore=how)
        for _ in range(2):
            optimizer.step(lambda: of_a_reference(model, lent))  # noqa: B023
            found += optimizer.info.losses
        with torch.no_grad():
            after = torch.func.functional_call(model, lent, (TOKENS,)).logits
        assert torch.equal(before, after)
    half = len(found) // 2
    assert found[half:] == pytest.approx(found[:half], rel=1e-5)
    assert len({*found[:half]}) == half


@pytest.mark.parametrize("restore", ["merged", "streamed", "factors"])
def test_an_alias_of_a_weight_that_functional_call_lends_is_displaced(restore):
    """It is the weight, whoever holds it."""
    method = zo.LOZO if restore == "factors" else zo.MeZO
    found = []
    for policy in ("snapshot", restore):
        model = llama()
        optimizer = method(model, 1e-2, eps=1e-2, restore=policy)
        aliases = dict(
            zip(optimizer.method.params.names, optimizer.method.params.local, strict=True)
        )
        optimizer.step(lambda: torch.func.functional_call(model, aliases, (TOKENS,)).logits.std())  # noqa: B023
        found.append(optimizer.info.losses)
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert len({*found[0]}) > 1
