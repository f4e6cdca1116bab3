import csv
import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from analysis.logs.frames import Frames
from analysis.logs.history import History
from analysis.paper.names import uncounted
from analysis.report.command import main
from analysis.report.figures.curves import AXES, read, sweep_figures, validation
from analysis.report.sweep import grid_frame, method_frame, method_table
from analysis.report.table import Table, markdown, show
from analysis.select.cells import fill, shown
from tests.analysis.make_frames import expected, made_frames
from tests.analysis.make_logs import config, history, write_run


def make(logs: Path, results: Path, *more: str) -> Path:
    asked = ["tables", "quickstart", "--runs", str(logs), "--results", str(results)]
    assert main([*asked, *more]) == 0
    return results / "quickstart"


@pytest.fixture(scope="module")
def made(quickstart, tmp_path_factory):
    """The directory of the miniature sweep's tables and figures, and what was printed of them."""
    at, said = tmp_path_factory.mktemp("made"), io.StringIO()
    with redirect_stdout(said):
        directory = make(quickstart, at / "results", "--cache", str(at / "cache"))
    return directory, said.getvalue()


def records(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_values_by_hand(made):
    """zero-shot gets examples 1-10 right, mezo 1-17, bszo 1-16: discordant 7 and 6, all one way."""
    zero, mezo, bszo = records(made[0] / "table.csv")
    assert {zero[key] for key in ("lr", "gain_points", "p_mcnemar")} == {""}
    words = {"method": "mezo", "best_step": "20", "val_accuracy": "0.75", "val_n": "20"}
    words |= {"test_accuracy": "0.85", "step_ms": "50", "forwards_per_step": "2"}
    assert words.items() <= mezo.items()
    assert (float(mezo["lr"]), float(mezo["gain_points"])) == (1e-4, 35.0)
    assert float(mezo["p_mcnemar"]) == 2 / 2**7
    # Wilson, 17 of 20, z = 1.95996: (0.85 + z^2/40 -+ z sqrt(0.1275/20 + z^2/1600)) / (1 + z^2/20)
    assert float(mezo["test_low"]) == pytest.approx(0.63958, abs=1e-5)
    assert float(mezo["test_high"]) == pytest.approx(0.94763, abs=1e-5)
    assert (bszo["run_ids"], float(bszo["gain_points"])) == ("bszo-4", 30.0)
    assert float(bszo["p_mcnemar"]) == 2 / 2**6
    assert (mezo["forwards_to_best"], bszo["forwards_to_best"]) == ("40", "120")


def test_unfinished_runs_are_marked(logs, tmp_path):
    """hizoo has only an unfinished run, lozo has collapsed, mezo lacks one learning rate."""
    running = history(3, [0.5, 0.6])
    write_run(logs, "hizoo-4", config("hizoo", 1e-4), running, {})
    gone = {"run/status": "collapsed", "run/collapse_step": 3}
    write_run(logs, "lozo-4", config("lozo", 1e-4), running[:4], gone)
    write_run(logs, "mezo-6", config("mezo", 1e-6), history(2, [0.5, 0.5]), {})
    write_run(logs, "bszo-6", config("bszo", 1e-6), [], {})
    directory = make(logs, tmp_path)
    page = (directory / "table.md").read_text()
    assert "| HiZOO |" + 5 * " – |" in page
    assert "| LOZO |" + 5 * r" \* |" in page
    assert "| MeZO | 0.0001ᵃ |" in page
    assert "ᵃ chosen without the runs that have not finished" in page
    assert "From 10 runs of quickstart" in page
    grid = (directory / "grid.md").read_text()
    assert "| HiZOO | 0.0001 | – | – | – | – stopped at step 10 |" in grid
    assert "| LOZO | 0.0001 | \\* | \\* | \\* | \\* collapsed at step 3 |" in grid
    assert "| – stopped before its first step |" in grid
    found = {row["method"]: row["status"] for row in records(directory / "table.csv")}
    assert (found["hizoo"], found["lozo"]) == ("unfinished", "collapsed")
    assert r"0.0001\textsuperscript{a}" in (directory / "table.tex").read_text()


def test_several_settings_and_seeds_are_rows_of_one_table():
    grid = expected(task=["rte", "sst2"], optimizer=["zero_shot", "mezo"], seed=[0, 1, 2])
    grid.loc[grid["optimizer"] == "zero_shot", "steps"] = 0
    lost = grid[(grid["task"] == "sst2") & (grid["seed"] > 0)].to_dict("records")
    frames = made_frames(grid, lambda cell: "collapsed" if cell in lost else "finished")
    frames.runs["best/test_accuracy"] = 0.75 + 0.004 * frames.runs["seed"]
    cells = fill(grid, frames.runs)
    frame = method_frame(cells)
    assert list(frame["method"]) == ["zero_shot", "mezo"] * 2
    assert list(frame["n"]) == [1, 3, 1, 1]
    mezo = frame.iloc[1]  # accuracies 0.75, 0.754, 0.758
    assert (mezo["test_accuracy"], mezo["test_std"]) == pytest.approx((0.754, 0.004))
    assert pd.isna(mezo["test_low"])
    table = method_table(cells, frame, frames)
    assert [cell.text + cell.tail for cell in table.frame.iloc[1]][:6] == [
        *("MeZO", "RTE", "0.0001", "40"),
        *("60.00 ± 0.00", "75.40 ± 0.40"),
    ]
    assert [cell.text for cell in table.frame["n"]] == ["1 of 1", "3 of 3", "1 of 1", "1 of 3"]
    assert [cell.text for cell in table.frame["collapsed"]] == ["0", "0", "0", "2"]


def test_many_files_are_named_by_their_folder_and_first_figure(made):
    directory, said = made
    files, first, page = said.splitlines()[-3:]
    found = [path for path in directory.parent.rglob("*") if path.is_file()]
    assert files == f"{len(found)} files are in {directory}."
    assert Path(first.partition(": ")[2]).read_bytes().startswith(b"\x89PNG")
    assert page.endswith(": make report")


def test_where_leaves_runs_out(quickstart, tmp_path, capsys):
    directory = make(quickstart, tmp_path, "--where", "lr=1e-4")
    assert [row["method"] for row in records(directory / "table.csv")] == ["mezo", "bszo"]
    capsys.readouterr()
    asked = ["tables", "quickstart", "--runs", str(quickstart), "--where", "optimiser.k=2"]
    assert main(asked) == 2
    said = "error: --where optimiser.k=2: wanted is key=value, with a configuration key\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    ("asked", "says"),
    [([], "{}: no runs in it; --runs names others"),
     (["quickstar"], "there is no run of quickstar (did you mean quickstart?); there are runs of no sweep")],
)  # fmt: skip
def test_an_empty_directory_and_a_mistyped_sweep_are_said(asked, says, tmp_path, capsys):
    results = ["--results", str(tmp_path / "results")]
    assert main(["tables", *asked, "--runs", str(tmp_path), *results]) == 2
    assert capsys.readouterr() == ("", f"error: {says.format(tmp_path)}\n")


