"""The loss-curve figure of a sweep of one task: training loss over steps, validation accuracy over passes.

`python -m analysis.report.sweep_tables` writes it beside its tables: loss.{png,pdf} and loss.csv, the numbers behind
them. Each method is drawn at its chosen learning rate, its other learning rates faint; a collapsed run
ends in an x.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from analysis.report.style import RC, look
from analysis.select.sweep_selection import ZERO_SHOT, Cell, Selection

WIDTH, HEIGHT = 7.0, 3.0  # inches: the width of a page's text
WINDOWS = 10  # the running mean spans this part of the longest run
MARKS = 8  # markers along a loss curve
FAINT = 0.35  # opacity of the other learning rates
SINGLE_STEPS = 0.25  # opacity of the single steps of all methods together


def write_figures(selection: Selection, directory: Path) -> list[Path]:
    """Write loss.csv, loss.png and loss.pdf; the same logs give the same bytes."""
    window = smoothing_window(selection)
    curves = loss_curves(selection, window)
    paths = [directory / f"loss.{ending}" for ending in ("csv", "png", "pdf")]
    curves.to_csv(paths[0], index=False, lineterminator="\n", float_format="%.6g")
    with mpl.rc_context(RC):
        figure = loss_figure(selection, curves, window)
        figure.savefig(paths[1], metadata={"Software": None})
        figure.savefig(paths[2], metadata={"Creator": None, "Producer": None, "CreationDate": None})
    return paths


def smoothing_window(selection: Selection) -> int:
    """Steps that the running mean of the training loss spans."""
    return max(1, max(cell.last_step or 0 for cell in selection.cells) // WINDOWS)


def loss_curves(selection: Selection, window: int) -> pd.DataFrame:
    """The numbers behind the figure, one row per run and step.

    `train_loss` in nats as logged, `train_loss_mean` its centred running mean, `forwards` the forward
    passes so far, `val_accuracy` a fraction, only at evaluations.
    """
    chosen = {cell.run_id for cell in selection.chosen.values()}
    frames = []
    for cell in selection.cells:
        rows = selection.history.one(cell.run_id)
        rows = rows.reindex(
            columns=["step", "train/forwards", "train/loss", "eval/val_accuracy"]
        ).set_axis(["step", "forwards", "train_loss", "val_accuracy"], axis=1)
        finite = rows["train_loss"].where(np.isfinite(rows["train_loss"]))
        mean = (
            finite.rolling(window, center=True, min_periods=(window + 1) // 2)
            .mean()
            .where(finite.notna())
        )
        rows.insert(3, "train_loss_mean", mean)
        rows["forwards"] = rows["forwards"].where(rows["step"] > 0, 0).astype("Int64")
        rows.insert(0, "chosen", cell.run_id in chosen)
        rows.insert(0, "run_id", cell.run_id)
        rows.insert(0, "lr", np.nan if cell.method == ZERO_SHOT else cell.lr)
        rows.insert(0, "method", cell.method)
        frames.append(rows)
    return pd.concat(frames, ignore_index=True)


def loss_figure(selection: Selection, curves: pd.DataFrame, window: int) -> Figure:
    """The figure of two panels with one legend."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    left, right = figure.subplots(1, 2)
    chosen = {cell.run_id for cell in selection.chosen.values()}
    trained = [cell for cell in selection.cells if cell.method != ZERO_SHOT]
    for cell in sorted(trained, key=lambda c: c.run_id in chosen):  # the chosen ones on top
        rows = curves[curves["run_id"] == cell.run_id]
        _draw_loss(left, cell, rows, SINGLE_STEPS / len(chosen) if cell.run_id in chosen else None)
        _draw_accuracy(right, cell, rows, cell.run_id in chosen)
    _limit_loss(left, curves)
    _mark_collapses(left, trained, curves)
    averaged = f"\nmean over {window} steps, single ones faint" if window > 1 else ""
    left.set(xlabel="step", ylabel=f"training loss (nats){averaged}")
    right.set(xlabel="forward passes (training)", ylabel=f"validation accuracy (%{_n(selection)})")
    zero_shot = selection.chosen.get(ZERO_SHOT)
    if zero_shot and zero_shot.val_accuracy is not None:
        style = look(ZERO_SHOT)
        level = 100 * zero_shot.val_accuracy
        right.axhline(level, color=style.colour, linestyle=style.line, linewidth=1.2)
    for axes in (left, right):
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    handles = _legend(selection, bool(zero_shot))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4))
    return figure


