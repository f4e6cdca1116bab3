"""zo.BSZO(model, group=...): a loop of one's own on several processes, with the bits of one."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import zo
from tests.support.crowd import gather_results
from zo.distributed.processes import Processes

EXAMPLES, STEPS, WORLD = 12, 4, 3
SETTINGS: dict[str, Any] = {"lr": 1e-2, "noise": "philox"}
BSZO = partial(zo.BSZO, k=2, prior_std=1.0)


def make_model():
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def part_loss(model, step, part):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(EXAMPLES, 6, generator=generator)[part::WORLD]
    return torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())


def weights(model):
    return [p.detach().numpy().tobytes() for p in model.parameters()]


def one_process(method=BSZO, **settings):
    """Returns the weights after steps on the mean of all parts; they are saved after two steps."""
    model = make_model()
    optimizer = method(model, **{**SETTINGS, **settings})
    for step in range(STEPS):
        if step == 2:
            model.state_dict()
        of = [partial(part_loss, model, step, part) for part in range(WORLD)]
        optimizer.step(lambda: sum(float(loss()) for loss in of) / WORLD)  # noqa: B023
    return weights(model)


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
        optimizer.step(lambda: part_loss(model, step, processes.rank))  # noqa: B023
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
    one, path = one_process(**settings), tmp_path / "run.zo"
    for several, of_weights, of_settings in gather_results(WORLD, trained, settings, str(path)):
        assert several == one
        assert "2.bias of process 1 differs" in of_weights
        assert "lr is 0.02, and 0.01 on process 0" in of_settings
    model = make_model()
    zo.replay(model, path)
    assert weights(model) == one