@pytest.mark.parametrize(
    "last", [["It was", "All in all it was"], ["", "a" * 90 + " b", "a" * 90 + " c"]]
)
def test_long_prompts_are_shown_from_where_they_differ(last):
    """In rows of methods, of the majority and of the grid; the second ones differ in their 91st character."""
    begin = "Read the review below and say whether its author liked the film. " * 6
    prompts = [{"task.prompt": f"{begin}{{text}} {end}"} for end in last]
    grid = expected(optimizer=["mezo"], variant=prompts).assign(command="zo train -m lr=1e-4")
    grid["run_id"] = [f"run-{i}" for i in grid.index]
    frames = made_frames(grid)
    cells = fill(grid, frames.runs)
    for rows in (method_frame(cells), grid_frame(cells)):
        shown_ = rows["variant"].unique()
        assert len(shown_) == len(last)
        assert all(len(text) < 190 and "task.prompt = … " in text for text in shown_)
    made = method_table(cells, method_frame(cells), frames).frame
    assert len(made) == 2 * len(last)


def test_a_prompt_with_a_line_break_stays_in_its_row():
    made = Table("t", ["prompt", "n"], [["{text}\nIt is", "1"]], caption=["a\r\nb"])
    assert "| {text}\\nIt is | 1 |\n\na\\r\\nb\n" in markdown(made)


