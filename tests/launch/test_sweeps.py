"""Sweeps: each asks for the runs of its table; the plan counts and names them."""

from contextlib import suppress
from functools import cache

import pytest

from launch.sweep import Sweep
from zo import config
from zo.config import command_line
from zo.config.arms import NotChosenError

# Cells, different runs, precision, where the loss is computed.
PAPER = {
    "table1": (750, 750, "fp32", "float32"),
    "table3_opt_1_3b": (180, 180, "fp32", "float32"),
    "table3_mistral_7b": (150, 144, "fp16", "float32"),  # Table 9 lists one learning rate twice
    "table3_opt_13b": (180, 180, "bf16", "model"),
    "table5_a": (40, 40, "fp32", "float32"),
    "table5_b": (40, 40, "fp32", "float32"),
    "table5_c": (40, 40, "bf16", "model"),
    "table5_d": (60, 60, "bf16", "model"),
    "table12_c": (40, 40, "fp32", "float32"),
    "figure1": (30, 30, "bf16", "model"),
}

SWEEPS = sorted(path.stem for path in (command_line.CONFIG_DIR / "sweep").glob("*.yaml"))

config.register()


@cache
def planned(sweep):
    """The runs and the count of cells of a sweep."""
    found = Sweep.of([f"sweep={sweep}"])
    assert found.name == sweep
    return found.runs, len(found.asked.cells)


def ids(sweep):
    return {run.run_id for run in planned(sweep)[0]}


LARGE = ("smollm2", "table1", "table3", "compare", "table4_fast")


@pytest.mark.parametrize(
    "sweep",
    [
        pytest.param(sweep, marks=[pytest.mark.process] * any(part in sweep for part in LARGE))
        for sweep in SWEEPS
    ],
)
def test_every_sweep_composes_and_those_of_the_paper_are_its_tables(sweep):
    if sweep.startswith("compare"):
        for stage in command_line.stages(sweep):
            with suppress(NotChosenError):  # until its tuning runs are there
                made = Sweep.of([f"sweep={sweep}", *stage.typed.split()[1:]])
                assert len({line["arm"] for line in made.manifest}) > 2
        return
    found, cells = planned(sweep)
    for cfg in (run.cfg for run in found if sweep in PAPER):
        assert (cells, len(found), cfg.precision.name, cfg.precision.loss) == PAPER[sweep]
        assert (cfg.steps, cfg.batch_size, cfg.eval_every, cfg.patience) == (20_000, 16, 500, 8)
        assert cfg.optimizer.eps == 1e-4
        assert cfg.precision.restore == "merged"  # the bits of subtract, the paper's


@pytest.mark.process
def test_cells_that_two_tables_share_are_one_run():
    assert ids("figure1") <= ids("table3_opt_13b")
    assert len(ids("table5_d") & ids("table3_opt_13b")) == 30  # with adaptive noise
    assert len(ids("table5_b") & ids("table3_opt_1_3b")) == 10  # k = 2
    assert not ids("table5_a") & ids("table5_b")


@pytest.mark.parametrize(
    ("sweep", "count"),
    [
        ("table4", 15),
        pytest.param("table4_fast", 18, marks=pytest.mark.process),
        ("table4_factors", 3),
    ],
)
def test_table_4_takes_each_model_in_the_precision_of_the_paper(sweep, count):
    runs, _ = planned(sweep)
    assert len(runs) == count
    pairs = {(r.cfg.model.name, r.cfg.precision.name, r.cfg.precision.dtype) for r in runs}
    assert pairs == {
        ("opt-1.3b", "fp32", "float32"),
        ("mistral-7b", "fp16", "float16"),
        ("opt-13b", "bf16", "bfloat16"),
    }
    assert {r.cfg.model.weights for r in runs} == {"random"}
    assert {(r.cfg.task.name, r.cfg.task.path) for r in runs} == {("phrases", "csv")}  # no hub
