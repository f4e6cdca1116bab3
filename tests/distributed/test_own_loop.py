"""zo.BSZO(model, elastic=..., or group=...): a loop of one's own on several processes, with the bits of one."""

import itertools
import os
import signal
import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import zo
from tests.support.crowd import ended, free_port, gather_results
from tests.support.forkserver import preloaded_context
from zo.distributed.processes import Processes, ProcessesError, ProcessLostError

EXAMPLES, PARTS = 12, 2
SETTINGS: dict[str, Any] = {"lr": 1e-2, "k": 2, "prior_std": 1.0, "noise": "philox"}


def make_model():
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def part_loss(model, step, part, parts=PARTS):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(EXAMPLES, 6, generator=generator)[part::parts]
    return torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())


def weights(model):
    return [p.detach().numpy().tobytes() for p in model.parameters()]


def one_process(count, parts=PARTS, **settings):
    """Returns the weights after steps on the mean of all parts."""
    model = make_model()
    optimizer = zo.BSZO(model, **{"restore": "streamed", **SETTINGS, **settings})
    for step in range(count):
        of = [partial(part_loss, model, step, part, parts) for part in range(parts)]
        optimizer.step(lambda: sum(float(loss()) for loss in of) / parts)  # noqa: B023
    return weights(model)


def elastic(port, **given):
    return zo.Elastic(f"127.0.0.1:{port}", key="secret", parts=PARTS, timeout=20, **given)


def lead(port, record, count, at):
    """Leads a training; returns how many processes made each step, and the weights.

    `at` says after which step a process is let go, and how many take part then; steps are slow until they do.
    """
    model, worlds, awaited = make_model(), [], 0
    given = elastic(port, leads=True)
    optimizer = zo.BSZO(model, elastic=given, record=record, check_every=50, **SETTINGS)
    while (step := optimizer.step_index) < count:
        optimizer.step(lambda part: part_loss(model, step, part))
        worlds.append(optimizer.processes.world)
        if len(worlds) in at:
            pipe, awaited = at[len(worlds)]
            pipe.send("go")
        if worlds[-1] < awaited:
            time.sleep(0.1)
        else:
            awaited = 0
    optimizer.processes.close()
    return worlds, weights(model)


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


@pytest.fixture
def start():
    """Returns a function that starts a process which follows, and returns the pipe to it."""
    context, processes = preloaded_context(), []

    def started(*args):
        mine, its = context.Pipe()
        processes.append(context.Process(target=follow, args=(*args, its)))
        processes[-1].start()
        its.close()
        return mine

    with ended(processes):
        yield started


def received(pipe):
    assert pipe.poll(60), "no answer in 60 s"
    return pipe.recv()


@pytest.mark.process
@pytest.mark.parametrize(
    ("joins", "leaves", "count", "ends_by"),
    [
        (20, 40, 60, "kill"),
        pytest.param(100, 200, 300, "leaving", marks=pytest.mark.slow),
    ],
)
def test_a_third_process_joins_and_another_one_goes(start, tmp_path, joins, leaves, count, ends_by):
    port = free_port()
    second, third = start(port, leaves, ends_by), start(port, count, "leaving")
    assert received(second) == received(third) == "here"
    at = {1: (second, 2), joins: (third, 3)}
    worlds, found = lead(port, tmp_path / "run.zo", count, at)
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
    """Leads a training in a thread; gives a function that takes part in it, as it should or otherwise."""
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

    def take_part(key="secret", parts=PARTS, weights=0.0, **settings):
        model = make_model()
        model[2].bias.data[0] += weights
        given = zo.Elastic(f"127.0.0.1:{port}", key=key, parts=parts, timeout=20)
        return model, zo.BSZO(model, elastic=given, **{**SETTINGS, **settings})

    yield take_part
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
    with pytest.raises(ProcessesError, match=sentence):
        leading(**changed)
    model, optimizer = leading()
    optimizer.step(lambda part: part_loss(model, optimizer.step_index, part))
    assert optimizer.processes.world == 2
    optimizer.processes.close()


def test_a_process_whose_closure_fails_leaves_and_the_others_go_on(leading):
    _, optimizer = leading(check_closure=False)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda part: 1 / 0)
    with pytest.raises(ProcessLostError, match="left the training"):
        optimizer.step(lambda part: 1.0)
    model, optimizer = leading(check_closure=False)
    optimizer.step(lambda part: part_loss(model, optimizer.step_index, part))
    optimizer.processes.close()


def test_the_process_that_leads_goes_on_with_its_record(tmp_path):
    for count in (0, 3, 6):
        _, found = lead(free_port(), tmp_path / "run.zo", count, at={})
    assert found == one_process(6)


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


STEPS, WORLD = 4, 3


def trained(processes: Processes, settings: dict, path: str) -> list:
    """Returns the weights after some steps, each process with its part of each batch."""
    model = make_model()
    given = {"group": dist.group.WORLD, "record": path, "check_every": 1, **SETTINGS, **settings}
    optimizer = zo.BSZO(model, **given)
    for step in range(STEPS):
        optimizer.step(lambda: part_loss(model, step, processes.rank, WORLD))  # noqa: B023
    return weights(model)


@pytest.mark.process
@pytest.mark.parametrize(
    "settings", [{"restore": "merged", "noise": "torch"}, {"restore": "streamed"}]
)
def test_parts_of_a_batch_give_the_bits_of_one_process_with_the_mean_and_a_record(
    settings, tmp_path
):
    one, path = one_process(STEPS, WORLD, **settings), tmp_path / "run.zo"
    assert gather_results(WORLD, trained, settings, str(path)) == [one] * WORLD
    model = make_model()
    zo.replay(model, path)
    assert weights(model) == one


def refused(processes: Processes) -> list[str]:
    """Returns why no optimizer can be made where process 1 has another bias, and another learning rate."""
    told = []
    for bias, lr in ((1.0, 1e-2), (0.0, 2e-2)):
        model, differs = make_model(), processes.rank == 1
        model[2].bias.data[1] += bias * differs
        with pytest.raises(ValueError, match="process") as caught:
            zo.MeZO(model, group=dist.group.WORLD, lr=lr if differs else 1e-2)
        told.append(str(caught.value))
    return told


@pytest.mark.process
def test_other_settings_or_weights_are_refused_when_the_optimizer_is_made():
    for of_weights, of_settings in gather_results(2, refused):
        assert "2.bias of process 1 differs" in of_weights
        assert "lr is 0.02, and 0.01 on process 0" in of_settings
