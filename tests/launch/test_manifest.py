"""A sweep writes down what it consists of, once, and its tables show what was wanted and which data were read."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from analysis.logs import manifests
from analysis.logs.manifests import cells
from analysis.logs.sources import load
from analysis.report.sweep import method_frame
from analysis.select.cells import fill, notes
from launch import manifest, multirun
from launch.sweep import Sweep
from tests.launch.conftest import changed
from zo.config import ConfigError, command_line
from zo.config.identity import run_id
from zo.differences import in_facet


@pytest.mark.parametrize(
    ("sweep", "variants", "inputs"),
    [
        ("quickstart", 1, 0),
        ("table5_c", 8, 0),
        pytest.param("table12_c", 4, 0, marks=pytest.mark.process),
        pytest.param("table4", 1, 0, marks=pytest.mark.process),
        pytest.param("compare_bf16 stage=tune", None, 0, marks=pytest.mark.process),
        (None, 1, 1),  # typed; its last cell is the untrained model's
    ],
)
def test_a_line_is_that_of_a_run_and_has_the_command_that_makes_it_alone(
    grid, sweep, variants, inputs
):
    every = f"sweep={sweep} hydra.sweeper.stored_runs=null"  # made again
    made = Sweep.of(every.split() if sweep else grid)
    found = made.manifest
    assert [line["run_id"] for line in found] == [run.run_id for run in made.runs]
    for line, run in ((found[0], made.runs[0]), (found[-1], made.runs[-1])):
        program, script, *overrides = shlex.split(line["command"])
        assert (program, script) == ("zo", "train")
        assert [run_id(cfg) for cfg in command_line.runs(overrides)] == [line["run_id"]]
        logged = json.loads(run.cfg.tracking.cell)
        assert logged.items() <= line.items(), "W&B has the line, too"
    different = {json.dumps(line["variant"], sort_keys=True) for line in found}
    assert variants in (None, len(different)), "what else is swept"
    assert list(found[0]["inputs"]) == ["task.data_files.train"] * inputs
    if sweep == "table5_c":
        assert found[0]["variant"] == {"optimizer.k": 1, "optimizer.adaptive_noise": True}


@pytest.mark.parametrize("model", ["opt-13b", "opt-1.3b"])
def test_runs_of_options_with_one_name_are_cells_of_their_own(model):
    """`precision=paper` is called by the precision that the paper has for a model, here bf16 and fp32."""
    made = Sweep.of([f"model={model}", "task=sst2", "precision=paper,bf16,fp32", "lr=1e-6"])
    cells = [[line[k] for k in ("optimizer", "precision", "variant")] for line in made.manifest]
    assert len({json.dumps(cell) for cell in cells}) == len(made.runs) >= 5
    for line in made.manifest:
        (cfg,) = command_line.runs(shlex.split(line["command"])[2:])
        assert run_id(cfg) == line["run_id"]


@pytest.mark.parametrize(
    ("typed", "added"),
    [
        (["lr=1e-4,1e-3", "optimizer.k=3", "seed=1,2"], 1),
        (["task=rotten_tomatoes,sst2", "optimizer=mezo"], 2),
        (["optimizer=zero_shot,mezo"], 0),
        (["steps=0", "seed=1,2"], 0),
        (["lr=1e-4"], 0),
        (["sweep=table5_a"], 0),
        (["task.prompt='{text} A','{text} B'", "optimizer=mezo,bszo"], 2),
        (["adapter=none,lora", "lr=1e-4"], 2),
        (["precision.noise=philox,torch", "lr=1e-4"], 1),
        (["optimizer=bszo", "optimizer.m=null,4"], 1),
        (["optimizer.eps=1e-3,1e-2", "batch_size=4,8"], 1),
    ],
)
def test_typed_runs_have_one_of_the_untrained_model_for_each_task(typed, added):
    sweep, asked = Sweep.of(typed), command_line.read(typed, multirun=True)
    assert len(sweep.asked.cells) == len(asked.cells) + added
    assert {run.kind[2] for run in sweep.runs[len(sweep.runs) - added :]} <= {"zero_shot"}
    for line in sweep.manifest[:1]:
        (cfg,) = command_line.runs(shlex.split(line["command"])[2:])
        assert run_id(cfg) == line["run_id"]
    untrained = [line["variant"] for line in sweep.manifest[len(sweep.runs) - added :]]
    assert all(map(in_facet, {key for variant in untrained for key in variant}))


def test_what_was_typed_beside_a_sweeps_file_is_no_cell_of_the_file():
    plain, other = (
        Sweep.of(["sweep=quickstart", *more]).manifest for more in ((), ("steps=4", "out=x"))
    )
    assert [line["changed"] for line in (plain[0], other[0])] == [[], ["steps"]]
    assert {line["variant"].get("steps") for line in other} == {4}, "also of zero-shot"
    assert other[1]["command"].split()[2:4] == ["sweep=quickstart", "steps=4"]


@pytest.fixture
def data(reviews_csv, tmp_path):
    """A file of reviews, to be changed."""
    return Path(shutil.copy(reviews_csv, tmp_path / "own.csv"))


@pytest.fixture
def own_grid(grid, data):
    return changed(grid, f"task.data_files.train={data}")


def edit(data):
    """Repeats the last row of a file."""
    text = data.read_text()
    data.write_text(text + text.splitlines()[-1] + "\n")


def test_a_cell_is_written_once_and_again_when_its_data_change(own_grid, data, tmp_path):
    grid = own_grid
    out, first = tmp_path / "out", Sweep.of(grid).manifest
    manifest.write(first, out)
    with next((out / "sweeps").iterdir()).open("a") as file:
        file.write('{"torn')
        file.write("\n")
    for _ in range(2):
        manifest.write(first[:2], out)
    (path,) = (out / "sweeps").iterdir()
    assert len(path.read_text().splitlines()) == len(first) + 1
    edit(data)
    edited = Sweep.of(grid).manifest
    assert not any(a["inputs"] == b["inputs"] for a, b in zip(edited, first, strict=True))
    manifest.write(edited, out)
    assert len(path.read_text().splitlines()) == 2 * len(first) + 1
    manifest.write(first, out)  # the old data are back
    assert json.loads(path.read_text().splitlines()[-1])["run_id"] == first[-1]["run_id"]


def test_a_setting_or_a_typed_value_that_comes_back_is_written_again(grid, tmp_path):
    """Else the newest lines would be those of what was tried between."""
    (line, *_) = Sweep.of(grid).manifest
    line |= {"arm": "mezo", "role": "arm", "equivalence_margin": 0.01, "chosen": True, "seed": 1}
    others = line | {"lr": 2 * line["lr"]}, line | {"changed": ["steps"], "variant": {"steps": 9}}
    for n, other in enumerate(others):
        out = tmp_path / str(n)
        for cell in (line, other, line, line):
            manifest.write([cell, cell | {"seed": 2, "run_id": "another"}], out)
        read = cells(manifests.read((out / "sweeps").iterdir()))
        assert len(read) == 6
        assert read["current"].tolist() == [False] * 4 + [True] * 2


def test_an_output_directory_that_cannot_be_written_is_left_to_the_runs(grid, tmp_path):
    (tmp_path / "out").write_text("a file")
    manifest.write(Sweep.of(grid).manifest, tmp_path / "out")


def shown(frames, name):
    cells = fill(frames.cells_of([name]), frames.runs)
    table = method_frame(cells)
    return table[table["method"] != "majority"], " ".join(notes(cells, frames))


@pytest.mark.process
def test_a_typed_multirun_misses_what_was_deleted_and_never_pools_different_data(
    own_grid, data, tmp_path
):
    typed = [*own_grid, "tracking.mode=offline"]
    before = command_line.read(changed(typed, "seed=0"), multirun=True)
    assert multirun.make(before) == 0  # two runs that the next command need not make
    assert multirun.make(command_line.read(typed, multirun=True)) == 0
    frames = load([tmp_path / "out"], tmp_path / "cache")
    name = next(n for n in frames.sweeps if "seed=0,1" in n)
    table, notes = shown(frames, name)
    assert (list(table["method"]), list(table["seeds"])) == (
        ["zero_shot", "mezo", "bszo"],
        [1, 2, 2],
    )
    assert notes == ""
    gone = Sweep.of(typed).runs[1]
    shutil.rmtree(gone.directory)
    table, notes = shown(load([tmp_path / "out"], tmp_path / "cache"), name)
    assert "1 of 5 runs of" in notes
    assert "(1 missing): `zo train" in notes
    assert list(table["n"]) == [1, 1, 2]
    edit(data)
    assert multirun.make(command_line.read(typed, multirun=True)) == 0
    table, notes = shown(load([tmp_path / "out"], tmp_path / "cache"), name)
    assert list(table["n"]) == [1, 2, 2]
    assert "Not drawn: 4 runs" in notes
    assert "made earlier with other task.data_files.train" in notes
    # W&B's logs alone show the same table; they know an older run by the first sweep that made it
    shutil.rmtree(tmp_path / "out" / "sweeps")
    again, notes = shown(load([tmp_path / "out"], tmp_path / "cache"), name)
    assert again["run_ids"].tolist() == table["run_ids"].tolist()
    assert "Not drawn: 1 run under" in notes


def test_a_name_is_that_of_a_typed_sweep_and_not_of_one_with_a_file():
    sweep = Sweep.of(["optimizer=mezo,bszo", "lr=1e-4", "name=short"])
    assert {line["sweep"] for line in sweep.manifest} == {"short"}
    assert {run.cfg.tracking.group for run in sweep.runs} == {"short"}
    assert "name=short" in sweep.manifest[0]["command"]
    for wrong, said in (("sweep=quickstart", "left out"), ("lr=1e-4", "letters")):
        with pytest.raises(ConfigError, match=f"name.*{said}"):
            Sweep.of([wrong, "name=short" if "sweep" in wrong else "name=a/b"])
