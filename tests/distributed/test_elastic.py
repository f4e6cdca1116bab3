"""zo.BSZO(model, elastic=...): processes that join and leave, with the bits of one process."""

import itertools
import os
import signal
import threading
import time
from typing import Any

import pytest
import torch

import zo
from tests.support.crowd import ended, free_port
from tests.support.forkserver import preloaded_context
from zo.distributed.processes import ProcessesError, ProcessLostError

EXAMPLES, PARTS = 12, 2
SETTINGS: dict[str, Any] = {"lr": 1e-2, "k": 2, "prior_std": 1.0, "noise": "philox"}


def make_model():
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def part_loss(model, step, part):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(EXAMPLES, 6, generator=generator)[part::PARTS]
    return torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())


def weights(model):
    return [p.detach().numpy().tobytes() for p in model.parameters()]


def one_process(count):
    model = make_model()
    optimizer = zo.BSZO(model, restore="streamed", **SETTINGS)
    for step in range(count):
        value = lambda: sum(float(part_loss(model, step, p)) for p in range(PARTS)) / PARTS  # noqa: B023, E731
        optimizer.step(value)
    return weights(model)


def elastic(port, **given):
    return zo.Elastic(f"127.0.0.1:{port}", key="secret", parts=PARTS, timeout=20, **given)


def lead(port, record, count, pipe):
    """Leads a training; tells how many processes made each step, and the weights."""
    model, worlds = make_model(), []
    given = elastic(port, leads=True)
    optimizer = zo.BSZO(model, elastic=given, record=record, check_every=50, **SETTINGS)
    while (step := optimizer.step_index) < count:
        optimizer.step(lambda part: part_loss(model, step, part))
        worlds.append(optimizer.processes.world)
        pipe.send(worlds[-1])
        while not pipe.poll():
            time.sleep(0.001)
        pipe.recv()
    pipe.send((worlds, weights(model)))


def follow(port, last, ends_by, pipe):
    """Takes part until a step, after which it leaves, or in the middle of which it is killed."""
    one_process(1)  # imports and compiles
    pipe.send("here")
    pipe.recv()
    model = make_model()
    optimizer = zo.BSZO(model, elastic=elastic(port), check_every=50, **SETTINGS)
    pipe.send(optimizer.step_index)
    calls = itertools.count()

    def closure(part):
        if ends_by == "kill" and optimizer.step_index == last and next(calls) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return part_loss(model, optimizer.step_index, part)

    while optimizer.step_index < last + (ends_by == "kill"):
        optimizer.step(closure)
    optimizer.processes.close()
    pipe.send(weights(model))


class Started:
    """Processes that were started, and the pipes to them."""

    def __init__(self):
        self.context = preloaded_context()
        self.processes = []

    def start(self, function, *args):
        mine, its = self.context.Pipe()
        process = self.context.Process(target=function, args=(*args, its))
        process.start()
        its.close()
        self.processes.append(process)
        return mine


@pytest.fixture
def started():
    of = Started()
    with ended(of.processes):
        yield of


def received(pipe):
    assert pipe.poll(60), "no answer in 60 s"
    return pipe.recv()


def drive(leading, at):
    """Lets the lead make its steps; returns how many processes made each step, and the weights.

    `at` says after which step a process is let go, and how many take part then; steps are slow until they do.
    """
    made, awaited = 0, 0
    while isinstance(world := received(leading), int):
        made += 1
        if made in at:
            pipe, awaited = at[made]
            pipe.send("go")
        if world < awaited:
            time.sleep(0.1)
        else:
            awaited = 0
        leading.send("go on")
    return world