def _draw_loss(axes: Axes, cell: Cell, rows: pd.DataFrame, raw_opacity: float | None) -> None:
    """The running mean; of a chosen run, one with an opacity for its raw curve, that one too."""
    style, rows = look(cell.method), rows[rows["train_loss"].notna()]
    if raw_opacity is None:
        axes.plot(
            rows["step"], rows["train_loss_mean"], color=style.colour, linewidth=0.8, alpha=FAINT
        )
        return
    axes.plot(
        rows["step"], rows["train_loss"], color=style.colour, linewidth=0.4, alpha=raw_opacity
    )
    axes.plot(
        rows["step"],
        rows["train_loss_mean"],
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markevery=max(1, len(rows) // MARKS),
    )


def _draw_accuracy(axes: Axes, cell: Cell, rows: pd.DataFrame, chosen: bool) -> None:
    style, rows = look(cell.method), rows[rows["val_accuracy"].notna()]
    forwards, percent = rows["forwards"].astype(float), 100 * rows["val_accuracy"]
    if not chosen:
        axes.plot(forwards, percent, color=style.colour, linewidth=0.8, alpha=FAINT)
        return
    axes.plot(forwards, percent, color=style.colour, linestyle=style.line, marker=style.marker)
    best = rows["step"] == cell.best_step
    axes.plot(
        forwards[best],
        percent[best],
        linestyle="",
        marker=style.marker,
        markersize=8,
        color=style.colour,
        markeredgecolor="white",
        markeredgewidth=1.0,
        zorder=4,
    )


def _limit_loss(axes: Axes, curves: pd.DataFrame) -> None:
    """Show the chosen runs' means; single steps and a run on its way to collapse may leave the panel."""
    means = curves.loc[curves["chosen"], "train_loss_mean"].dropna()
    if means.empty:
        means = curves["train_loss_mean"].dropna()
    if not means.empty:
        margin = 0.4 * (means.max() - means.min()) or 0.1
        axes.set_ylim(means.min() - margin, means.max() + margin)


def _mark_collapses(axes: Axes, cells: Sequence[Cell], curves: pd.DataFrame) -> None:
    """An x at the last finite loss of each collapsed run, at the panel's edge if it lies beyond."""
    bottom, top = axes.get_ylim()
    for cell in cells:
        if cell.status != "collapsed":
            continue
        rows = curves[(curves["run_id"] == cell.run_id) & curves["train_loss_mean"].notna()]
        if rows.empty:  # at its first step
            step, height = float(cell.collapse_step or 0), top
        else:
            step = float(rows["step"].iloc[-1])
            height = float(np.clip(rows["train_loss_mean"].iloc[-1], bottom, top))
        axes.plot(
            [step],
            [height],
            marker="x",
            markersize=6,
            markeredgewidth=1.6,
            color=look(cell.method).colour,
            clip_on=False,
            zorder=5,
        )


def _legend(selection: Selection, zero_shot: bool) -> list[Line2D]:
    """One entry per method with its learning rate, then the signs."""
    handles = []
    for method in selection.methods:
        style, cell = look(method), selection.chosen.get(method)
        if method == ZERO_SHOT:
            continue
        label = f"{style.label}, lr {cell.lr:g}" if cell else f"{style.label}, no finished run"
        handles.append(
            Line2D(
                [], [], color=style.colour, linestyle=style.line, marker=style.marker, label=label
            )
        )
    if zero_shot:
        style = look(ZERO_SHOT)
        handles.append(Line2D([], [], color=style.colour, linestyle=style.line, label=style.label))
    grey = "#777777"
    if len(selection.cells) > len(selection.chosen):
        handles.append(Line2D([], [], color=grey, linewidth=0.8, alpha=0.6, label="other lr"))
    handles.append(
        Line2D([], [], color=grey, linestyle="", marker="o", markersize=6, label="best step")
    )
    if any(cell.status == "collapsed" for cell in selection.cells):
        handles.append(Line2D([], [], color=grey, linestyle="", marker="x", label="collapsed"))
    return handles


def _n(selection: Selection) -> str:
    """The number of validation examples, for the axis."""
    cell = next(iter(selection.chosen.values()), None)
    return f", n = {cell.val_n}" if cell else ""
