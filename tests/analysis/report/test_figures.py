"""The figures' numbers: what is averaged, what is thinned, what stands beside the paper; and when they are drawn."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import vl_convert

from analysis.logs.frames import Frames
from analysis.paper.names import PAPER_METHODS
from analysis.report.figures import curves, vega
from analysis.report.figures.drawing import Figure, Panel, Series
from analysis.report.figures.histories import BINS, mean_over, read, thin
from analysis.report.figures.vega import write
from analysis.select.cell_runs import fill
from analysis.select.trials import Trials, of_name
from tests.analysis.make_frames import expected, made_frames

TASKS = ("sst2", "rte", "cb", "wic", "trec")


def made(sweep: str, status: Callable[[dict], str]) -> Trials:
    lr = [5e-6, 1e-6, 5e-7, 1e-7, 5e-8]
    grid = {"task": TASKS, "seed": range(5)} if sweep == "table1" else {"task": ["sst2"]}
    cells = expected(sweep, optimizer=PAPER_METHODS, lr=lr, **grid)
    frames = made_frames(cells, status)
    filled = fill(cells, frames.runs)
    return of_name(sweep, filled, frames)


def lines(panel: Panel, shape: str = "line") -> list[Series]:
    return [series for series in panel.series if series.shape == shape]


def test_thinning_keeps_every_spike() -> None:
    steps = np.arange(0, 1001)
    loss = np.where(steps > 0, 1.0, np.nan)
    loss[500], loss[700], loss[900] = 50.0, -3.0, np.inf
    thinned = thin(pd.DataFrame({"step": steps, "train/loss": loss}), "train/loss", 17)
    assert len(thinned) <= BINS
    assert (thinned["high"].max(), thinned["low"].min()) == (50.0, -3.0)
    assert (thinned["median"] == 1.0).all()
    assert thinned["n"].sum() == 999  # neither step 0 nor the infinite one


def test_a_mean_is_over_the_seeds_of_the_chosen_rate() -> None:
    there = made("table1", lambda c: "finished" if c["task"] == "sst2" else "missing")
    figure = curves.validation(there, read(there), "steps")
    panel, _ = figure.panels  # accuracy and loss
    assert panel.facet["task"] == "sst2"
    assert {len(series.runs.split()) for series in lines(panel)} == {5}
    assert len({series.method for series in lines(panel)}) == len(lines(panel))
    assert any("600 of 750 runs of table1 lack" in note for note in figure.notes)


def test_a_mean_ends_with_the_shortest_run() -> None:
    long = pd.DataFrame({"step": [1.0, 2.0, 3.0], "loss": [1.0, 2.0, 3.0]})
    found = mean_over([long, 2 * long.iloc[:2].assign(step=long["step"] / 2)], "step", "loss")
    assert found["loss"].tolist() == [1.5, 3.0]
    assert (found["low"].tolist(), found["high"].tolist()) == ([1.0, 2.0], [2.0, 4.0])


def test_runs_of_different_models_are_never_averaged() -> None:
    """Three models under one name, as user runs of `model.path` were: same method, rate and seed count."""
    seeds = expected("mine", optimizer=["bszo"], seed=[0, 1, 2], run_id="run-{seed}")
    frames = made_frames(seeds)
    for paths, averaged in ((["gpt2", "llama-3.2-1b", "qwen3-0.6b"], 1), (["gpt2"] * 3, 3)):
        runs = frames.runs.assign(**{"model.path": paths})
        there = of_name("mine", seeds.iloc[:0], Frames(runs, frames.history, ()))
        drawn = [s for f in curves.sweep_figures(there) for p in f.panels for s in lines(p)]
        assert max(len(series.runs.split()) for series in drawn) == averaged


def test_figure_1_marks_collapses_and_every_rate() -> None:
    there = made("figure1", lambda c: "collapsed" if c["lr"] == 5e-6 else "finished")
    figure = curves.loss_by_rate(there, read(there))
    assert len(figure.panels) == 7  # six methods, and all at their best
    (cross,) = lines(figure.panels[0], "cross")
    assert list(cross.x) == [20.0]
    ends = [series.end for series in lines(figure.panels[0])]
    rates = {"5e-06", "1e-06", "5e-07", "1e-07", "5e-08"}
    assert {end.rstrip(" ←") for end in ends} == rates
    assert sum("←" in end for end in ends) == 1


def test_methods_keep_their_looks_in_every_panel_on_paper_and_on_the_page() -> None:
    """Panels share scales: one that lacks a method must not shift the others' colours."""
    rows = {float(i): name for i, name in enumerate("abcdefgh")}
    both = [Series(m, [1, 2], [1.0, 2.0]) for m in ("mezo", "bszo")]
    alone = Panel(
        "P", "step", "", [Series("bszo", [1], [i], shape="points") for i in rows], yticks=rows
    )
    figure = Figure("f", "T", [alone, Panel("P", "step", "loss", both)], ["A note."])
    paper = vl_convert.vegalite_to_svg(vega.on_paper(figure))
    page = vl_convert.vegalite_to_svg(vega.on_page(alone))
    with_legend = {"#D55E00": 3 + len(rows), "#00326B": 3}  # marks of BSZO and MeZO
    assert {colour: paper.count(f'fill="{colour}"') for colour in with_legend} == with_legend
    assert page.count('fill="var(--m-bszo)"') >= len(rows)
    for text in (*rows.values(), "MeZO", "BSZO", "A note."):
        assert f">{text}</text>" in paper
    assert all(f">{text}</text>" in page for text in rows.values())


def test_a_figure_is_drawn_again_only_when_its_data_change(tmp_path: Path) -> None:
    def draw(height: float) -> list[Path]:
        panel = Panel("P", "step", "loss", [Series("mezo", [1, 2], [1.0, height])])
        return write(Figure("f", "T", [panel]), tmp_path)

    table, png, pdf = draw(2.0)
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
