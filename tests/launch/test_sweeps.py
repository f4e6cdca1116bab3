"""Sweeps: each asks for the runs of its table, on the paper's learning rates, and the plan counts them."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml

from launch.sweep import Sweep
from zo import config

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
    "study_smollm2_roundings": (864, 864, None, None),
    "study_smollm2_5a": (36, 36, "fp32", "model"),
    "study_smollm2_5b": (36, 36, "fp32", "model"),
    "study_smollm2_5c": (144, 144, "bf16", "model"),
    "study_smollm2_eps": (60, 60, "bf16", "model"),
}

TIMED = ("table4", "table4_fast", "table4_factors")
STUDY = tuple(sweep for sweep in SWEEPS if sweep.startswith("study_"))

DECADES = [1e-4, 1e-5, 1e-6, 1e-7, 1e-8]
FROM_1E_4 = [1e-4, 5e-5, 1e-5, 5e-6, 1e-6]
FROM_1E_5 = [1e-5, 5e-6, 1e-6, 5e-7, 1e-7]
FROM_5E_6 = [5e-6, 1e-6, 5e-7, 1e-7, 5e-8]
FROM_1E_6 = [1e-6, 5e-7, 1e-7, 5e-8, 1e-8]
FROM_5E_7 = [5e-7, 1e-7, 5e-8, 1e-8, 5e-9]
METHODS = ("mezo", "mezo_adam", "hizoo", "lozo", "bszo", "bszo_b")
PAPER_GRIDS = {
    "roberta-large": dict.fromkeys(METHODS, DECADES),  # Table 7
    "opt-1.3b": dict(  # Table 8
        zip(
            METHODS, (FROM_1E_6, FROM_1E_4, FROM_1E_5, FROM_1E_6, FROM_1E_5, FROM_1E_5), strict=True
        )
    ),
    "mistral-7b": {  # Table 9
        "mezo": FROM_5E_7,
        "hizoo": [1e-6, 5e-7, 1e-6, 5e-8, 1e-8],  # as printed
        "lozo": FROM_5E_7,
        "bszo": FROM_1E_6,
        "bszo_b": FROM_1E_6,
    },
    "opt-13b": dict(  # Table 10
        zip(
            METHODS, (FROM_5E_6, FROM_1E_4, FROM_1E_5, FROM_5E_6, FROM_5E_6, FROM_1E_5), strict=True
        )
    ),
}

config.register()


@cache
def planned(sweep):
    found = Sweep.of([f"sweep={sweep}"])
    assert found.name == sweep
    return found.runs, found.cells


def ids(sweep):
    return {run.run_id for run in planned(sweep)[0]}


def test_every_committed_sweep_is_counted_here():
    assert {p.stem for p in (CONF / "sweep").glob("*.yaml")} == set(SWEEPS)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_sweep_is_its_table(sweep):
    cells, runs, precision, loss = SWEEPS[sweep]
    found, cell_count = planned(sweep)
    assert (cell_count, len(found)) == (cells, runs)
    if precision is None and loss is not None:
        assert {r.cfg.precision.loss for r in found} == {loss}
    if precision is not None:
        assert {(r.cfg.precision.name, r.cfg.precision.loss) for r in found} == {(precision, loss)}


@pytest.mark.parametrize("model", PAPER_GRIDS)
def test_the_grids_are_those_of_tables_7_to_10(model):
    data = yaml.safe_load((CONF / "model" / f"{model}.yaml").read_text())
    assert data["lr_grid"] == PAPER_GRIDS[model]


def test_every_paper_sweep_follows_the_protocol():
    for sweep in set(SWEEPS) - {"quickstart", "quickstart_more", *TIMED, *STUDY}:
        for run in planned(sweep)[0]:
            cfg = run.cfg
            assert (cfg.steps, cfg.batch_size, cfg.eval_every, cfg.patience) == (20_000, 16, 500, 8)
            assert cfg.optimizer.eps == 1e-4
            assert cfg.precision.restore == "merged"  # the bits of subtract, the paper's


def test_table_4_times_the_papers_passes_over_the_weights():
    hows = {
        sweep: {(r.cfg.precision.restore, r.cfg.precision.noise) for r in planned(sweep)[0]}
        for sweep in TIMED
    }
    assert hows == {
        "table4": {("subtract", "torch")},
        "table4_fast": {("streamed", "philox")},
        "table4_factors": {("factors", "philox")},
    }


def test_table_1_has_five_seeds_of_every_cell():
    runs, _ = planned("table1")
    counts = Counter((r.cfg.optimizer.name, r.cfg.task.name, r.cfg.lr) for r in runs)
    assert set(counts.values()) == {5}
    assert {r.cfg.lr for r in runs if r.cfg.optimizer.name == "hizoo"} == set(DECADES)


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


def test_the_study_of_smollm2_is_the_small_one_with_a_larger_model():
    """Same sweeps but for the model, its learning rates and the number of steps."""
    for path in sorted((CONF / "sweep").glob("study_smollm2*.yaml")):
        if not path.with_name(path.name.replace("smollm2", "tiny")).exists():
            continue  # one of its own
        other, given = (
            yaml.safe_load(path.with_name(path.name.replace("smollm2", size)).read_text())
            for size in ("tiny", "smollm2")
        )
        params = [cfg["hydra"]["sweeper"]["params"] for cfg in (other, given)]
        models = [one.pop("model", None) for one in params]
        assert models in (["reviews-tiny", "smollm2-135m"], [None, None])
        assert params[0] == params[1]
        for key in ("optimizer", "patience"):
            assert other.get(key) == given.get(key)
        merged = {"restore": "merged"}  # the default that reviews-tiny does not have
        assert merged | (other.get("precision") or {}) == merged | (given.get("precision") or {})


def test_measurements_are_m_equal_to_k_in_table_5_a():
    assert {(r.cfg.optimizer.k, r.cfg.optimizer.m) for r in planned("table5_a")[0]} == {
        (k, k) for k in (1, 2, 4, 8)
    }
