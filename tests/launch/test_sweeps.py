"""Sweeps: each asks for the runs of its table, on the paper's learning rates; the plan counts and names them."""

import json
import shlex
from functools import cache
from pathlib import Path

import pytest
import yaml

from launch import expected
from launch.sweep import Sweep
from zo import config
from zo.config import command_line
from zo.config.identity import run_id

CONF = Path(__file__).resolve().parents[2] / "conf"

# Sweep: cells, different runs, precision, where the loss is computed.
SWEEPS = {
    "quickstart": (9, 7, "fp32", "float32"),
    "table1": (750, 750, "fp32", "float32"),
    "table3_opt_1_3b": (180, 180, "fp32", "float32"),
    "table3_mistral_7b": (150, 144, "fp16", "float32"),  # Table 9 lists one learning rate twice
    "table3_opt_13b": (180, 180, "bf16", "model"),
    "table4": (15, 15, None, None),
    "table4_fast": (18, 18, None, None),
    "table4_factors": (3, 3, None, None),
    "table5_a": (40, 40, "fp32", "float32"),
    "table5_b": (40, 40, "fp32", "float32"),
    "table5_c": (40, 40, "bf16", "model"),
    "table5_d": (60, 60, "bf16", "model"),
    "table12_c": (40, 40, "fp32", "float32"),
    "figure1": (30, 30, "bf16", "model"),
    "study_tiny": (315, 273, None, "model"),  # zero-shot is one run per precision
    "quickstart_more": (1, 1, "fp32", "float32"),
    "study_tiny_more": (6, 6, "fp32", "model"),
    "study_tiny_eps_more": (3, 3, "bf16", "model"),
    "study_tiny_roundings": (864, 864, None, None),
    "study_tiny_5a": (36, 36, "fp32", "model"),
    "study_tiny_5b": (36, 36, "fp32", "model"),
    "study_tiny_5c": (144, 144, "bf16", "model"),
    "study_tiny_eps": (60, 60, "bf16", "model"),
    "study_smollm2": (315, 273, None, "model"),
    "study_smollm2_cpu": (12, 9, "fp32", "float32"),
    "study_smollm2_5a": (36, 36, "fp32", "model"),
    "study_smollm2_5b": (36, 36, "fp32", "model"),
    "study_smollm2_5c": (144, 144, "bf16", "model"),
    "study_smollm2_eps": (60, 60, "bf16", "model"),
}

TIMED = ("table4", "table4_fast", "table4_factors")

DECADES = [1e-4, 1e-5, 1e-6, 1e-7, 1e-8]
FROM_1E_4 = [1e-4, 5e-5, 1e-5, 5e-6, 1e-6]
FROM_1E_5 = [1e-5, 5e-6, 1e-6, 5e-7, 1e-7]
FROM_5E_6 = [5e-6, 1e-6, 5e-7, 1e-7, 5e-8]
FROM_1E_6 = [1e-6, 5e-7, 1e-7, 5e-8, 1e-8]
FROM_5E_7 = [5e-7, 1e-7, 5e-8, 1e-8, 5e-9]
METHODS = ("mezo", "mezo_adam", "hizoo", "lozo", "bszo", "bszo_b")
PAPER_GRIDS = {
    "roberta-large": [DECADES] * 6,  # Table 7
    "opt-1.3b": [FROM_1E_6, FROM_1E_4, FROM_1E_5, FROM_1E_6, FROM_1E_5, FROM_1E_5],  # Table 8
    "mistral-7b": [FROM_5E_7, None, [1e-6, 5e-7, 1e-6, 5e-8, 1e-8], FROM_5E_7, FROM_1E_6, FROM_1E_6],  # Table 9
    "opt-13b": [FROM_5E_6, FROM_1E_4, FROM_1E_5, FROM_5E_6, FROM_5E_6, FROM_1E_5],  # Table 10
}  # fmt: skip
"""The grids of METHODS, as printed."""

pytestmark = pytest.mark.xdist_group("sweeps")  # one worker composes each sweep once

