"""zo.BSZO(model, elastic=..., or group=...): a loop of one's own on several processes, with the bits of one."""

import os
import resource
import signal
import socket
import threading
import time
from functools import partial
from multiprocessing.connection import Client
from typing import Any

import pytest
import torch
import torch.distributed as dist

import zo
from tests.support.crowd import free_port, gather_results, preloaded_context
from zo.distributed.elastic import Lead
from zo.distributed.processes import Processes, ProcessesError, ProcessLostError

EXAMPLES, PARTS = 12, 2
SETTINGS: dict[str, Any] = {"lr": 1e-2, "noise": "philox"}
BSZO = partial(zo.BSZO, k=2, prior_std=1.0)


def make_model():
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def part_loss(model, step, part, parts=PARTS):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(EXAMPLES, 6, generator=generator)[part::parts]
    return torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())


def weights(model):
    return [p.detach().numpy().tobytes() for p in model.parameters()]


def one_process(count, parts=PARTS, method=BSZO, **settings):
    """Returns the weights after steps on the mean of all parts; they are saved after two steps."""
    model = make_model()
    optimizer = method(model, **{"restore": "streamed", **SETTINGS, **settings})
    for step in range(count):
        if step == 2:
            model.state_dict()
        of = [partial(part_loss, model, step, part, parts) for part in range(parts)]
        optimizer.step(lambda: sum(float(loss()) for loss in of) / parts)  # noqa: B023
    return weights(model)


def take_part(port, leads=False, key="secret", parts=PARTS, bias=0.0, **settings):
    """Returns a model and what trains it together with others."""
    model = make_model()
    model[2].bias.data[0] += bias
    elastic = zo.Elastic(f"127.0.0.1:{port}", key=key, parts=parts, leads=leads, timeout=20)
    return model, BSZO(model, elastic=elastic, **{**SETTINGS, **settings})


def make_step(model, optimizer):
    optimizer.step(lambda part: part_loss(model, optimizer.step_index, part))


@pytest.fixture
def training(tmp_path):
    """Leads a training in a thread; gives its port, and a function that ends it and returns model and optimizer."""
    port, stops = free_port(), threading.Event()
    model, optimizer = take_part(port, leads=True, record=tmp_path / "run.zo")

    def train():
        while not stops.wait(0.03):
            make_step(model, optimizer)

    def end():
        stops.set()
        thread.join(10)
        optimizer.processes.close()
        return model, optimizer

    thread = threading.Thread(target=train)
    thread.start()
    yield port, end
    end()


def follow(port, worlds, kill):
    """Takes part until five steps of each number of processes; leaves then, or is killed in the middle of the next."""
    model, optimizer = take_part(port)
    for world in worlds:
        made = 0
        while made < 5:
            make_step(model, optimizer)
            made += optimizer.processes.world == world
    if kill:
        optimizer.step(lambda part: os.kill(os.getpid(), signal.SIGKILL))
    optimizer.processes.close()
    return optimizer.step_index, weights(model)


@pytest.mark.process
def test_processes_join_and_go_and_the_one_that_leads_goes_on_with_its_record(training, tmp_path):
    port, end = training
    with preloaded_context().Pool(2) as pool:
        pool.apply_async(follow, (port, [3], True))
        steps, found = pool.apply_async(follow, (port, [3, 2], False)).get(60)
    assert found == one_process(steps)
    model, optimizer = end()
    assert weights(model) == one_process(optimizer.step_index)
    again, optimizer = take_part(port, leads=True, record=tmp_path / "run.zo")
    make_step(again, optimizer)
    optimizer.processes.close()
    assert optimizer.step_index > steps
    assert weights(again) == one_process(optimizer.step_index)


def test_a_process_that_does_not_fit_or_fails_is_told_so_and_the_training_goes_on(training):
    port, _ = training
    for changed, sentence in (
        ({"lr": 2e-2}, "this process: lr is 0.02, and 0.01 on process 0; give all"),
        ({"parts": 3}, "elastic.parts is 3, and 2 on process 0"),
        ({"key": "guess"}, "elastic.key: not that of the process at 127.0.0.1"),
        ({"bias": 1.0}, "the base weights is"),
    ):
        with pytest.raises(ProcessesError, match=sentence):
            take_part(port, **changed)
    _, optimizer = take_part(port, check_closure=False)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda part: 1 / 0)
    with pytest.raises(ProcessLostError, match="left the training"):
        optimizer.step(lambda part: 1.0)
    model, optimizer = take_part(port, check_closure=False)
    make_step(model, optimizer)
    assert optimizer.processes.world == 2
    optimizer.processes.close()


