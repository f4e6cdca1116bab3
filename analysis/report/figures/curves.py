"""The figures of a sweep's runs: loss, accuracy over steps, passes and time, BSZO's signals, learning rates."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.frames import Frames
from analysis.paper.names import UNTRAINED, model_label, task_label, variant_name
from analysis.report.figures.drawing import Figure, Panel, Series, around
from analysis.report.figures.histories import (
    BINS,
    EVALUATED,
    LOSS,
    SIGNALS,
    Histories,
    evaluations,
    mean_over,
    read,
    same_but_seed,
    thin,
)
from analysis.report.style import RAMP, look
from analysis.select.trials import FACET, Trials, facet_title

NATS = "training loss (nats)"
STEP, FORWARDS, MINUTES = "step", "forward passes (training)", "minutes of training steps"
VALIDATION = "validation accuracy (%)"
ACCURACY = {
    "steps": ("step", STEP),
    "forwards": ("forwards", FORWARDS),
    "time": ("minutes", MINUTES),
}
"""Ending of the figure's name -> column of the evaluations, and its words."""
BANDS = 8  # lines in a panel whose bands do not cover each other
DECADES = 1.5  # a signal that spans more is drawn on a logarithmic scale
SEEDS = "Lines: mean over runs that differ in nothing but the seed; shaded: from the smallest to the largest."
NEWEST = 24  # single runs that are drawn


def sweep_figures(trials: Trials) -> list[Figure]:
    """Every figure that the runs of a sweep can fill."""
    histories = read(trials)
    loss, signals = (_chosen(trials, histories, keys) for keys in ({LOSS: NATS}, SIGNALS))
    notes = [*_line_notes(trials, histories), *trials.notes]
    words = f"{trials.sweep}: training loss at the chosen learning rates"
    facets = len({tuple(panel.facet.values()) for panel in signals})
    columns = facets if 1 < facets <= 4 else 3
    made = [
        loss_by_rate(trials, histories),
        Figure("train_loss", words, loss, notes),
        *(accuracy(trials, histories, name) for name in ACCURACY),
        rates(trials),
        Figure("signals", f"{trials.sweep}: BSZO's own signals", signals, notes, columns),
    ]
    return [figure for figure in made if figure is not None and figure.panels]


def accuracy(trials: Trials, histories: Histories, name: str) -> Figure:
    """Validation accuracy of the chosen runs, a panel per facet where something was evaluated twice."""
    column, xlabel = ACCURACY[name]

    def lines(rows: pd.DataFrame) -> Iterator[Series]:
        for runs in same_but_seed(rows):
            mean = _mean(runs, histories.evaluations, column, "accuracy")
            first, y = runs.iloc[0], 100 * mean["accuracy"].to_numpy()
            if first["method"] in UNTRAINED:
                level = [float(np.mean(y))] if len(y) else [np.nan]
                yield _series(runs, [0.0], level, shape="level")
            elif len(mean) > 1:
                matches = np.flatnonzero(mean["step"] == first["best_step"]).tolist()
                best = matches[0] if matches and len(runs) == 1 else None
                yield _series(runs, mean[column].to_numpy(), y, best=best, **band(mean, 100))

    drawn = trials.table[trials.table["chosen"] | trials.table["method"].isin(UNTRAINED)]
    panels = [
        Panel(title, xlabel, VALIDATION, series, facet)
        for title, facet, series in _facets(trials, drawn, lines)
        if any(s.shape == "line" for s in series)
    ]
    sizes = ", ".join(f"{int(n):,d}" for n in sorted(drawn["val_n"].dropna().unique()))
    said = f"Chosen learning rates only; {sizes} validation examples."
    notes = [said, *_seed_notes(drawn), *trials.notes]
    title = f"{trials.sweep}: validation accuracy over {'steps' if xlabel == STEP else xlabel}"
    return Figure(f"accuracy_{name}", title, panels, notes)


def loss_by_rate(trials: Trials, histories: Histories) -> Figure | None:
    """The paper's Figure 1: a panel per method with every learning rate, then one with each method's chosen rate.

    With several precisions a column each. None where the facets differ in something else, or nothing is trained.
    """
    table = trials.table[~trials.table["method"].isin(UNTRAINED)]
    facets = [facet for facet, rows in trials.facets() if (~rows["method"].isin(UNTRAINED)).any()]
    if not facets or len({tuple(f[k] for k in FACET if k != "precision") for f in facets}) > 1:
        return None
    lines = [line for runs in same_but_seed(table) for line in _loss_lines(runs, histories)]
    if not lines:
        return None
    shown = [s.y for _, s in lines if s.shape == "line"]
    chosen = [s.y for rows, s in lines if s.shape == "line" and rows["chosen"].any()]
    view = around(np.concatenate([*(chosen or shown), *(y[:1] for y in shown)]), share=0.35)
    panels = []
    for method in (*(m for m in trials.methods if m not in UNTRAINED), None):
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
        *_line_notes(trials, histories),
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
    if ended.empty or ended.groupby([*FACET, "method"])["lr"].nunique().max() < 2:
        return None
    panels = []
    for title, facet, series in _facets(trials, trials.table, _rate_series):
        if series:
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


