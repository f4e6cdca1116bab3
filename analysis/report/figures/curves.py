"""The figures of a sweep's runs: loss, validation over steps, passes and time, BSZO's signals, learning rates."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.frames import Frames
from analysis.paper.names import UNTRAINED, method_order, model_label, task_label, variant_name
from analysis.report.figures.drawing import Figure, Panel, Series, around
from analysis.report.figures.histories import (
    EVALUATED,
    LOSS,
    SAME,
    SIGNALS,
    Histories,
    evaluations,
    mean_over,
    piece,
    read,
    thin,
)
from analysis.report.style import RAMP, look
from analysis.select.trials import FACET, Trials, facet_title

NATS, STEP = "training loss (nats)", "step"
AXES = {
    "steps": ("step", STEP),
    "forwards": ("forwards", "forward passes (training)"),
    "time": ("minutes", "minutes of training steps"),
}
"""Ending of the figure's name -> column of the evaluations, and its words."""
VALIDATION = "validation accuracy (%)"
HEIGHTS = {"accuracy": (VALIDATION, 100), "loss": ("validation loss (nats)", 1)}
"""Column of the evaluations -> its words and the factor of their unit."""
BANDS = 8  # lines in a panel whose bands do not cover each other
DECADES = 1.5  # a signal that spans more is drawn on a logarithmic scale
SEEDS = "Lines: mean over runs that differ in nothing but the seed; shaded: from the smallest to the largest."
NEWEST = 24  # single runs that are drawn


def sweep_figures(trials: Trials) -> list[Figure]:
    """Every figure that the runs of a sweep can fill."""
    histories = read(trials)
    loss, signals = (_chosen(trials, histories, keys) for keys in ({LOSS: NATS}, SIGNALS))
    notes = [*_line_notes(trials, histories.each), *trials.notes]
    words = f"{trials.sweep}: training loss at the chosen learning rates"
    facets = len({tuple(panel.facet.values()) for panel in signals})
    columns = facets if 1 < facets <= 4 else 3
    made = [
        loss_by_rate(trials, histories),
        Figure("train_loss", words, loss, notes),
        *(validation(trials, histories, name) for name in AXES),
        rates(trials),
        Figure("signals", f"{trials.sweep}: BSZO's own signals", signals, notes, columns),
    ]
    return [figure for figure in made if figure is not None and figure.panels]


def validation(trials: Trials, histories: Histories, name: str) -> Figure:
    """Validation of the chosen runs: a panel of accuracies, then one of losses, per facet that was evaluated twice."""
    column, xlabel = AXES[name]
    drawn = trials.table[trials.table["chosen"] | trials.table["method"].isin(UNTRAINED)]
    panels = []
    for (height, (label, factor)), (title, facet, rows) in product(
        HEIGHTS.items(), list(_facets(trials, drawn))
    ):
        series: list[Series] = []
        for runs, mean, line in _lines(rows, histories.evaluations, column, height, factor):
            if not np.isfinite(line.y).any():
                continue
            if line.method in UNTRAINED:
                level = [float(np.mean(line.y))]
                series.append(replace(line, x=[0.0], y=level, shape="level", low=None, high=None))
            elif len(mean) > 1:
                best = np.flatnonzero(mean["step"] == runs["best_step"].iloc[0]).tolist()
                series.append(replace(line, best=best[0] if best and len(runs) == 1 else None))
        if any(s.shape == "line" for s in series):
            panels.append(Panel(title, xlabel, label, series, facet))
    sizes = ", ".join(f"{int(n):,d}" for n in sorted(drawn["val_n"].dropna().unique()))
    said = f"Chosen learning rates only; {sizes} validation examples."
    notes = [said, *[SEEDS] * bool(drawn.duplicated(SAME).any()), *trials.notes]
    title = f"{trials.sweep}: validation over {'steps' if xlabel == STEP else xlabel}"
    return Figure(f"validation_{name}", title, panels, notes)


def loss_by_rate(trials: Trials, histories: Histories) -> Figure | None:
    """The paper's Figure 1: a panel per method with every learning rate, then one with each method's chosen rate.

    With several precisions a column each. None where the facets differ in something else, or nothing is trained.
    """
    table = trials.table[~trials.table["method"].isin(UNTRAINED)]
    facets = [facet for facet, rows in trials.facets() if (~rows["method"].isin(UNTRAINED)).any()]
    if not facets or len({tuple(f[k] for k in FACET if k != "precision") for f in facets}) > 1:
        return None
    lines = list(_loss_lines(table, histories.thinned[LOSS]))
    if not lines:
        return None
    shown = [s.y for _, s in lines if s.shape == "line"]
    chosen = [s.y for rows, s in lines if s.shape == "line" and rows["chosen"].any()]
    view = around(np.concatenate([*(chosen or shown), *(y[:1] for y in shown)]), share=0.35)
    panels = []
    for method in (*sorted(table["method"].unique(), key=method_order), None):
        for facet in facets:
            mine = [pair for pair in lines if pair[0]["precision"].iloc[0] == facet["precision"]]
            title = "each method at its chosen rate"
            series = [s for rows, s in mine if rows["chosen"].any()]
            if method is not None:
                title, series = f"{look(method).label}, every learning rate", _by_rate(mine, method)
            title += f" · {facet['precision']}" if len(facets) > 1 else ""
            if series or len(facets) > 1:
                panels.append(Panel(title, STEP, NATS, series, facet, ylim=view))
    notes = [
        *_line_notes(trials, histories.each),
        "Per method: the larger the learning rate, the darker the line; at the right edge the rates in the order of "
        "the lines' ends, ← the chosen one. A collapse lies at the last finite loss, or at the panel's edge.",
        *trials.notes,
    ]
    title = f"{trials.sweep}: training loss at every learning rate"
    columns = len(facets) if 1 < len(facets) <= 4 else 3
    return Figure("loss_by_rate", title, panels, notes, columns)


