"""The figures' numbers: what is averaged, what is thinned, what stands beside the paper; and when they are drawn."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import vl_convert

from analysis.logs.frames import Frames
from analysis.paper.names import METHODS, method_label
from analysis.report.figures import curves, drawing
from analysis.report.figures.curves import (
    BINS,
    LOSS,
    Histories,
    mean_over,
    read,
    running_mean,
    thin,
)
from analysis.report.figures.drawing import Figure, line_panels, points, specification, write
from analysis.select.cells import fill, shown
from tests.analysis.make_frames import PAPER_METHODS, expected, made_frames
from zo.lm.baselines import BASELINES
from zo.optim import OPTIMIZERS

TASKS = ("sst2", "rte", "cb", "wic", "trec")


def made(sweep: str, status: Callable[[dict], str]) -> tuple[pd.DataFrame, Histories]:
    lr = [5e-6, 1e-6, 5e-7, 1e-7, 5e-8]
    grid = {"task": TASKS, "seed": range(5)} if sweep == "table1" else {"task": ["sst2"]}
    cells = expected(sweep, optimizer=PAPER_METHODS, lr=lr, **grid)
    frames = made_frames(cells, status)
    rows = shown(fill(cells, frames.runs))
    return rows, read(rows, frames.history)


def lines(frame: pd.DataFrame, shape: str = "line") -> list[pd.DataFrame]:
    """The rows of each series of a shape."""
    return [rows for _, rows in frame[frame["shape"] == shape].groupby("line", sort=False)]


def panels(figure: Figure) -> list[pd.DataFrame]:
    return [rows for _, rows in figure.frame.groupby(["panel", "quantity"], sort=False)]


def test_thinning_keeps_every_spike():
    steps = np.arange(0, 1001)
    loss = np.where(steps > 0, 1.0, np.nan)
    loss[500], loss[700], loss[900] = 50.0, -3.0, np.inf
    thinned = thin(pd.DataFrame({"step": steps, "train/loss": loss}), "train/loss", 17)
    assert len(thinned) <= BINS
    assert (thinned["high"].max(), thinned["low"].min()) == (50.0, -3.0)
    assert (thinned["y"] == 1.0).all()
    assert thinned["n"].sum() == 999  # neither step 0 nor the infinite one


def test_a_training_loss_is_a_running_mean_of_five_pieces_that_leaves_no_value_out():
    steps = np.arange(0, 41)
    loss = np.where(steps % 2, 0.0, 2.0) + np.where((steps > 20) & (steps <= 30), 5.0, 0.0)
    mean = running_mean(pd.DataFrame({"step": steps, LOSS: loss}), LOSS, 10)
    assert mean["step"].tolist() == [5.5, 15.5, 25.5, 35.5]
    assert mean["y"].tolist() == pytest.approx([1 + 5 / 3, 2.25, 2.25, 1 + 5 / 3])
    alone = running_mean(pd.DataFrame({"step": steps, LOSS: loss}), LOSS, 1)
    assert alone["y"].tolist() == loss[1:].tolist()
    assert {*mean.columns} == {"step", "y"}, "no band"


def test_a_mean_is_over_the_seeds_of_the_chosen_rate():
    there = made("table1", lambda c: "finished" if c["task"] == "sst2" else "missing")
    figure = curves.validation(*there, "steps")
    panel, _ = panels(figure)  # accuracy and loss
    assert set(panel["panel"]) == {"SST-2"}
    assert {len(runs.split()) for runs in panel["runs"]} == {5}
    assert panel["method"].nunique() == len(lines(panel))


def test_a_mean_ends_with_the_shortest_run():
    long = pd.DataFrame({"step": [1.0, 2.0, 3.0], "loss": [1.0, 2.0, 3.0]})
    found = mean_over([long, 2 * long.iloc[:2].assign(step=long["step"] / 2)], "step", "loss")
    assert found["loss"].tolist() == [1.5, 3.0]
    assert (found["low"].tolist(), found["high"].tolist()) == ([1.0, 2.0], [2.0, 4.0])


def test_runs_of_different_models_are_never_averaged():
    """Three models under one name, as user runs of `model.path` were: same method, rate and seed count."""
    seeds = expected(optimizer=["bszo"], seed=[0, 1, 2], run_id="run-{seed}")
    frames = made_frames(seeds)
    for paths, averaged in ((["gpt2", "llama-3.2-1b", "qwen3-0.6b"], 1), (["gpt2"] * 3, 3)):
        runs = frames.runs.assign(**{"model.path": paths})
        cells = fill(Frames(runs, frames.history, ()).cells_of(["s"]), runs)
        there = curves.sweep_figures(cells, frames.history)
        drawn = [runs for figure in there for runs in figure.frame["runs"]]
        assert max(len(runs.split()) for runs in drawn) == averaged


def test_figure_1_marks_collapses_and_every_rate():
    there = made("figure1", lambda c: "collapsed" if c["lr"] == 5e-6 else "finished")
    figure = curves.loss_by_rate(*there)
    assert len(panels(figure)) == 7  # six methods, and all at their best
    first = panels(figure)[0]
    (cross,) = lines(first, "cross")
    assert list(cross["x"]) == [20.0]
    ends = [rows["end"].iloc[0] for rows in lines(first)]
    rates = {"5e-06", "1e-06", "5e-07", "1e-07", "5e-08"}
    assert {end.rstrip(" ←") for end in ends} == rates
    assert sum("←" in end for end in ends) == 1


def test_every_method_has_a_colour_and_a_mark_of_its_own():
    """All options of `optimizer` are in the table; what has no steps is a level, told apart by its dashes."""
    assert OPTIMIZERS.keys() | BASELINES.keys() <= set(METHODS)
    looks = [drawing.look(method) for method in METHODS]
    assert len({look.colour for look in looks}) == len(looks)
    trained = [look.mark for look in looks if look.dash == [1, 0]]
    assert len(set(trained)) == len(trained)
    levels = [tuple(look.dash) for look in looks if look.dash != [1, 0]]
    assert len(set(levels)) == len(levels) == 3


def made_lines(methods: list[str], panel: str = "P") -> list[pd.DataFrame]:
    said = {"panel": panel, "quantity": "loss", "axis": "step"}
    found = [points(m, [1, 2], [1.0, 2.0 + i], **said) for i, m in enumerate(methods)]
    return [*found, points("zero_shot", [0], [1.5], shape="level", **said)]


def drawn(series: list[pd.DataFrame]) -> str:
    frame = pd.concat(series, ignore_index=True)
    figure = Figure("f", "T", frame, line_panels(frame), ["A note."])
    return vl_convert.vegalite_to_svg(specification(figure))


def test_methods_keep_their_looks_in_every_panel_and_few_lines_are_named_at_their_ends():
    """Panels share scales: one that lacks a method must not shift the others' colours."""
    text = drawn([*made_lines(["mezo", "bszo"], "A"), *made_lines(["bszo"], "B")])
    for colour, marks in {"#D55E00": 4, "#00326B": 2}.items():
        assert len(re.findall(rf'aria-roledescription="point"[^>]*fill="{colour}"', text)) == marks
    assert [text.count(f">{name}</text>") for name in ("MeZO", "BSZO", "zero-shot")] == [1, 2, 2]
    assert ">A note.</text>" in text