config.register()


@cache
def planned(sweep):
    """The runs and the count of cells of a sweep, composed from the plain files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_line, "_hydra", lambda: pytest.fail("composed by Hydra"))
        found = Sweep.of([f"sweep={sweep}"])
    assert found.name == sweep
    return found.runs, found.cells


def ids(sweep):
    return {run.run_id for run in planned(sweep)[0]}


LARGE = ("smollm2", "roundings", "table1", "table3_mistral_7b", "table3_opt_1_3b")


@pytest.mark.parametrize(
    "sweep",
    [
        pytest.param(sweep, marks=[pytest.mark.process] * any(part in sweep for part in LARGE))
        for sweep in SWEEPS
    ],
)
def test_a_sweep_is_its_table_and_those_of_the_paper_follow_its_protocol(sweep):
    cells, runs, precision, loss = SWEEPS[sweep]
    found, cell_count = planned(sweep)
    assert (cell_count, len(found)) == (cells, runs)
    if loss is not None:
        assert {r.cfg.precision.loss for r in found} == {loss}
    if precision is not None:
        assert {r.cfg.precision.name for r in found} == {precision}
    papers = sweep.startswith(("table", "figure")) and sweep not in TIMED
    for cfg in (r.cfg for r in found if papers):
        assert (cfg.steps, cfg.batch_size, cfg.eval_every, cfg.patience) == (20_000, 16, 500, 8)
        assert cfg.optimizer.eps == 1e-4
        assert cfg.precision.restore == "merged"  # the bits of subtract, the paper's


@pytest.mark.parametrize("model", PAPER_GRIDS)
def test_the_grids_are_those_of_tables_7_to_10(model):
    data = yaml.safe_load((CONF / "model" / f"{model}.yaml").read_text())
    printed = zip(METHODS, PAPER_GRIDS[model], strict=True)
    assert data["lr_grid"] == {method: grid for method, grid in printed if grid}


@pytest.mark.process
def test_cells_that_two_tables_share_are_one_run():
    assert ids("figure1") <= ids("table3_opt_13b")
    assert len(ids("table5_d") & ids("table3_opt_13b")) == 30  # with adaptive noise
    assert len(ids("table5_b") & ids("table3_opt_1_3b")) == 10  # k = 2
    assert not ids("table5_a") & ids("table5_b")


@pytest.mark.parametrize("sweep", TIMED)
def test_table_4_takes_each_model_in_the_precision_of_the_paper(sweep):
    runs, _ = planned(sweep)
    pairs = {(r.cfg.model.name, r.cfg.precision.name, r.cfg.precision.dtype) for r in runs}
    assert pairs == {
        ("opt-1.3b", "fp32", "float32"),
        ("mistral-7b", "fp16", "float16"),
        ("opt-13b", "bf16", "bfloat16"),
    }
    assert {r.cfg.model.weights for r in runs} == {"random"}
    assert {(r.cfg.task.name, r.cfg.task.path) for r in runs} == {("phrases", "csv")}  # no hub


def ids_of(overrides):
    return [run_id(run) for run in command_line.runs(overrides)]


@pytest.mark.parametrize("sweep", ["quickstart", "table5_c"])
def test_cells_are_the_runs_of_the_sweep_with_a_command_that_runs_each_alone(sweep):
    found = expected.expected(sweep)
    assert [cell["run_id"] for cell in found] == list(dict.fromkeys(ids_of([f"sweep={sweep}"])))
    for cell in (found[0], found[-1]):
        program, script, *overrides = shlex.split(cell["command"])
        assert (program, script) == ("python", "train.py")
        assert ids_of(overrides) == [cell["run_id"]]
    variants = {json.dumps(cell["variant"], sort_keys=True) for cell in found}
    assert len(variants) == (8 if sweep == "table5_c" else 1), "what else is swept"
    if sweep == "table5_c":
        assert found[0]["variant"] == {"optimizer.k": 1, "optimizer.adaptive_noise": True}