@pytest.mark.process
@pytest.mark.parametrize(
    ("joins", "leaves", "count", "ends_by"),
    [
        (20, 40, 60, "kill"),
        pytest.param(100, 200, 300, "leaving", marks=pytest.mark.slow),
    ],
)
def test_a_third_process_joins_and_another_one_goes(
    started, tmp_path, joins, leaves, count, ends_by
):
    port = free_port()
    second = started.start(follow, port, leaves, ends_by)
    third = started.start(follow, port, count, "leaving")
    assert received(second) == received(third) == "here"
    leading = started.start(lead, port, str(tmp_path / "run.zo"), count)
    worlds, found = drive(leading, {1: (second, 2), joins: (third, 3)})
    assert found == one_process(count)
    joined = received(third)
    assert joins < joined < leaves
    assert received(third) == found
    assert received(second) < joins
    assert worlds[joined - 1 :] == [2] + [3] * (leaves - joined) + [2] * (count - leaves)
    model = make_model()
    zo.replay(model, tmp_path / "run.zo")
    assert weights(model) == found


@pytest.fixture
def leading(tmp_path):
    """Leads a training in a thread; gives its port."""
    port, stops = free_port(), threading.Event()
    model = make_model()
    optimizer = zo.BSZO(
        model, elastic=elastic(port, leads=True), record=tmp_path / "run.zo", **SETTINGS
    )

    def train():
        while not stops.wait(0.001):
            optimizer.step(lambda part: part_loss(model, optimizer.step_index, part))

    thread = threading.Thread(target=train)
    thread.start()
    yield port
    stops.set()
    thread.join(10)
    optimizer.processes.close()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"lr": 2e-2}, "this process: lr is 0.02, and 0.01 on process 0; give all"),
        ({"parts": 3}, "elastic.parts is 3, and 2 on process 0"),
        ({"key": "guess"}, "elastic.key: not that of the process at 127.0.0.1"),
        ({"weights": 1.0}, "the base weights is"),
    ],
)
def test_a_process_that_does_not_fit_is_refused_and_the_training_goes_on(
    leading, changed, sentence
):
    def take_part(key="secret", parts=PARTS, weights=0.0, **settings):
        model = make_model()
        model[2].bias.data[0] += weights
        given = zo.Elastic(f"127.0.0.1:{leading}", key=key, parts=parts, timeout=20)
        return model, zo.BSZO(model, elastic=given, **{**SETTINGS, **settings})

    with pytest.raises(ProcessesError, match=sentence):
        take_part(**changed)
    model, optimizer = take_part()
    optimizer.step(lambda part: part_loss(model, optimizer.step_index, part))
    assert optimizer.processes.world == 2
    optimizer.processes.close()


def test_a_process_whose_closure_fails_leaves_and_the_others_go_on(leading):
    def join():
        model = make_model()
        return model, zo.BSZO(model, elastic=elastic(leading), check_closure=False, **SETTINGS)

    _, optimizer = join()
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda part: 1 / 0)
    with pytest.raises(ProcessLostError, match="left the training"):
        optimizer.step(lambda part: 1.0)
    model, optimizer = join()
    optimizer.step(lambda part: part_loss(model, optimizer.step_index, part))
    optimizer.processes.close()


def test_the_process_that_leads_goes_on_with_its_record(tmp_path):
    def lead_until(count):
        model = make_model()
        given = elastic(free_port(), leads=True)
        optimizer = zo.BSZO(model, elastic=given, record=tmp_path / "run.zo", **SETTINGS)
        while optimizer.step_index < count:
            optimizer.step(lambda part: part_loss(model, optimizer.step_index, part))
        optimizer.processes.close()
        return weights(model)

    lead_until(0)
    lead_until(3)
    assert lead_until(6) == one_process(6)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"restore": "merged"}, "restore='merged': .* must be one of snapshot, streamed, factors"),
        ({}, "record: the process that leads needs it"),
        ({"address": "29400"}, "must be a host and a port, as 10.0.0.5:29400"),
    ],
)
def test_what_cannot_lead_is_one_sentence(given, sentence):
    given = dict(given)
    address = given.pop("address", "127.0.0.1:0")
    with pytest.raises(ValueError, match=sentence):
        zo.BSZO(
            make_model(),
            lr=1e-2,
            elastic=zo.Elastic(address, key="secret", leads=True),
            **given,
        )
