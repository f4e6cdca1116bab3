"""The figure beside a sweep's table: training loss over steps, validation accuracy over forward passes."""

from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import UNTRAINED, ZERO_SHOT
from analysis.report.figures.curves import FORWARDS, NATS, STEP
from analysis.report.figures.drawing import Figure, Panel, Series, around
from analysis.report.figures.histories import LOSS
from analysis.report.style import look
from analysis.select.evaluations import EVALUATED, evaluations
from analysis.select.trials import Trials

WINDOWS = 10  # the running mean spans this part of the longest run
FAINT = 0.35  # opacity of the learning rates that were not chosen


def overview(trials: Trials) -> Figure:
    """Each method at its chosen learning rate, its other rates faint; a collapsed run ends in an x."""
    table = trials.table
    longest = table["made_steps"].max()
    window = max(1, int(longest) // WINDOWS) if longest == longest else 1
    chosen = table[table["chosen"]]
    losses: list[Series] = []
    accuracies: list[Series] = []
    shown = []
    trained = table[~table["method"].isin(UNTRAINED)].sort_values("chosen", kind="stable")
    for run in trained.to_dict("records"):  # the chosen ones on top
        rows = trials.history(run["run_id"], [LOSS, *EVALUATED])
        words = f"{look(run['method']).label}, lr {run['lr']:g}, run {run['run_id']}"
        looks = {"weight": 1.0 if run["chosen"] else FAINT, "runs": run["run_id"]}
        smooth = smoothed(rows, window)
        losses += _loss(run, smooth, words, looks)
        accuracies += _accuracy(run, rows, words, looks)
        if run["chosen"]:
            shown.append(smooth["loss"].to_numpy())
    for zero in chosen.loc[chosen["method"] == ZERO_SHOT, "val_accuracy"]:
        accuracies.append(Series(ZERO_SHOT, [0.0], [100 * zero], "zero-shot", "level"))
    heights = np.concatenate(shown or [np.asarray(s.y, float) for s in losses] or [np.array([])])
    over = f", mean over {window} steps" if window > 1 else ""
    n = f" (n = {int(chosen['val_n'].iloc[0]):,d})" if len(chosen) else ""
    view = around(heights, share=0.3)
    panels = [
        Panel(f"Training loss{over}", STEP, NATS, losses, ylim=view),
        Panel(f"Validation accuracy{n}", FORWARDS, "validation accuracy (%)", accuracies),
    ]
    best = chosen[~chosen["method"].isin(UNTRAINED)]
    pairs = zip(best["method"], best["lr"], strict=True)
    rates = ", ".join(f"{look(method).label} {lr:g}" for method, lr in pairs)
    notes = [f"Chosen learning rates: {rates or 'none yet'}; the other rates are faint."]
    if window > 1:
        notes.append(f"Loss: centred running mean over {window} steps; single steps are not drawn.")
    title = f"{trials.sweep}: training loss and validation accuracy"
    return Figure("loss", title, panels, notes, 2, 2.6)


def smoothed(rows: pd.DataFrame, window: int) -> pd.DataFrame:
    """`step` and `loss`, the centred running mean, at the steps whose own loss is finite."""
    finite = rows[LOSS].astype(float).where(lambda loss: np.isfinite(loss))
    mean = finite.rolling(window, center=True, min_periods=(window + 1) // 2).mean()
    frame = pd.DataFrame({"step": rows["step"].astype(float), "loss": mean})
    return frame[finite.notna() & mean.notna()]


def _loss(run: Any, smooth: pd.DataFrame, words: str, looks: dict[str, Any]) -> list[Series]:
    steps, loss = smooth["step"].to_numpy(), smooth["loss"].to_numpy()
    line = [Series(run["method"], steps, loss, words, **looks)]
    if run["status"] != "collapsed":
        return line
    x, y = steps[-1:], loss[-1:]
    if not len(smooth):
        x, y = np.nan_to_num([run["collapse_step"]]), np.array([np.inf])
    gone = f"{words}, collapsed"
    return [*line[: len(smooth)], Series(run["method"], x, y, gone, "cross", runs=run["run_id"])]


def _accuracy(run: Any, rows: pd.DataFrame, words: str, looks: dict[str, Any]) -> list[Series]:
    checked = evaluations(rows)
    if checked.empty:
        return []
    best = np.flatnonzero(checked["step"] == run["best_step"]).tolist() if run["chosen"] else []
    forwards, y = checked["forwards"].to_numpy(), 100 * checked["accuracy"].to_numpy()
    mark = best[0] if best else None
    return [Series(run["method"], forwards, y, words, best=mark, **looks)]
