"""The cells that other programs are told: ids of the runs that the commands beside them would make."""

import json
import shlex

import pytest

from launch import expected
from zo import config
from zo.config import command_line
from zo.config.identity import run_id

config.register()


def ids(overrides: list[str]) -> list[str]:
    return [run_id(run) for run in command_line.runs(overrides)]


@pytest.mark.parametrize("sweep", ["quickstart", "table5_c"])
def test_cells_are_the_runs_of_the_sweep_with_a_command_that_runs_each_alone(sweep: str) -> None:
    found = expected.expected(sweep)
    assert [cell["run_id"] for cell in found] == list(dict.fromkeys(ids([f"sweep={sweep}"])))
    for cell in (found[0], found[-1]):
        program, script, *overrides = shlex.split(cell["command"])
        assert (program, script) == ("python", "train.py")
        assert ids(overrides) == [cell["run_id"]]
    variants = {json.dumps(cell["variant"], sort_keys=True) for cell in found}
    assert len(variants) == (8 if sweep == "table5_c" else 1), "what else is swept"
    if sweep == "table5_c":
        assert found[0]["variant"] == {"optimizer.k": 1, "optimizer.adaptive_noise": True}
