from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis.logs.frames import read_frames
from analysis.logs.history import History
from analysis.report.figures import loss_curves, loss_figure, smoothing_window, write_figures
from analysis.report.style import look
from analysis.select.sweep_selection import Selection, select


@pytest.fixture
def selection(quickstart: Path) -> Selection:
    return select(read_frames([quickstart]), "quickstart", [quickstart])


def drawn(selection: Selection) -> Figure:
    return loss_figure(selection, loss_curves(selection, 4), 4)


def test_curves_are_the_logs_and_their_mean(selection: Selection) -> None:
    assert smoothing_window(selection) == 4
    curves = loss_curves(selection, 5).set_index(["run_id", "step"])
    logged = selection.history.of(selection.history.run_ids).set_index(["run_id", "step"])
    mezo, raw = curves.loc["mezo-4"], logged.loc["mezo-4"]
    assert list(mezo["train_loss"].dropna()) == list(raw["train/loss"].dropna())
    assert mezo.loc[20, "train_loss_mean"] == pytest.approx(raw.loc[18:22, "train/loss"].mean())
    assert mezo.loc[1, "train_loss_mean"] == pytest.approx(raw.loc[1:3, "train/loss"].mean())
    assert list(mezo["forwards"]) == list(range(0, 82, 2))
    assert bool(mezo["chosen"].all())
    assert not curves.loc["mezo-5", "chosen"].any()


def test_right_panel_shows_what_was_chosen(selection: Selection) -> None:
    left, right = drawn(selection).axes
    lines = {(line.get_color(), line.get_linestyle()): line for line in right.lines}
    mezo = lines[look("mezo").colour, "-"]
    np.testing.assert_allclose(mezo.get_xdata(), [0, 20, 40, 60, 80])
    np.testing.assert_allclose(mezo.get_ydata(), [50, 60, 75, 70, 75])
    (level,) = [line for line in right.lines if line.get_color() == look("zero_shot").colour]
    assert list(np.asarray(level.get_ydata(), float)) == [50.0, 50.0]
    assert left.get_ylabel().startswith("training loss (nats)")
    assert right.get_ylabel() == "validation accuracy (%, n = 20)"
    assert (left.get_xlabel(), right.get_xlabel()) == ("step", "forward passes (training)")


def test_collapse_is_marked_at_the_last_finite_loss(selection: Selection) -> None:
    left = drawn(selection).axes[0]
    (cross,) = [line for line in left.lines if line.get_marker() == "x"]
    assert list(np.asarray(cross.get_xdata(), float)) == [6.0]  # step 7 is not finite
    assert cross.get_color() == look("mezo").colour
    bottom, top = left.get_ylim()
    assert bottom <= float(np.asarray(cross.get_ydata(), float)[0]) <= top


def test_exploding_loss_does_not_flatten_the_others(selection: Selection) -> None:
    history = selection.history.of(selection.history.run_ids)
    history.loc[(history["run_id"] == "mezo-1") & (history["step"] > 2), "train/loss"] *= 1e6
    exploded = Selection(**{**vars(selection), "history": History.of_frame(history)})
    assert drawn(exploded).axes[0].get_ylim()[1] < 1.5


def test_nothing_finished_still_draws(selection: Selection) -> None:
    figure = drawn(Selection(**{**vars(selection), "chosen": {}}))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:2] == ["MeZO, no finished run", "BSZO, no finished run"]


def test_figure_and_its_numbers_are_written(selection: Selection, tmp_path: Path) -> None:
    write_figures(selection, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loss.csv", "loss.pdf", "loss.png"]
    frame = pd.read_csv(tmp_path / "loss.csv")
    assert len(frame) == 1 + 4 * 41 + 8
    assert b"CreationDate" not in (tmp_path / "loss.pdf").read_bytes()
