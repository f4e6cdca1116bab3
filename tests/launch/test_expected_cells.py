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


@pytest.mark.parametrize("sweep", ["quickstart", "table4", "table5_a", "table5_c"])
def test_cells_are_the_runs_of_the_sweep(sweep: str) -> None:
    found = [cell["run_id"] for cell in expected.expected(sweep)]
    assert found == list(dict.fromkeys(ids([f"sweep={sweep}"])))


@pytest.mark.parametrize(
    "sweep",
    ["quickstart", "table3_mistral_7b", "table4", "table5_a", "table5_c", "study_tiny_5a"],
)
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


def test_parameters_of_the_sweep_that_one_builds_on_vary_too() -> None:
    """study_tiny_5a names k and rates itself, and has its seeds from study_tiny."""
    found = expected.expected("study_tiny_5a")
    assert {cell["seed"] for cell in found} == {0, 1, 2}
    assert all("seed=" in cell["command"] for cell in found)
    assert "precision=" not in found[0]["command"]


def test_a_rate_listed_twice_is_one_cell() -> None:
    """Table 9 prints HiZOO's 1e-6 twice."""
    found = [
        c
        for c in expected.expected("table3_mistral_7b")
        if c["optimizer"] == "hizoo" and c["task"] == "rte"
    ]
    assert [cell["lr"] for cell in found] == [1e-6, 5e-7, 5e-8, 1e-8]


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert expected.main(["quickstart"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 7
    assert {line["sweep"] for line in lines} == {"quickstart"}
    assert expected.main(["nothing"]) == 2
    assert capsys.readouterr().err.startswith("sweep=nothing: must be one of figure1, ")
