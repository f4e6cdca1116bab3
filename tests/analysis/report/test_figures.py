"""The figures' numbers, what they say of gaps, and that the same numbers give the same bytes."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis.logs.frames import Frames, read_frames
from analysis.logs.sources import CACHE
from analysis.paper import printed_numbers
from analysis.report.figures import beside_paper, curves, grids
from analysis.report.figures.command_line import main, sweep_drawings
from analysis.report.figures.drawing import Drawing, page, write
from analysis.report.figures.ranks import rank_plot
from analysis.report.figures.thinning import BINS, note, thin, width
from analysis.report.style import look
from analysis.select import sweep_cells
from analysis.select.cell_runs import fill
from analysis.select.trials import Trials, of_group, of_sweep
from tests.analysis.make_frames import Status, finished, made_frames


def made(sweep: str, status: Status = finished, steps: int = 40) -> tuple[Trials, pd.DataFrame]:
    cells = sweep_cells.cells([sweep], CACHE)
    frames = made_frames(cells, status, steps)
    filled = fill(cells, frames.runs)
    there = of_sweep(sweep, filled, frames.runs, frames.history.one)
    assert there is not None
    return there, filled


def axes_of(drawing: Drawing) -> list[mpl.axes.Axes]:
    with mpl.rc_context():
        figure: Figure = page(drawing)
    return figure.axes


@pytest.fixture(scope="module")
def printed() -> printed_numbers.Paper:
    return printed_numbers.load()


def test_thinning_keeps_every_spike() -> None:
    steps = np.arange(0, 1001)
    loss = np.where(steps > 0, 1.0, np.nan)
    loss[500], loss[700], loss[900] = 50.0, -3.0, np.inf
    rows = pd.DataFrame({"step": steps, "train/loss": loss})
    assert width(1000) == -(-1000 // BINS)
    thinned = thin(rows, "train/loss", width(1000))
    assert len(thinned) <= BINS
    assert (thinned["high"].max(), thinned["low"].min()) == (50.0, -3.0)
    assert (thinned["median"] == 1.0).all()
    assert thinned["n"].sum() == 999  # neither step 0 nor the infinite one
    assert "median of 17 steps" in note(width(1000))
    assert note(1) == "Every step is drawn."
    assert thin(rows, "optim/none", 17).empty


def test_evaluations_count_passes_and_minutes_of_steps() -> None:
    history = pd.DataFrame(
        {
            "step": [0, 1, 2, 3],
            "train/forwards": [np.nan, 2, 4, 6],
            "time/step_s": [np.nan, 30, 30, 60],
            "eval/val_accuracy": [0.5, np.nan, 0.6, 0.7],
        }
    )
    rows = curves.evaluations(history)
    assert list(rows["step"]) == [0, 2, 3]
    assert list(rows["forwards"]) == [0, 4, 6]
    assert list(rows["minutes"]) == [0, 1, 2]


def test_chosen_runs_alone_are_drawn_and_seeds_get_a_mean() -> None:
    there, filled = made("table1", lambda c: "finished" if c["task"] == "sst2" else "missing")
    drawing = curves.accuracy_drawing(there, curves.ACCURACY[0])
    assert drawing is not None
    assert [panel.facet["task"] for panel in drawing.panels] == ["sst2"]
    assert drawing.data.groupby("method")["run_id"].nunique().eq(5).all()
    assert drawing.data.groupby("method")["lr"].nunique().eq(1).all()
    (axes,) = axes_of(drawing)[:1]
    mezo = [line for line in axes.lines if line.get_color() == look("mezo").colour]
    assert len(mezo) == 6  # five seeds and their mean
    assert any("600 of 750 runs of table1 lack" in line for line in drawing.notes), drawing.notes
    assert filled["status"].eq("missing").sum() == 600


def test_figure_1_marks_collapses_and_every_rate() -> None:
    there, _ = made("figure1", lambda c: "collapsed" if c["lr"] == 5e-6 else "finished")
    drawing = grids.loss_by_rate(there)
    assert drawing is not None
    assert len(drawing.panels) == 7  # six methods, and all at their best
    axes = axes_of(drawing)
    crosses = [line for line in axes[0].lines if line.get_marker() == "x"]
    assert len(crosses) == 1
    assert float(np.asarray(crosses[0].get_xdata())[0]) == 20.0
    assert {text.get_text().rstrip(" ←") for text in axes[0].texts} == {
        f"{lr:g}" for lr in (5e-6, 1e-6, 5e-7, 1e-7, 5e-8)
    }
    assert sum("←" in text.get_text() for text in axes[0].texts) == 1


def test_rates_figure_puts_collapses_at_the_foot() -> None:
    there, _ = made("table3_opt_13b", lambda c: "collapsed" if c["lr"] == 5e-6 else "finished")
    drawing = grids.rate_sensitivity(there)
    assert drawing is not None
    axes = axes_of(drawing)[0]
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    collapsed = drawing.data[
        (drawing.data["status"] == "collapsed")
        & (drawing.data["task"] == drawing.panels[0].facet["task"])
    ]
    assert len(crosses) == len(collapsed) > 0
    assert {float(np.asarray(c.get_ydata())[0]) for c in crosses} == {axes.get_ylim()[0]}


def test_ablation_stands_beside_the_paper(printed: printed_numbers.Paper) -> None:
    cells = beside_paper.printed_for("table5_c", printed)
    alone = beside_paper.ablation("table5_c", cells, None)
    assert alone is not None
    assert set(alone.data["source"]) == {"paper"}
    assert "Nothing of this has been measured" in alone.notes[0]
    there, _ = made("table5_c")
    both = beside_paper.ablation("table5_c", cells, there)
    assert both is not None
    measured = both.data[both.data["source"] == "measured"]
    assert set(zip(measured["k"], measured["adaptive_noise"], strict=True)) == {
        (k, adaptive) for k in (1, 2, 4, 8) for adaptive in ("with", "without")
    }
    assert beside_paper.ablation("table1", cells, there) is None


def test_variants_of_one_method_share_a_panel() -> None:
    there, _ = made("table5_a")
    assert [look(method).label for method in there.methods] == ["k = 1", "k = 2", "k = 4", "k = 8"]
    assert [facet["task"] for facet, _ in there.facets()] == ["rte", "sst2"]
    chosen = there.table[there.table["chosen"]]
    assert chosen.groupby(["task", "method"]).size().eq(1).all()


def test_memory_figure_is_the_papers_with_ours(printed: printed_numbers.Paper) -> None:
    there, _ = made("table4")
    drawing = beside_paper.efficiency("table4", beside_paper.printed_for("table4", printed), there)
    assert drawing is not None
    by_source = drawing.data.groupby("source")["value"].count()
    assert dict(by_source) == {"measured": 30, "paper": 30}
    row = drawing.data[
        (drawing.data["source"] == "paper")
        & (drawing.data["model"] == "opt-13b")
        & (drawing.data["method"] == "hizoo")
    ]
    assert sorted(row["value"]) == [58.9, 877.1]


def test_signals_are_bszos(printed: printed_numbers.Paper) -> None:
    there, _ = made("table3_opt_1_3b", lambda c: "finished" if c["task"] == "rte" else "missing")
    drawing = curves.signals_drawing(there)
    assert drawing is not None
    assert set(drawing.data["method"]) == {"bszo", "bszo_b"}
    assert [panel.title for panel in drawing.panels] == [
        f"{label} · RTE" for label in curves.SIGNALS.values()
    ]


def test_ranks_have_a_panel_per_family() -> None:
    ranks = pd.DataFrame(
        {
            "family": ["a", "a", "b"],
            "method": ["mezo", "bszo", "mezo"],
            "average_rank": [2.0, 1.0, 1.5],
            "cells": [9, 9, 4],
            "friedman_p": 0.1,
            "critical_difference": [0.5, 0.5, np.nan],
        }
    )
    drawing = rank_plot(ranks)
    assert drawing is not None
    assert [panel.title for panel in drawing.panels] == ["a: 9 cells", "b: 4 cells"]
    assert len(axes_of(drawing)[0].patches) == 1  # the critical difference
    assert len(axes_of(drawing)[1].patches) == 0
    assert rank_plot(ranks.iloc[:0]) is None


def test_other_configurations_are_drawn_only_where_nothing_else_is(quickstart: Path) -> None:
    frames = read_frames([quickstart])
    filled = fill(sweep_cells.cells(["quickstart"], CACHE), frames.runs)
    there = of_sweep("quickstart", filled, frames.runs, frames.history.one)
    assert there is not None
    assert len(there.table) == 6
    assert "with another configuration" in there.notes[0]
    cells = sweep_cells.cells(["quickstart"], CACHE)
    more = made_frames(cells)
    both = Frames(pd.concat([frames.runs, more.runs]), more.history, ())
    there = of_sweep("quickstart", fill(cells, both.runs), both.runs, more.history.one)
    assert there is not None
    assert len(there.table) == 7
    assert "Not drawn: 6 runs" in there.notes[-1]
    assert of_group("nobody", frames.runs, frames.history.one) is None


def test_same_numbers_same_bytes_and_no_second_drawing(tmp_path: Path) -> None:
    there, _ = made("figure1")
    drawing = grids.loss_by_rate(there)
    assert drawing is not None
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first = write(drawing, tmp_path / "one")
    second = write(drawing, tmp_path / "two")
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name
    before = [path.stat().st_mtime_ns for path in first]
    write(drawing, tmp_path / "one")
    assert [path.stat().st_mtime_ns for path in first][1:] == before[1:]  # the png and the pdf stay
    drawing.data.loc[0, "median"] += 1
    write(drawing, tmp_path / "one")
    assert first[1].stat().st_mtime_ns != before[1]


def test_command(quickstart: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["quickstart", "table4", "--runs", str(quickstart), "--results", str(tmp_path)]) == 0
    )
    names = {path.name for path in (tmp_path / "quickstart").iterdir()}
    assert {"loss_by_rate.png", "lr.pdf", "accuracy_time.csv"} <= names
    assert {path.name for path in (tmp_path / "table4").iterdir()} == {
        f"efficiency.{e}" for e in ("csv", "png", "pdf")
    }
    capsys.readouterr()
    assert main(["table1", "--runs", str(quickstart), "--results", str(tmp_path)]) == 2
    assert "no run of sweep table1" in capsys.readouterr().err
    assert main(["quickstart", "--runs", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_sweep_without_runs_or_printed_numbers_has_no_figure(
    printed: printed_numbers.Paper,
) -> None:
    assert sweep_drawings("table1", None, printed) == []


def test_a_figure_depends_on_the_module_that_draws_its_panels():
    from functools import partial

    from analysis.report.figures import drawing

    def draw(axes, colour):
        raise AssertionError("not drawn here")

    panel = drawing.Panel("", partial(partial(draw), colour="red"))
    assert drawing._source(panel) == Path(__file__)