def test_a_tasks_own_measure_has_a_table_and_a_broken_sweep_leaves_the_others(
    logs, tmp_path, capsys
):
    """A completion's runs have no accuracy; the other sweep logs predictions that its accuracy contradicts.

    The status is that of what was asked for: 0 while something could be made.
    """
    texts = expected("texts", optimizer=["zero_shot", "mezo", "bszo"], lr=[1e-4, 1e-3])
    texts.loc[texts["optimizer"] == "zero_shot", ["steps", "lr"]] = 0, 0.0
    frames = made_frames(texts.drop_duplicates(["optimizer", "lr"]))
    frames.runs[["best/test_predictions", "test/labels"]] = ""
    names = {f"best/{split}_accuracy": f"best/{split}_rouge_l" for split in ("val", "test")}
    both = expected("broken", optimizer=["zero_shot", "mezo"], lr=[1e-3])
    both.loc[both["optimizer"] == "zero_shot", ["steps", "lr"]] = 0, 0.0
    broken = made_frames(both).runs.assign(**{"best/test_accuracy": 0.123})
    runs = pd.concat([frames.runs.rename(columns=names), broken], ignore_index=True)
    runs.to_parquet(tmp_path / "runs.parquet")
    asked = ["tables", "--runs", str(tmp_path / "runs.parquet"), "--results", str(tmp_path / "r")]
    assert main(asked) == 0
    assert "not shown: " in (said := capsys.readouterr().err)
    assert "logs a test accuracy of 0.123" in said
    assert main([asked[0], "broken", *asked[1:]]) == 2
    page = (tmp_path / "r" / "texts" / "table.md").read_text()
    assert "| val. rouge l %, n=500 | test rouge l %, n=400 |" in page
    assert "| 40 | 70.0 | 70." in page
    assert not (tmp_path / "r" / "tables").exists(), "no table of the paper has runs"


def test_a_methods_best_setting_is_marked_and_tested_against_that_of_mezo():
    """Of ε = 0.01 and 0.1 the second is better on validation; MyMethod gains 2, 3 and 4 points there."""
    variants = [{"optimizer.eps": 0.01}, {"optimizer.eps": 0.1}]
    grid = expected(optimizer=["mezo", "MyMethod"], seed=[0, 1, 2], variant=variants)
    grid["run_id"] = grid["run_id"].str.replace(" ", "")
    frames = made_frames(grid)
    mine = (grid["optimizer"] == "MyMethod").to_numpy()
    better = (grid["variant"] == json.dumps(variants[1])).to_numpy()
    frames.runs["best/val_accuracy"] = 0.6 + 0.1 * better
    frames.runs["best/test_accuracy"] = 0.7 + mine * (0.02 + 0.01 * grid["seed"].to_numpy())
    cells = fill(grid, frames.runs)
    frame = method_frame(cells)
    assert list(frame["best_setting"]) == [False, False, True, True]
    p = 2 * stats.t.sf(0.03 / (0.01 / 3**0.5), 2)
    assert list(frame["p_mezo"].isna()) == [True, False, True, False]
    assert list(frame["p_mezo"].dropna()) == pytest.approx([p, p])
    names = [cell.text for cell in method_table(cells, frame, frames).frame["method"]]
    assert names == ["MeZO", "MyMethod", "→ MeZO", "→ MyMethod"]
    last = fill(grid, frames.runs.iloc[:-1])
    assert method_frame(last)["p_mezo"].isna().all(), "a run has not ended"