def _loss_lines(runs: pd.DataFrame, histories: Histories) -> Iterator[tuple[pd.DataFrame, Series]]:
    """The loss of runs that differ in nothing but the seed, and an x for each that collapsed."""
    losses = histories.thinned[LOSS]
    mean = _mean(runs, losses, "step", "median")
    if mean.empty:
        return
    yield runs, _series(runs, mean["step"].to_numpy(), mean["median"].to_numpy(), **band(mean))
    for run_id in runs.loc[runs["status"] == "collapsed", "run_id"]:
        for last in losses[run_id].tail(1).to_dict("records"):
            yield runs, _series(runs, [last["step"]], [last["median"]], shape="cross")


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

        def lines(rows: pd.DataFrame, key: str = key) -> Iterator[Series]:
            for runs in same_but_seed(rows):
                mean = _mean(runs, histories.thinned[key], "step", "median")
                if len(mean):
                    x, y = mean["step"].to_numpy(), mean["median"].to_numpy()
                    yield _series(runs, x, y, **band(mean))

        for title, facet, series in _facets(trials, trials.table[trials.table["chosen"]], lines):
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
    trials: Trials, drawn: pd.DataFrame, lines: Callable[[pd.DataFrame], Iterator[Series]]
) -> Iterator[tuple[str, dict[str, str], list[Series]]]:
    """Title, names and series of every facet."""
    facets = [facet for facet, _ in trials.facets()]
    for facet in facets:
        rows = drawn[np.logical_and.reduce([drawn[key] == facet[key] for key in FACET])]
        yield facet_title(facet, facets), facet, list(lines(rows)) if len(rows) else []


def _mean(runs: pd.DataFrame, pieces: dict[str, pd.DataFrame], x: str, y: str) -> pd.DataFrame:
    """The mean over the runs that have a piece of history; empty without any."""
    mine = [pieces[run_id] for run_id in runs["run_id"]]
    return mean_over([piece for piece in mine if len(piece)] or mine[:1], x, y)


def _series(runs: pd.DataFrame, x: Any, y: Any, **looks: Any) -> Series:
    """A series that says which runs it is made of."""
    first = runs.iloc[0]
    seeds = f"mean of {len(runs)} seeds" if len(runs) > 1 else f"run {first['run_id']}"
    status = ", collapsed" * bool((runs["status"] == "collapsed").any())
    lr = "" if first["method"] in UNTRAINED else f", lr {first['lr']:g}"
    words = f"{look(first['method']).label}{lr}{status}, {seeds}"
    return Series(first["method"], x, y, words, runs=" ".join(runs["run_id"]), **looks)


def band(mean: pd.DataFrame, factor: float = 1) -> dict[str, Any]:
    """The ends of a band; nothing where every step is a piece of its own."""
    if "low" not in mean or ("n" in mean and (mean["n"] <= 1).all()):
        return {}
    return {end: factor * mean[end].to_numpy() for end in ("low", "high")}


def _seed_notes(drawn: pd.DataFrame) -> list[str]:
    return [SEEDS] if any(len(runs) > 1 for runs in same_but_seed(drawn)) else []


def _line_notes(trials: Trials, histories: Histories) -> list[str]:
    if _seed_notes(trials.table[trials.table["chosen"]]):
        medians = f" Each run: median of {histories.each:,d} steps." if histories.each > 1 else ""
        return [SEEDS + medians]
    return [histories.note]


def single_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the runs frame without a sweep, the newest first."""
    return runs[runs["group"] == ""].sort_values("started", ascending=False, kind="stable")


def single_run_figure(frames: Frames) -> list[Figure]:
    """Training loss and validation accuracy of the newest single runs, each a line under its own name."""
    runs = single_runs(frames.runs)
    found: dict[str, list[tuple[dict[str, str], tuple[Series, Series]]]] = {}
    for row in runs.head(NEWEST).to_dict("records"):
        rows = frames.history.one(row["run_id"], [LOSS, *EVALUATED])
        facet = {key: str(row.get(f"{key}.name", "")) for key in ("model", "task", "precision")}
        loss = thin(rows, LOSS, max(1, -(-int(rows["step"].max()) // BINS)) if len(rows) else 1)
        checked, method = evaluations(rows), str(row.get("optimizer.name", ""))
        words, own = f"{row['run_id']} ({row['status']})", {"runs": row["run_id"]}
        steps, medians = loss["step"].to_numpy(), loss["median"].to_numpy()
        heights = 100 * checked["accuracy"].to_numpy()
        lines = (
            Series(method, steps, medians, words, **own, **band(loss)),
            Series(method, checked["step"].to_numpy(), heights, words, **own),
        )
        names = model_label(facet["model"]), task_label(facet["task"])
        found.setdefault(" · ".join(filter(None, names)), []).append((facet, lines))
    panels = []
    for where, drawn in found.items():
        for place, label in enumerate((NATS, VALIDATION)):
            series = [lines[place] for _, lines in drawn if len(lines[place].x)]
            if series:
                panels.append(Panel(where, STEP, label, series, drawn[0][0]))
    more = f" Drawn: the newest {NEWEST} of {len(runs)}." * (len(runs) > NEWEST)
    notes = ["Each line is one run; nothing is averaged." + more]
    return [Figure("single_runs", "Single runs", panels, notes, 2)] if panels else []
