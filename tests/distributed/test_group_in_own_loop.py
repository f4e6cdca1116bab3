"""zo.BSZO(model, group=...): each process with its own part of the batch."""

import pytest
import torch.distributed as dist

import zo
from tests.distributed.test_elastic import SETTINGS, make_model, one_process, part_loss, weights
from tests.support.crowd import gather_results
from zo.distributed.processes import Processes

pytestmark = pytest.mark.process

STEPS, WORLD = 4, 3


def trained(processes: Processes, settings: dict, path: str) -> list:
    """Returns the weights after some steps, each process with its part of each batch."""
    model = make_model()
    given = {"group": dist.group.WORLD, "record": path, "check_every": 1, **SETTINGS, **settings}
    optimizer = zo.BSZO(model, **given)
    for step in range(STEPS):
        optimizer.step(lambda: part_loss(model, step, processes.rank, WORLD))  # noqa: B023
    return weights(model)


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


def test_other_settings_or_weights_are_refused_when_the_optimizer_is_made():
    for of_weights, of_settings in gather_results(2, refused):
        assert "2.bias of process 1 differs" in of_weights
        assert "lr is 0.02, and 0.01 on process 0" in of_settings