def test_seeds_that_were_never_started_are_expected_like_those_that_were_killed():
    grid = expected(optimizer=["mezo", "MyMethod"], lr=[1e-4, 1e-3], seed=[0, 1])
    grid["run_id"] = grid["run_id"].str.replace(" ", "")
    rows = []
    for became in ("missing", "unfinished"):

        def status(cell, became=became):
            return "finished" if cell["optimizer"] == "mezo" or cell["seed"] == 0 else became

        frame = method_frame(fill(grid, made_frames(grid, status).runs)).set_index("method")
        rows.append(frame.loc["MyMethod", ["n", "seeds", "grid", "lacking"]].to_list())
        assert frame.loc["MyMethod", ["test_low", "p_mezo"]].isna().all()
    assert rows == [[1, 2, 4, 2]] * 2


def test_a_record_without_predictions_has_no_mcnemar_and_no_runs_have_no_figures():
    grid = expected(optimizer=["zero_shot", "mezo"])
    frames = made_frames(grid)
    frames.runs["best/test_predictions"] = None
    assert method_frame(fill(grid, frames.runs))["p_mcnemar"].isna().all()
    cells = fill(grid, frames.runs.iloc[:0])
    assert sweep_figures(cells, frames.history) == []


@pytest.mark.parametrize("digests", [("a", "a"), ("a", "b")])
def test_runs_of_a_group_are_one_row_only_if_they_read_the_same(digests):
    runs = made_frames(expected(seed=[0, 1])).runs.assign(group="g")
    runs["provenance.inputs"] = [json.dumps({"task.path": of}) for of in digests]
    runs["started"] = ["2026-01-01T00:00:00", "2026-01-02T00:00:00"]
    cells = Frames(runs, History({}), ()).cells_of(["g"])
    assert list(cells["seed"]) == ([0, 1] if digests == ("a", "a") else [1])


def test_a_narrow_terminal_drops_whole_columns_and_names_them(capsys):
    table = Table("t", ["method", "test accuracy", "passes"], [["MeZO", "14.25 ± 0.12", "1,234"]])
    show(table, Console(width=20))
    narrow = capsys.readouterr().out
    assert "14.25 ± 0.12" in narrow
    assert "1,234" not in narrow
    assert "No room for: passes." in narrow
    show(table, Console(width=60))
    assert "1,234" in capsys.readouterr().out


def test_a_typed_sweeps_table_has_the_largest_classs_share():
    grid = expected(optimizer=["mezo", "bszo"])
    frames = made_frames(grid)
    for command, last in (("sweep=s", ("BSZO", "60.5")), ("lr=1e-4", ("majority", "50.0"))):
        cells = grid.assign(command=f"python train.py {command}")
        cells = fill(cells, frames.runs)
        made = method_table(cells, method_frame(cells), frames).frame
        assert len(made) == 2 + (last[0] == "majority")
        assert tuple(cell.text for cell in made[["method", "test %, n=400"]].iloc[-1]) == last


def test_passes_of_backpropagation_are_said_to_be_forward_passes_alone():
    """In the table's cells and below the figure over forward passes, and nowhere else."""
    grid = expected(optimizer=["mezo", "adam"])
    frames = made_frames(grid)
    cells = fill(grid, frames.runs)
    (note,) = uncounted(["mezo", "adam"])
    made = method_table(cells, method_frame(cells), frames).frame
    for column in ("passes per step", "passes to best"):
        notes = {m.text: c.notes for m, c in zip(made["method"], made[column], strict=True)}
        assert notes == {"MeZO": (), "Adam": (note,)}
    rows = shown(cells)
    read_ = read(rows, frames.history)
    below = {name: f"{note}." in validation(rows, read_, name).notes for name in AXES}
    assert below == {"steps": False, "forwards": True, "time": False}