def rates(trials: Trials) -> Figure | None:
    """Test accuracy over the learning rate; None where no method has two rates."""
    table = trials.table[~trials.table["method"].isin(UNTRAINED)]
    ended = table[table["status"] != "unfinished"]
    if not (ended["measure"] == "accuracy").all():
        return None
    if ended.empty or ended.groupby([*FACET, "method"])["lr"].nunique().max() < 2:
        return None
    panels = []
    for title, facet, rows in _facets(trials, trials.table):
        if series := list(_rate_series(rows)):
            ends = [v for s in series for v in (s.y, s.low, s.high) if v is not None]
            more: dict[str, Any] = {"ylim": around(np.concatenate(ends), share=0.25), "xlog": True}
            words = "learning rate", "test accuracy (%)"
            panels.append(Panel(title, *words, series, facet, **more))
    seeds = int(ended.groupby([*FACET, "method", "lr"])["run_id"].nunique().max())
    said = (
        "Test accuracy at the step of best validation accuracy; larger marks: chosen by validation accuracy; x at the "
        "foot: a collapsed run."
    )
    more_seeds = f" Lines: mean of up to {seeds} seeds, whiskers: all of them." * (seeds > 1)
    title = f"{trials.sweep}: accuracy over the learning rate"
    return Figure("lr", title, panels, [said + more_seeds, *trials.notes], best="chosen")


def _rate_series(rows: pd.DataFrame) -> Iterator[Series]:
    finished = rows[rows["status"] == "finished"]
    for (method, _), of_method in finished.groupby(["method", "configuration"], sort=False):
        by_rate = of_method.groupby("lr")
        scores = 100 * by_rate["test_accuracy"].agg(["mean", "min", "max"])
        words = look(str(method)).label
        x, y = scores.index.to_numpy(float), scores["mean"].to_numpy()
        if method in UNTRAINED:
            yield Series(str(method), [0.0], [float(y[0])], words, shape="level")
            continue
        chosen = np.flatnonzero(by_rate["chosen"].any())
        best = int(chosen[0]) if len(chosen) else None
        yield Series(str(method), x, y, words, best=best, runs=" ".join(of_method["run_id"]))
        ends: dict[str, Any] = {"low": scores["min"].to_numpy(), "high": scores["max"].to_numpy()}
        yield Series(str(method), x, y, words, "points", **ends)
    collapsed = rows[rows["status"] == "collapsed"].groupby(["method", "lr"], sort=False)
    for (method, lr), at_rate in collapsed:
        n, runs = len(at_rate), " ".join(at_rate["run_id"])
        places = [lr * 1.08 ** (i - (n - 1) / 2) for i in range(n)]
        words = f"{look(str(method)).label}, lr {lr:g}, collapsed"
        yield Series(str(method), places, [-np.inf] * n, words, "cross", runs=runs)


def _loss_lines(
    table: pd.DataFrame, losses: dict[str, pd.DataFrame]
) -> Iterator[tuple[pd.DataFrame, Series]]:
    """The loss of runs that differ in nothing but the seed, and an x for each that collapsed."""
    for runs, _, line in _lines(table, losses, "step", "median"):
        yield runs, line
        for run_id in runs.loc[runs["status"] == "collapsed", "run_id"]:
            last = losses[run_id].tail(1)
            if len(last):
                x, y = last["step"].to_list(), last["median"].to_list()
                yield runs, replace(line, x=x, y=y, shape="cross", low=None, high=None)


def _by_rate(lines: Sequence[tuple[pd.DataFrame, Series]], method: str) -> list[Series]:
    """The lines of one method, coloured by the order of their learning rates."""
    mine = [(rows, s) for rows, s in lines if rows["method"].iloc[0] == method]
    lrs = sorted({float(rows["lr"].iloc[0]) for rows, _ in mine})
    series = []
    for rows, s in mine:
        lr, chosen = float(rows["lr"].iloc[0]), bool(rows["chosen"].any())
        place, of = min(lrs.index(lr), len(RAMP) - 1), min(len(lrs), len(RAMP))
        end = f"{lr:g}" + " ←" * chosen if s.shape == "line" else " "
        name = variant_name(method, place, of, f"lr {lr:g}")
        series.append(replace(s, method=name, end=end, low=None, high=None))
    return series


