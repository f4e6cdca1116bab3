"""Runs that share what Hydra merged of their groups are as Hydra composes each of them."""

import random
from itertools import product

import pytest
from hydra import compose, initialize_config_dir

from zo import config
from zo.config import command_line, method_code
from zo.config.checks import ConfigError
from zo.config.composition import parse
from zo.config.schema import to_run_config
from zo.optim import from_file

config.register()

SWEEPS = sorted(path.stem for path in (command_line.CONFIG_DIR / "sweep").glob("*.yaml"))
PLAIN = [name for name in SWEEPS if not name.startswith(("compare", "reward"))]


def by_hydra(overrides):
    with initialize_config_dir(str(command_line.CONFIG_DIR), version_base="1.3"):
        return to_run_config(compose("config", overrides=overrides))


def cells_of(params, overrides):
    """Returns every combination of values; what is typed takes the place of what the sweep's file has."""
    found = {}
    for word in [*(f"{key}={values}" for key, values in (params or {}).items()), *overrides]:
        given, key = parse(word), word.partition("=")[0]
        swept = given.sweep_string_iterator() if given.is_sweep_override() else ()
        found[key] = [f"{key}={value}" for value in swept] or [word]
    return [*product(*found.values())]


GRIDS = [
    ["optimizer=hizoo", "steps=10,20"],  # smooth_steps: ${steps}
    ["steps=4,8", "eval_every=${steps}", "out=o/${steps}"],
    ["steps=4,8", "eval_every=2,${steps}", "out=o/\\${steps}"],
    ["model=opt-13b", "task=sst2", "precision=paper", "lr=1e-6"],
    ["sweep=quickstart", "seed=3", "steps=7"],
    ["optimizer=bszo", "optimizer.k=1,4", "optimizer.m=${optimizer.k}", "optimizer.m=4"],
    ["task.data_files.train=a.csv", "checkpoint.keep_best=true,false", "optimizer=bszo_b"],
    ["optimizer=mezo", "adapter=lora,prefix", "lr=1e-3"],
    ["adapter=scales", "model.quantization=int4,int8", "lr=1"],
    ["optimizer=mezo", "model.lr_grid={mezo: [1e-3, 2e-3]}", "lr_index=0,1"],
    ["+model.lr_grid.sgd=[0.1]", "optimizer=sgd", "seed=0,1"],
    ["task.data_files={train: a.csv},{train: b.csv}", "+task.data_files.test=c.csv"],
]


@pytest.mark.parametrize(
    "overrides",
    [
        *GRIDS[:4],
        *(pytest.param(grid, marks=pytest.mark.process) for grid in GRIDS[4:]),
        *(pytest.param([f"sweep={sweep}"], marks=pytest.mark.slow) for sweep in PLAIN),
    ],
)
def test_every_run_of_a_grid_is_as_hydra_composes_it(overrides):
    runs = command_line.runs(overrides, multirun=True)
    of_sweep = overrides[0].startswith("sweep=") and command_line.read(overrides[:1]).sweeper.params
    cells = cells_of(of_sweep, overrides)
    assert len(runs) == len(cells)
    for i in random.Random(0).sample(range(len(runs)), min(len(runs), 4)):
        assert runs[i] == by_hydra(cells[i])


def test_runs_share_nothing_that_can_be_changed():
    first, second = command_line.runs(["optimizer=mezo", "seed=0,1"], multirun=True)
    first.model.lr_grid["mezo"] = []
    first.tracking.group = "changed"
    (again,) = command_line.runs(["optimizer=mezo", "seed=0"])
    for run in (second, again):
        assert (run.model.lr_grid["mezo"] != [], run.tracking.group) == (True, None)


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("lr=range(0.0008,0.0032,0.0008)", [0.0008, 0.0016, 0.0024]),
        ("lr=range(0.0008,0.0024,0.0008)", [0.0008, 0.0016]),  # without its end
        ("lr=range(1e-3,4e-4,-2e-4)", [1e-3, 8e-4, 6e-4]),
        ("seed=range(1,4)", [1, 2, 3]),
        ("seed=sort(range(1,4),reverse=true)", [3, 2, 1]),
    ],
)
def test_a_range_has_the_values_that_one_would_type(typed, values):
    key = typed.partition("=")[0]
    runs = command_line.runs(["optimizer=mezo", typed], multirun=True)
    assert [getattr(run, key) for run in runs] == values


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("raise SystemExit(0)", "own.py cannot be run: SystemExit: 0"),
        ("import nosuch", "own.py cannot be run: ModuleNotFoundError"),
        ("class M: pass", "own.py has no class M that builds on ZOOptimizer"),
    ],
)
def test_a_file_without_a_method_is_named(content, says, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(content)
    with pytest.raises(ValueError, match=says):
        from_file.register(f"{file}:M")


@pytest.mark.parametrize("file", ["my dir/own.py", "x=1/own.py"])
def test_a_path_that_no_method_can_have_is_refused_whole(file):
    with pytest.raises(ConfigError, match="a path with a blank or =") as caught:
        method_code.with_options(f"optimizer={file}:M")
    assert file in str(caught.value)
