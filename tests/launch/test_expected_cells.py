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
    return [run_id(r) for r in command_line.runs(overrides)]


@pytest.mark.parametrize("sweep", ["quickstart", "table5_c"])
def test_cells_are_the_runs_of_the_sweep(sweep: str) -> None:
    found = [cell["run_id"] for cell in expected.expected(sweep)]
    assert found == list(dict.fromkeys(ids([f"sweep={sweep}"])))


@pytest.mark.parametrize("sweep", ["quickstart", "table4", "table5_c"])
def test_command_runs_its_cell_alone(sweep: str) -> None:
    found = expected.expected(sweep)
    for cell in (found[0], found[len(found) // 2], found[-1]):
        program, script, *overrides = shlex.split(cell["command"])
        assert (program, script) == ("python", "train.py")
        assert ids(overrides) == [cell["run_id"]]


def test_variants_are_what_else_is_swept() -> None:
    found = expected.expected("table5_c")
    variants = {json.dumps(cell["variant"], sort_keys=True) for cell in found}
    assert len(variants) == 8
    assert found[0]["variant"] == {"optimizer.k": 1, "optimizer.adaptive_noise": True}
    assert {json.dumps(cell["variant"]) for cell in expected.expected("table4")} == {"{}"}