def _chosen(trials: Trials, histories: Histories, keys: dict[str, str]) -> list[Panel]:
    """A panel per key and facet of the chosen runs."""
    panels = []
    for key, label in keys.items():
        for title, facet, rows in _facets(trials, trials.table[trials.table["chosen"]]):
            lines = _lines(rows, histories.thinned[key], "step", "median")
            series = [line for *_, line in lines]
            if not series:
                continue
            middles = np.concatenate([s.y for s in series])
            log = key != LOSS and bool((middles > 0).all() and np.ptp(np.log10(middles)) > DECADES)
            if len(series) > BANDS:
                series = [replace(s, low=None, high=None) for s in series]
            shown = f"{label} · {title}" if len(keys) > 1 else title
            ylim = around(middles, log, share=0.25)
            panels.append(Panel(shown, STEP, label, series, facet, ylog=log, ylim=ylim))
    return panels


def _facets(
    trials: Trials, drawn: pd.DataFrame
) -> Iterator[tuple[str, dict[str, str], pd.DataFrame]]:
    """Title, names and drawn rows of every facet."""
    facets = list(trials.facets())
    for facet, rows in facets:
        title = facet_title(facet, [other for other, _ in facets])
        yield title, facet, rows[rows.index.isin(drawn.index)]


def _lines(
    rows: pd.DataFrame, pieces: dict[str, pd.DataFrame], x: str, y: str, factor: float = 1
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame, Series]]:
    """Runs that differ in nothing but the seed, the mean over those with a piece of history, and its line."""
    for _, runs in rows.groupby(SAME, sort=False, dropna=False):
        there = [pieces[run_id] for run_id in runs["run_id"] if len(pieces[run_id])]
        if not there:
            continue
        mean, first, ids = mean_over(there, x, y), runs.iloc[0], " ".join(runs["run_id"])
        words = look(first["method"]).label
        words += "" if first["method"] in UNTRAINED else f", lr {first['lr']:g}"
        words += ", collapsed" * bool((runs["status"] == "collapsed").any())
        words += f", mean of {len(runs)} seeds" if len(runs) > 1 else f", run {ids}"
        points = mean[x].to_numpy(), factor * mean[y].to_numpy()
        yield runs, mean, Series(first["method"], *points, words, runs=ids, **band(mean, factor))


def band(mean: pd.DataFrame, factor: float = 1) -> dict[str, Any]:
    """The ends of a band; nothing where every step is a piece of its own."""
    if "low" not in mean or ("n" in mean and (mean["n"] <= 1).all()):
        return {}
    return {end: factor * mean[end].to_numpy() for end in ("low", "high")}


def _line_notes(trials: Trials, each: int) -> list[str]:
    """How the lines were averaged and thinned."""
    if trials.table[trials.table["chosen"]].duplicated(SAME).any():
        return [SEEDS + f" Each run: median of {each:,d} steps." * (each > 1)]
    if each == 1:
        return ["Every step is drawn."]
    ends = "shaded: from the smallest to the largest value among them"
    return [f"Lines: median of {each:,d} steps each; {ends}."]


def single_run_figure(frames: Frames) -> list[Figure]:
    """Training loss and validation accuracy of the newest single runs, each a line under its own name."""
    runs = frames.single
    found: dict[tuple[str, str], tuple[dict[str, str], list[Series]]] = {}
    for row in runs.head(NEWEST).to_dict("records"):
        rows = frames.history.one(row["run_id"], [LOSS, *EVALUATED])
        facet = {key: str(row.get(f"{key}.name", "")) for key in ("model", "task", "precision")}
        loss, checked = thin(rows, LOSS, piece(rows["step"].max())), evaluations(rows)
        words = f"{row['run_id']}, lr {row.get('lr', 0):g} ({row['status']})"
        where = f"{model_label(facet['model'])} · {task_label(facet['task'])}".strip(" ·")
        for label, line, y, ends in (
            (NATS, loss, loss["median"], band(loss)),
            (VALIDATION, checked, 100 * checked["accuracy"], {}),
        ):
            if len(line):
                method, xy = (
                    str(row.get("optimizer.name", "")),
                    (line["step"].to_numpy(), y.to_numpy()),
                )
                series = Series(method, *xy, words, runs=row["run_id"], **ends)
                found.setdefault((where, label), (facet, []))[1].append(series)
    panels = [Panel(where, STEP, y, series, facet) for (where, y), (facet, series) in found.items()]
    more = f" Drawn: the newest {NEWEST} of {len(runs)}." * (len(runs) > NEWEST)
    notes = ["Each line is one run; nothing is averaged." + more]
    return [Figure("single_runs", "Single runs", panels, notes, 2)] if panels else []
