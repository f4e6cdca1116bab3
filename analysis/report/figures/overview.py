"""The figure beside a sweep's table: training loss over steps, validation accuracy over forward passes."""

import numpy as np
import pandas as pd

from analysis.paper.names import UNTRAINED
from analysis.report.figures.curves import FORWARDS, NATS, STEP
from analysis.report.figures.drawing import Figure, Panel, Series, around
from analysis.report.style import look
from analysis.select.sweep_selection import ZERO_SHOT, Cell, Selection

WINDOWS = 10  # the running mean spans this part of the longest run
FAINT = 0.35  # opacity of the learning rates that were not chosen
COLUMNS = {"train/forwards": "forwards", "train/loss": "loss", "eval/val_accuracy": "accuracy"}


def overview(selection: Selection) -> Figure:
    """Each method at its chosen learning rate, its other rates faint; a collapsed run ends in an x."""
    window = max(1, max(cell.last_step or 0 for cell in selection.cells) // WINDOWS)
    chosen = {cell.run_id for cell in selection.chosen.values()}
    trained = [cell for cell in selection.cells if cell.method not in UNTRAINED]
    losses, accuracies, shown = [], [], []
    for cell in sorted(trained, key=lambda cell: cell.run_id in chosen):  # the chosen ones on top
        weight = 1.0 if cell.run_id in chosen else FAINT
        rows = selection.history.one(cell.run_id, list(COLUMNS)).rename(columns=COLUMNS)
        smooth = smoothed(rows, window)
        losses += _loss(cell, smooth, weight)
        accuracies += _accuracy(cell, rows, weight)
        if weight == 1.0:
            shown.append(smooth["loss"].to_numpy())
    zero = selection.chosen.get(ZERO_SHOT)
    if zero is not None and zero.val_accuracy is not None:
        accuracies.append(Series(ZERO_SHOT, [0.0], [100 * zero.val_accuracy], "zero-shot", "level"))
    heights = np.concatenate(shown or [np.asarray(s.y, float) for s in losses] or [np.array([])])
    panels = [
        Panel(
            f"Training loss, mean over {window} steps" if window > 1 else "Training loss",
            STEP,
            NATS,
            losses,
            ylim=around(heights, share=0.3),
        )
    ]
    n = next((f" (n = {cell.val_n:,d})" for cell in selection.chosen.values()), "")
    panels.append(Panel(f"Validation accuracy{n}", FORWARDS, "validation accuracy (%)", accuracies))
    rates = ", ".join(
        f"{look(m).label} {c.lr:g}"
        for m, c in selection.chosen.items()
        if m not in UNTRAINED and c.lr is not None
    )
    notes = [f"Chosen learning rates: {rates or 'none yet'}; the other rates are faint."]
    if window > 1:
        notes.append(f"Loss: centred running mean over {window} steps; single steps are not drawn.")
    return Figure(
        "loss", f"{selection.name}: training loss and validation accuracy", panels, notes, 2, 2.6
    )


def smoothed(rows: pd.DataFrame, window: int) -> pd.DataFrame:
    """`step` and `loss`, the centred running mean, at the steps whose own loss is finite."""
    finite = rows["loss"].astype(float).where(lambda loss: np.isfinite(loss))
    mean = finite.rolling(window, center=True, min_periods=(window + 1) // 2).mean()
    frame = pd.DataFrame({"step": rows["step"].astype(float), "loss": mean})
    return frame[finite.notna() & mean.notna()]


def _loss(cell: Cell, smooth: pd.DataFrame, weight: float) -> list[Series]:
    words = f"{look(cell.method).label}, lr {cell.lr:g}, run {cell.run_id}"
    series = [
        Series(
            cell.method,
            smooth["step"].to_numpy(),
            smooth["loss"].to_numpy(),
            words,
            weight=weight,
            runs=cell.run_id,
        )
    ]
    if cell.status == "collapsed":
        last = (
            smooth.iloc[-1]
            if len(smooth)
            else {"step": float(cell.collapse_step or 0), "loss": np.inf}
        )
        series.append(
            Series(
                cell.method,
                [last["step"]],
                [last["loss"]],
                f"{words}, collapsed",
                "cross",
                runs=cell.run_id,
            )
        )
    return series if len(smooth) else series[1:]


def _accuracy(cell: Cell, rows: pd.DataFrame, weight: float) -> list[Series]:
    checked = rows[rows["accuracy"].notna()]
    if checked.empty:
        return []
    forwards = checked["forwards"].where(checked["step"] > 0, 0).astype(float).to_numpy()
    best = np.flatnonzero(checked["step"] == cell.best_step).tolist() if weight == 1.0 else []
    words = f"{look(cell.method).label}, lr {cell.lr:g}, run {cell.run_id}"
    y, mark = 100 * checked["accuracy"].to_numpy(float), best[0] if best else None
    return [Series(cell.method, forwards, y, words, weight=weight, best=mark, runs=cell.run_id)]
