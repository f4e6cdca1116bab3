"""The figures' numbers: what is averaged, what is thinned, what stands beside the paper; and when they are drawn."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from analysis.logs.frames import Frames, read_frames
from analysis.logs.sources import CACHE
from analysis.paper import printed_numbers
from analysis.report.figures import beside_paper, curves
from analysis.report.figures.drawing import Figure, Panel, Series, write
from analysis.report.figures.histories import BINS, evaluations, read, thin
from analysis.report.figures.overview import overview
from analysis.report.figures.paint import page
from analysis.report.style import RC, look
from analysis.select import sweep_cells
from analysis.select.cell_runs import fill
from analysis.select.sweep_selection import Selection, select
from analysis.select.trials import Trials, of_group, of_sweep
from tests.analysis.make_frames import Status, finished, made_frames


def made(sweep: str, status: Status = finished, steps: int = 40) -> Trials:
    cells = sweep_cells.cells([sweep], CACHE)
    frames = made_frames(cells, status, steps)
    filled = fill(cells, frames.runs)
    there = of_sweep(sweep, filled, frames.runs, frames.history.one)
    assert there is not None
    return there


def lines(panel: Panel, shape: str = "line") -> list[Series]:
    return [series for series in panel.series if series.shape == shape]


@pytest.fixture(scope="module")
def printed() -> printed_numbers.Paper:
    return printed_numbers.load()


def test_thinning_keeps_every_spike() -> None:
    steps = np.arange(0, 1001)
    loss = np.where(steps > 0, 1.0, np.nan)
    loss[500], loss[700], loss[900] = 50.0, -3.0, np.inf
    thinned = thin(pd.DataFrame({"step": steps, "train/loss": loss}), "train/loss", 17)
    assert len(thinned) <= BINS
    assert (thinned["high"].max(), thinned["low"].min()) == (50.0, -3.0)
    assert (thinned["median"] == 1.0).all()
    assert thinned["n"].sum() == 999  # neither step 0 nor the infinite one


def test_evaluations_count_passes_and_minutes_of_steps() -> None:
    history = pd.DataFrame(
        {
            "step": [0, 1, 2, 3],
            "train/forwards": [np.nan, 2, 4, 6],
            "time/step_s": [np.nan, 30, 30, 60],
            "eval/val_accuracy": [0.5, np.nan, 0.6, 0.7],
        }
    )
    rows = evaluations(history)
    assert list(rows["step"]) == [0, 2, 3]
    assert list(rows["forwards"]) == [0, 4, 6]
    assert list(rows["minutes"]) == [0, 1, 2]


def test_a_mean_is_over_the_seeds_of_the_chosen_rate() -> None:
    there = made("table1", lambda c: "finished" if c["task"] == "sst2" else "missing")
    figure = curves.accuracy(there, read(there), "steps")
    assert figure is not None
    (panel,) = figure.panels
    assert panel.facet["task"] == "sst2"
    assert {len(series.runs.split()) for series in lines(panel)} == {5}
    assert len({series.method for series in lines(panel)}) == len(lines(panel))
    assert any("600 of 750 runs of table1 lack" in note for note in figure.notes)


def test_runs_of_different_models_are_never_averaged() -> None:
    """Three models under one name, as user runs of `model.path` were: same method, rate and seed count."""
    cells = sweep_cells.cells(["quickstart"], CACHE)
    one = cells[cells["optimizer"] == "bszo"].head(1)
    parts = []
    for i, path in enumerate(("gpt2", "llama-3.2-1b", "qwen3-0.6b")):
        frames = made_frames(one.assign(run_id=f"run-{path}", seed=i))
        parts.append((frames.runs.assign(group="mine", **{"model.path": path}), frames.history))
    runs = pd.concat([part for part, _ in parts], ignore_index=True)
    histories = {str(part["run_id"].iloc[0]): history for part, history in parts}
    there = of_group("mine", runs, lambda run_id, keys: histories[run_id].one(run_id, keys))
    assert there is not None
    for figure in curves.sweep_figures(there):
        for panel in figure.panels:
            for series in panel.series:
                assert len(series.runs.split()) <= 1, (figure.name, series.words)
    seeds = runs.assign(**{"model.path": "gpt2"})
    there = of_group("mine", seeds, lambda run_id, keys: histories[run_id].one(run_id, keys))
    assert there is not None
    figure = curves.chosen_loss(there, read(there))
    assert figure is not None
    assert [len(series.runs.split()) for series in lines(figure.panels[0])] == [3]


def test_figure_1_marks_collapses_and_every_rate() -> None:
    there = made("figure1", lambda c: "collapsed" if c["lr"] == 5e-6 else "finished")
    figure = curves.loss_by_rate(there, read(there))
    assert figure is not None
    assert len(figure.panels) == 7  # six methods, and all at their best
    (cross,) = lines(figure.panels[0], "cross")
    assert list(cross.x) == [20.0]
    ends = [series.end for series in lines(figure.panels[0])]
    assert {end.rstrip(" ←") for end in ends} == {
        f"{lr:g}" for lr in (5e-6, 1e-6, 5e-7, 1e-7, 5e-8)
    }
    assert sum("←" in end for end in ends) == 1


def test_rates_figure_puts_collapses_at_the_foot() -> None:
    there = made("table3_opt_13b", lambda c: "collapsed" if c["lr"] == 5e-6 else "finished")
    figure = curves.rates(there)
    assert figure is not None
    panel = figure.panels[0]
    crosses = lines(panel, "cross")
    assert crosses
    with mpl.rc_context(RC):
        axes = page(figure).axes[0]
    drawn = [line for line in axes.lines if line.get_marker() == "x"]
    assert len(drawn) == len(crosses)
    assert {float(np.asarray(line.get_ydata())[0]) for line in drawn} == {axes.get_ylim()[0]}


def test_ablation_stands_beside_the_paper(printed: printed_numbers.Paper) -> None:
    alone = beside_paper.ablation("table5_c", printed, None)
    assert alone is not None
    assert all(series.hollow for panel in alone.panels for series in panel.series)
    assert "Nothing of this has been measured" in alone.notes[0]
    both = beside_paper.ablation("table5_c", printed, made("table5_c"))
    assert both is not None
    measured = [s for panel in both.panels for s in panel.series if not s.hollow]
    assert {len(series.x) for series in measured} == {4}  # k = 1, 2, 4, 8
    assert beside_paper.ablation("table1", printed, None) is None


def test_variants_of_one_method_share_a_panel() -> None:
    there = made("table5_a")
    assert [look(method).label for method in there.methods] == ["k = 1", "k = 2", "k = 4", "k = 8"]
    assert [facet["task"] for facet, _ in there.facets()] == ["rte", "sst2"]


def test_memory_figure_is_the_papers_with_ours(printed: printed_numbers.Paper) -> None:
    figure = beside_paper.efficiency("table4", printed, made("table4"))
    assert figure is not None
    bars = [series for panel in figure.panels for series in panel.series]
    assert sum(series.hollow for series in bars) == 30
    assert sum(not series.hollow for series in bars) == 30
    values = [s.y[0] for s in bars if s.words == "HiZOO, OPT-13B, paper"]
    assert sorted(values) == [58.9, 877.1]


def test_signals_are_bszos() -> None:
    there = made("table3_opt_1_3b", lambda c: "finished" if c["task"] == "rte" else "missing")
    figure = curves.signals(there, read(there))
    assert figure is not None
    assert {s.method for panel in figure.panels for s in panel.series} == {"bszo", "bszo_b"}


def test_ranks_have_a_panel_per_family_and_a_bar_where_it_applies() -> None:
    known = {
        "family": ["a", "a", "b"],
        "method": ["mezo", "bszo", "mezo"],
        "average_rank": [2.0, 1.0, 1.5],
    }
    ranks = pd.DataFrame({**known, "cells": [9, 9, 4], "critical_difference": [0.5, 0.5, np.nan]})
    figure = beside_paper.ranks_figure(ranks)
    assert figure is not None
    assert [panel.title for panel in figure.panels] == ["a: 9 cells", "b: 4 cells"]
    assert [len(lines(panel)) for panel in figure.panels] == [1, 0]
    assert beside_paper.ranks_figure(ranks.iloc[:0]) is None


def test_other_configurations_are_drawn_only_where_nothing_else_is(quickstart: Path) -> None:
    frames = read_frames([quickstart])
    cells = sweep_cells.cells(["quickstart"], CACHE)
    there = of_sweep("quickstart", fill(cells, frames.runs), frames.runs, frames.history.one)
    assert there is not None
    assert len(there.table) == 6
    assert "with another configuration" in there.notes[0]
    more = made_frames(cells)
    both = Frames(pd.concat([frames.runs, more.runs]), more.history, ())
    there = of_sweep("quickstart", fill(cells, both.runs), both.runs, more.history.one)
    assert there is not None
    assert len(there.table) == 7
    assert "Not drawn: 6 runs" in there.notes[-1]
    assert of_group("nobody", frames.runs, frames.history.one) is None


@pytest.fixture
def selection(quickstart: Path) -> Selection:
    return select(read_frames([quickstart]), "quickstart", [quickstart])


def test_overview_draws_running_means_and_no_single_steps(selection: Selection) -> None:
    figure = overview(selection)
    loss, accuracy = figure.panels
    logged = selection.history.one("mezo-4", ["train/loss"]).set_index("step")["train/loss"]
    (mezo,) = [s for s in lines(loss) if s.runs == "mezo-4"]
    assert mezo.y[list(mezo.x).index(20)] == pytest.approx(logged.loc[18:21].mean())
    assert len(lines(loss)) == 5  # one line per run that trains
    (cross,) = lines(loss, "cross")
    assert list(cross.x) == [6.0]  # the loss of step 7 is not finite
    (drawn,) = [s for s in lines(accuracy) if s.runs == "mezo-4"]
    np.testing.assert_allclose(drawn.x, [0, 20, 40, 60, 80])
    np.testing.assert_allclose(drawn.y, [50, 60, 75, 70, 75])
    assert drawn.best == 2
    assert [list(s.y) for s in lines(accuracy, "level")] == [[50.0]]
    assert "MeZO 0.0001" in figure.notes[0]


def test_a_collapsing_run_does_not_flatten_the_others(selection: Selection) -> None:
    history = selection.history.of(selection.history.run_ids)
    history.loc[(history["run_id"] == "mezo-1") & (history["step"] > 2), "train/loss"] *= 1e6
    exploded = Selection(
        **{**vars(selection), "history": type(selection.history).of_frame(history)}
    )
    assert overview(exploded).panels[0].limits[1] < 1.5


def test_a_figure_is_drawn_again_only_when_its_data_change(tmp_path: Path) -> None:
    def figure(height: float) -> Figure:
        return Figure(
            "f", "T", [Panel("P", "step", "loss", [Series("mezo", [1, 2], [1.0, height])])]
        )

    table, png, pdf = write(figure(2.0), tmp_path)
    first = png.read_bytes()
    png.write_bytes(b"kept")
    write(figure(2.0), tmp_path)
    assert png.read_bytes() == b"kept"
    write(figure(3.0), tmp_path)
    assert png.read_bytes() not in (b"kept", first)
    assert "3" in table.read_text().splitlines()[-1]
    pdf.unlink()
    write(figure(3.0), tmp_path)
    assert b"CreationDate" not in pdf.read_bytes()