def test_a_text_that_is_moved_off_its_lines_end_has_a_leader_to_it():
    said = {"panel": "P", "quantity": "loss", "axis": "step"}
    close = [points(m, [1, 2], [1.0, y], **said) for m, y in (("mezo", 2.0), ("bszo", 2.001))]
    leader = r'"rule mark" transform="translate\([\d.]+,([\d.]+)\)" x2="([-\d.]+)" y2="([-\d.]+)"'
    found = np.array(re.findall(leader, drawn(close)), float)
    starts, widths, heights = found.T
    assert abs(starts[0] - starts[1]) < 1, "both begin where the lines end"
    assert heights.max() - heights.min() > 5
    assert (widths > 5).all()


def test_a_legend_of_many_lines_shows_the_level_dotted():
    text = drawn(made_lines(["mezo", "mezo_adam", "hizoo", "lozo", "bszo", "bszo_b", "tezo"]))
    symbols = re.findall(r'<path[^>]*stroke-dasharray="2,2"[^>]*>', text)
    assert any('stroke="#000000"' in symbol for symbol in symbols)
    assert text.count(">zero-shot</text>") == text.count(">TeZO</text>") == 1


def test_a_figure_is_drawn_again_only_when_its_data_change(tmp_path):
    def draw(height: float) -> list[Path]:
        frame = points("mezo", [1, 2], [1.0, height], panel="P", quantity="loss", axis="step")
        return write(Figure("f", "T", frame, line_panels(frame)), tmp_path)

    table, svg, png, pdf, html = draw(2.0)
    first = png.read_bytes()
    png.write_bytes(b"kept")
    draw(2.0)
    assert png.read_bytes() == b"kept"
    draw(3.0)
    assert png.read_bytes() not in (b"kept", first)
    assert "3" in table.read_text().splitlines()[-1]
    pdf.unlink()
    draw(3.0)
    assert b"CreationDate" not in pdf.read_bytes()
    assert svg.read_text().startswith("<svg")
    assert not re.findall(r'src="|href="http', html.read_text().partition("<script>")[0])


def test_variants_of_one_method_share_a_panel_and_those_of_several_have_their_own():
    ks = [{"optimizer.k": k, "optimizer.m": k + 1} for k in (8, 2)]
    for methods, panels_, names in (
        (["bszo"], {"SST-2"}, ["k = 2, m = 3", "k = 8, m = 9"]),
        (["mezo", "bszo"], {"k = 2, m = 3", "k = 8, m = 9"}, ["MeZO", "BSZO"]),
    ):
        cells = expected("s", optimizer=methods, variant=ks, task=["sst2"])
        frames = made_frames(cells)
        table = shown(fill(cells, frames.runs))
        assert set(table["panel"]) == panels_
        assert [*table["method"].map(method_label).unique()] == names
