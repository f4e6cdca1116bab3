"""A grid composed from one reading of conf/ is what Hydra composes run by run."""

import random

import pytest
from hydra import compose, initialize_config_dir

from zo import config
from zo.config import command_line
from zo.config.schema import to_run_config

config.register()

SWEEPS = sorted(path.stem for path in (command_line.CONFIG_DIR / "sweep").glob("*.yaml"))


def by_hydra(overrides):
    with initialize_config_dir(str(command_line.CONFIG_DIR), version_base="1.3"):
        return to_run_config(compose("config", overrides=overrides))


@pytest.fixture
def no_hydra(monkeypatch):
    """Composing by Hydra fails: what is composed is composed from the plain files."""
    monkeypatch.setattr(command_line, "_hydra", lambda: pytest.fail("composed by Hydra"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["sweep=quickstart"],
        ["sweep=quickstart", "seed=3", "steps=7"],
        ["optimizer=hizoo", "steps=10,20"],  # smooth_steps: ${steps}
        ["optimizer=bszo", "optimizer.k=1,4", "optimizer.m=${optimizer.k}"],
        ["optimizer=bszo", "optimizer.k=1,4", "optimizer.m=${optimizer.k}", "optimizer.m=4"],
        ["model=opt-1.3b,opt-13b", "task=sst2", "precision=paper", "lr=1,2e-6"],
        ["task.data_files.train=a.csv", "checkpoint.keep_best=true,false", "optimizer=bszo_b"],
        ["optimizer=mezo", "adapter=lora,prefix", "lr=1e-3"],
        ["optimizer=icl,linear_probe", "seed=0,1"],
        ["adapter=scales", "model.quantization=int4,int8", "lr=1"],
        ["optimizer=mezo", "model.lr_grid={mezo: [1e-3, 2e-3]}", "lr_index=0,1"],  # by Hydra
        ["+model.lr_grid.sgd=[0.1]", "optimizer=sgd", "seed=0,1"],  # by Hydra
    ],
)
def test_every_run_of_a_grid_is_as_hydra_composes_it(overrides):
    expanded = command_line._expand(overrides, multirun=True)
    runs = command_line.runs(overrides, multirun=True)
    assert runs == [by_hydra(cell) for cell in expanded]


@pytest.mark.slow
@pytest.mark.parametrize("sweep", SWEEPS)
def test_runs_of_every_sweep_are_as_hydra_composes_them(sweep):
    expanded = command_line._expand([f"sweep={sweep}"], multirun=False)
    runs = command_line.runs([f"sweep={sweep}"])
    for i in random.Random(sweep).sample(range(len(runs)), 3):
        assert runs[i] == by_hydra(expanded[i])


@pytest.mark.parametrize("sweep", SWEEPS)
def test_sweeps_are_composed_without_hydra(sweep, no_hydra):
    assert command_line.runs([f"sweep={sweep}"])


def test_runs_share_nothing_that_can_be_changed():
    first, second = command_line.runs(["optimizer=mezo", "seed=0,1"], multirun=True)
    first.model.lr_grid["mezo"] = []
    first.tracking.group = "changed"
    (again,) = command_line.runs(["optimizer=mezo", "seed=0"])
    for run in (second, again):
        assert (run.model.lr_grid["mezo"] != [], run.tracking.group) == (True, None)


def test_a_problem_of_every_run_is_explained_once(monkeypatch):
    asked = []
    explain = command_line._override_problems
    monkeypatch.setattr(command_line, "_override_problems", lambda o: asked.append(o) or explain(o))
    with pytest.raises(config.ConfigError) as error:
        command_line.runs(["seed=0,1,2", "lr=1e-3,1e-4", "optimizer.kk=1"], multirun=True)
    assert [problem.key for problem in error.value.problems] == ["optimizer.kk"]
    assert len(asked) == 1


def test_every_problem_of_a_grid_is_told():
    with pytest.raises(config.ConfigError) as error:
        command_line.runs(["optimizer=bszo", "optimizer.k=0,4", "optimizer.m=3"], multirun=True)
    assert [problem.key for problem in error.value.problems] == ["optimizer.k", "optimizer.m"]