def test_what_cannot_lead_is_one_sentence():
    with pytest.raises(ValueError, match="must be one of snapshot, streamed"):
        take_part(0, leads=True, restore="merged")
    with pytest.raises(ValueError, match="record: the process that leads needs it"):
        take_part(0, leads=True)
    with pytest.raises(ValueError, match="must be a host and a port, as "):
        zo.Elastic("29400", key="secret")


@pytest.fixture
def lead():
    """A process that leads, and a function that connects to it with the key."""
    elastic = zo.Elastic(f"127.0.0.1:{free_port()}", key="secret", leads=True, timeout=5)
    found = Lead(elastic, {})
    yield found, lambda: Client((elastic.host, elastic.port), authkey=b"secret")
    found.close()


def test_a_client_that_sends_nonsense_or_stops_reading_does_not_hold_up_the_training(lead):
    lead, connect = lead
    lead.open_step(100, lambda steps: bytes(10**8), list)
    for message in (b"no json", b"{}", b'{"steps": -1}', b'{"steps": 0}'):
        client = connect()
        client.send_bytes(message)
        for _ in range(15):
            assert lead.exchange([1.0]) == [[1.0]]
            time.sleep(0.01)
        dropped = message != b'{"steps": 0}'
        assert (lead._newcomers == []) is dropped
    begin = time.monotonic()
    lead.open_step(101, lambda steps: bytes(10**8), list)  # more than a socket holds
    assert time.monotonic() < begin + 2


def test_a_shortage_of_descriptors_closes_the_door_for_as_long_as_it_lasts(lead):
    lead, connect = lead
    client, (_, hard) = socket.socket(), resource.getrlimit(resource.RLIMIT_NOFILE)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        client.connect(lead._server.getsockname())
        time.sleep(0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    client.close()
    greeted = threading.Thread(target=connect, daemon=True)
    greeted.start()
    greeted.join(5)
    assert not greeted.is_alive()


def test_the_key_is_not_printed():
    assert "guess" not in repr(zo.Elastic("127.0.0.1:29400", key="guess"))


STEPS, WORLD = 4, 3


def trained(processes: Processes, settings: dict, path: str) -> tuple:
    """Returns the weights after some steps, each process with its part of each batch, and refusals.

    Process 0 saves the weights after two steps. Process 1 has another bias at first, and then another learning rate.
    """
    told = []
    for bias, lr in ((1.0, 1e-2), (0.0, 2e-2)):
        model, differs = make_model(), processes.rank == 1
        model[2].bias.data[1] += bias * differs
        with pytest.raises(ValueError, match="process") as caught:
            zo.MeZO(model, group=dist.group.WORLD, lr=lr if differs else 1e-2)
        told.append(str(caught.value))
    model = make_model()
    given = {"group": dist.group.WORLD, "record": path, "check_every": 1, **SETTINGS, **settings}
    optimizer = given.pop("method", BSZO)(model, **given)
    for step in range(STEPS):
        if step == 2 and processes.rank == 0:
            model.state_dict()
        optimizer.step(lambda: part_loss(model, step, processes.rank, WORLD))  # noqa: B023
    return weights(model), *told


@pytest.mark.process
@pytest.mark.parametrize(
    "settings",
    [
        {"restore": "merged", "noise": "torch"},
        {"restore": "streamed"},
        {"restore": "factors", "method": partial(zo.optimizer, "lozo")},
    ],
    ids=lambda of: of["restore"],
)
def test_parts_of_a_batch_give_the_bits_of_one_process_with_the_mean_and_a_record(
    settings, tmp_path
):
    one, path = one_process(STEPS, WORLD, **settings), tmp_path / "run.zo"
    for several, of_weights, of_settings in gather_results(WORLD, trained, settings, str(path)):
        assert several == one
        assert "2.bias of process 1 differs" in of_weights
        assert "lr is 0.02, and 0.01 on process 0" in of_settings
    model = make_model()
    zo.replay(model, path)
    assert weights(model) == one
