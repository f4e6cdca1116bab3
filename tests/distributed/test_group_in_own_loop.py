"""zo.BSZO(model, group=...): each process with its own part of the batch."""

import hashlib

import pytest
import torch
import torch.distributed as dist

import zo
from tests.support.crowd import gather_results
from zo.distributed.processes import Processes

pytestmark = pytest.mark.process

STEPS, EXAMPLES = 4, 12


def problem():
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    return model, torch.randn(EXAMPLES, 6), torch.randint(3, (EXAMPLES,))


def digest(model):
    found = hashlib.sha256()
    for p in model.parameters():
        found.update(p.detach().numpy().tobytes())
    return found.hexdigest()


def loop(processes: Processes, parts: int, settings: dict) -> tuple:
    """Trains on one part per process, or on the mean of all parts in one process."""
    model, x, y = problem()
    size = EXAMPLES // parts

    def part(rank):
        mine = slice(rank * size, (rank + 1) * size)
        return float(torch.nn.functional.cross_entropy(model(x[mine]), y[mine]))

    if processes.world > 1:
        settings = {**settings, "group": dist.group.WORLD}
        closure = lambda: part(processes.rank)  # noqa: E731
    else:
        closure = lambda: sum(part(rank) for rank in range(parts)) / parts  # noqa: E731
    optimizer = zo.BSZO(model, lr=1e-2, k=2, prior_std=1.0, check_every=1, **settings)
    losses = [optimizer.step(closure) for _ in range(STEPS)]
    return losses, digest(model)


@pytest.mark.parametrize("settings", [{}, {"restore": "streamed", "noise": "philox"}])
def test_processes_with_parts_of_a_batch_have_the_bits_of_one_with_the_mean(settings):
    one = loop(Processes(), 3, settings)
    assert gather_results(3, loop, 3, settings) == [one] * 3
    assert one[0][-1] < one[0][0]


def record(processes: Processes, path: str) -> str:
    model, x, y = problem()
    given = {"group": dist.group.WORLD, "record": path}
    optimizer = zo.MeZO(model, lr=1e-2, **given)
    for _ in range(STEPS):
        optimizer.step(lambda: torch.nn.functional.cross_entropy(model(x), y))
    return digest(model)


def test_process_0_records_the_training(tmp_path):
    first, second = gather_results(2, record, str(tmp_path / "run.zo"))
    model = problem()[0]
    zo.replay(model, tmp_path / "run.zo")
    assert digest(model) == first == second


def unequal(processes: Processes, key: str) -> str:
    model, _, _ = problem()
    settings = {"lr": 1e-2}
    if key == "weights" and processes.rank == 1:
        model[2].bias.data[1] += 1.0
    if key == "lr" and processes.rank == 1:
        settings["lr"] = 2e-2
    try:
        zo.MeZO(model, group=dist.group.WORLD, **settings)
    except ValueError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("key", "sentence"),
    [("lr", "lr is 0.02, and 0.01 on process 0"), ("weights", "2.bias of process 1 differs")],
)
def test_other_settings_or_weights_are_refused_when_the_optimizer_is_made(key, sentence):
    told = gather_results(2, unequal, key)
    assert all(sentence in of for of in told), told
