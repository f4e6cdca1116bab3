"""What happens around the closure of a step: signals, threads and autocast."""

import random
import signal
import sys
import threading
import time

import pytest
import torch

import zo
from tests.library.test_library import loss_of, make_model, weights
from tests.support.quadratic import same
from zo.record.trajectory import TrajectoryError
from zo.weights.constraints import RESTORE_POLICIES

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
    weights(model)  # read before every step: under factors that folds
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
