"""What happens around the closure of a step: signals, threads and autocast."""

import random
import signal
import sys
import threading
import time
from contextlib import contextmanager, nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import zo
from tests.support.own_loop import loss_of, make_model, weights
from tests.support.quadratic import same
from tests.support.tiny_models import llama, seeded
from zo.record.trajectory import TrajectoryError
from zo.weights.constraints import RESTORE_POLICIES

pytestmark = pytest.mark.filterwarnings("ignore:seed=3")  # models are trained again


PAIRS = [(restore, noise) for restore in RESTORE_POLICIES for noise in ("torch", "philox")]
STEPS = 3


def method_for(restore):
    return "lozo" if restore == "factors" else "mezo"


def make(model, restore, **kwargs):
    how = {"seed": 3, "eps": 1e-3, "restore": restore, **kwargs}
    return zo.optimizer(method_for(restore), model, 1e-2, **how)


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


@contextmanager
def handled(number, handler):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


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


def test_a_second_ctrl_c_does_not_wait_and_the_record_says_that_a_step_is_missing(file):
    model = make_model()
    optimizer = make(model, "merged", record=file, check_closure=False)

    def loss():
        signal.raise_signal(signal.SIGINT)
        return loss_of(model)

    ends = handled(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    with ends, pytest.raises(KeyboardInterrupt):
        optimizer.step(loss)
    assert optimizer.step_index == 0
    with pytest.raises(TrajectoryError, match="left rounding in the weights"):
        optimizer.step(lambda: loss_of(model))


def test_an_alarm_of_the_closure_itself_interrupts_it_at_once():
    model, alarms = make_model(), []

    def alarm(number, frame):
        raise TimeoutError

    def loss():
        with pytest.raises(TimeoutError):
            signal.raise_signal(signal.SIGALRM)
        alarms.append(signal.getsignal(signal.SIGALRM))
        return loss_of(model)

    with handled(signal.SIGALRM, alarm):
        make(model, "merged").step(loss)
        assert signal.getsignal(signal.SIGALRM) is alarm
    assert len(alarms) == 5  # three calls of the checks, and the step's


def test_steps_in_another_thread_are_the_same_whatever_signals_the_main_thread_gets():
    model, twin, received = make_model(), make_model(), []
    for _ in range(STEPS):
        make(twin, "merged").step(lambda: loss_of(twin))

    def loss():  # not before a signal has come while the weights are displaced
        came, late = len(received), time.monotonic() + 60
        while len(received) == came and time.monotonic() < late:
            time.sleep(1e-4)
        return loss_of(model)

    def train():
        for _ in range(STEPS):
            make(model, "merged").step(loss)

    with handled(signal.SIGUSR1, lambda number, frame: received.append(number)):
        thread = threading.Thread(target=train)
        thread.start()
        while thread.is_alive():
            signal.raise_signal(signal.SIGUSR1)
            thread.join(1e-3)
    assert len(received) >= 2 * STEPS
    assert same(weights(model), weights(twin))


@pytest.mark.parametrize(
    ("name", "restore"),
    [("mezo", of) for of in RESTORE_POLICIES if of != "factors"]
    + [("lozo", "factors"), ("lozo_m", "merged"), ("zo_muon", "snapshot")],
)
def test_autocast_around_a_step_is_autocast_in_its_closure(name, restore):
    """The cache of autocast hides displaced weights, and the method's own products are not cast."""

    def trained(around):
        model, found = make_model(), []
        optimizer = zo.optimizer(name, model, 1e-2, eps=1e-1, restore=restore)

        def loss():
            with nullcontext() if around else torch.autocast("cpu", torch.bfloat16):
                return loss_of(model)

        for _ in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16, enabled=around):
                found += [optimizer.step(loss), loss()]  # sees the moved weights, too
        return [*weights(model), *found, *optimizer.info.losses]

    found = trained(around=True)
    assert same(found, trained(around=False))
    assert len({*found[-2:]}) > 1


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
    model = seeded(Exits)
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
    whole = "snapshot" if restore in ("streamed", "factors") else restore  # these lend no weights
    model, again, twin, expected, found = make_model(), make_model(), make_model(), [], []
    how = {"name": method_for(restore), "lr": 1e-2, "eps": 1e-2, "check_closure": False}
    optimizer = zo.optimizer(params=model, restore=whole, **how)
    tested = zo.optimizer(params=again, restore=restore, **how)

    def closure():
        twin.load_state_dict(model.state_dict())
        expected.append(loss(twin, optimizer.step_index).item())
        return loss(model, optimizer.step_index)

    def of_tested():
        found.append(loss(again, tested.step_index))
        return found[-1]

    for _ in range(3):
        optimizer.step(closure)
        tested.step(of_tested)
    assert len({*expected}) >= 5, "each probe is elsewhere"
    assert [float(x) for x in found] == pytest.approx(expected, rel=1e-5)
