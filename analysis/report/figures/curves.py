"""The figures of a sweep's runs: loss, accuracy over steps, passes and time, BSZO's signals, learning rates."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.frames import Frames
from analysis.paper.names import UNTRAINED, model_label, task_label, variant_name
from analysis.report.figures.drawing import Ends, Figure, Panel, Series, around
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
ACCURACY = {
    "steps": ("step", STEP),
    "forwards": ("forwards", FORWARDS),
    "time": ("minutes", MINUTES),
}
"""Ending of the figure's name -> column of the evaluations, and its words."""
BANDS = 8  # lines in a panel whose bands do not cover each other
DECADES = 1.5  # a signal that spans more is drawn on a logarithmic scale
SEEDS = "Lines: mean over runs that differ in nothing but the seed; shaded: from the smallest to the largest."


def sweep_figures(trials: Trials) -> list[Figure]:
    """Every figure that the runs of a sweep can fill."""
    histories = read(trials)
    made = [
        loss_by_rate(trials, histories),
        chosen_loss(trials, histories),
        *(accuracy(trials, histories, name) for name in ACCURACY),
        rates(trials),
        signals(trials, histories),
    ]
    return [figure for figure in made if figure is not None]


def chosen_loss(trials: Trials, histories: Histories) -> Figure | None:
    """Training loss of each method at its chosen learning rate; None where no step was made."""
    panels = _thinned_panels(trials, histories, {LOSS: NATS})
    if not panels:
        return None
    title = f"{trials.sweep}: training loss at the chosen learning rates"
    return Figure("train_loss", title, panels, [*_line_notes(trials, histories), *trials.notes])


def signals(trials: Trials, histories: Histories) -> Figure | None:
    """BSZO's own signals; None where no run logs any."""
    panels = _thinned_panels(trials, histories, SIGNALS)
    if not panels:
        return None
    facets = len({tuple(panel.facet.values()) for panel in panels})
    notes = [*_line_notes(trials, histories), *trials.notes]
    return Figure(
        "signals",
        f"{trials.sweep}: BSZO's own signals",
        panels,
        notes,
        facets if 1 < facets <= 4 else 3,
    )


def accuracy(trials: Trials, histories: Histories, name: str) -> Figure | None:
    """Validation accuracy of the chosen runs; None where nothing was evaluated twice."""
    column, xlabel = ACCURACY[name]

    def lines(rows: pd.DataFrame) -> Iterator[Series]:
        for runs in same_but_seed(rows):
            pieces = [histories.evaluations[run_id] for run_id in runs["run_id"]]
            mean = mean_over([p for p in pieces if len(p)] or pieces[:1], column, "accuracy")
            first, y = runs.iloc[0], 100 * mean["accuracy"].to_numpy()
            if first["method"] in UNTRAINED:
                yield _series(
                    runs, [0.0], [float(np.mean(y))] if len(y) else [np.nan], shape="level"
                )
            elif len(mean) > 1:
                matches = np.flatnonzero(mean["step"] == first["best_step"]).tolist()
                best = matches[0] if matches and len(runs) == 1 else None
                line = _series(runs, mean[column].to_numpy(), y, best=best)
                yield replace(line, **_band(mean, 100)) if len(runs) > 1 else line

    drawn = trials.table[trials.table["chosen"] | trials.table["method"].isin(UNTRAINED)]
    panels = [
        Panel(title, xlabel, "validation accuracy (%)", series, facet)
        for title, facet, series in _facets(trials, drawn, lines)
        if any(s.shape == "line" for s in series)
    ]
    if not panels:
        return None
    sizes = ", ".join(f"{int(n):,d}" for n in sorted(drawn["val_n"].dropna().unique()))
    notes = [
        f"Chosen learning rates only; {sizes} validation examples.",
        *_seed_notes(drawn),
        *trials.notes,
    ]
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
    for method in (
        *[m for m in trials.methods if m not in UNTRAINED],
        None,
    ):  # None: each at its chosen rate
        for facet in facets:
            mine = [
                (rows, s) for rows, s in lines if rows["precision"].iloc[0] == facet["precision"]
            ]
            series = (
                _by_rate(mine, method)
                if method
                else [s for rows, s in mine if rows["chosen"].any()]
            )
            title = (
                f"{look(method).label}, every learning rate"
                if method
                else "each method at its chosen rate"
            )
            title += f" · {facet['precision']}" if len(facets) > 1 else ""
            if series or len(facets) > 1:
                panels.append(Panel(title, STEP, NATS, series, facet, ylim=view))
    notes = [
        *_line_notes(trials, histories),
        "Per method: the larger the learning rate, the darker the line; at the right edge the rates in the order of "
        "the lines' ends, ← the chosen one. A collapse lies at the last finite loss, or at the panel's edge.",
        *trials.notes,
    ]
    columns = len(facets) if 1 < len(facets) <= 4 else 3
    return Figure(
        "loss_by_rate",
        f"{trials.sweep}: training loss at every learning rate",
        panels,
        notes,
        columns,
    )


def rates(trials: Trials) -> Figure | None:
    """Test accuracy over the learning rate; None where no method has two rates."""
    table = trials.table[~trials.table["method"].isin(UNTRAINED)]
    ended = table[table["status"] != "unfinished"]
    if ended.empty or ended.groupby([*FACET, "method"])["lr"].nunique().max() < 2:
        return None
    panels = []
    for title, facet, series in _facets(trials, trials.table, _rate_series):
        if series:
            heights = np.concatenate(
                [v for s in series for v in (s.y, s.low, s.high) if v is not None]
            )
            ylim = around(heights, share=0.25)
            panels.append(
                Panel(
                    title, "learning rate", "test accuracy (%)", series, facet, xlog=True, ylim=ylim
                )
            )
    seeds = int(ended.groupby([*FACET, "method", "lr"])["run_id"].nunique().max())
    notes = [
        "Test accuracy at the step of best validation accuracy; larger marks: chosen by validation accuracy; x at the "
        "foot: a collapsed run."
        + f" Lines: mean of up to {seeds} seeds, whiskers: all of them."
        * (seeds > 1),
        *trials.notes,
    ]
    return Figure(
        "lr", f"{trials.sweep}: accuracy over the learning rate", panels, notes, best="chosen"
    )


def _rate_series(rows: pd.DataFrame) -> Iterator[Series]:
    finished = rows[rows["status"] == "finished"]
    for (method, _), of_method in finished.groupby(["method", "configuration"], sort=False):
        groups = of_method.groupby("lr")["test_accuracy"]
        mean = 100 * groups.mean()
        words = look(str(method)).label
        if method in UNTRAINED:
            yield Series(str(method), [0.0], [float(mean.iloc[0])], words, shape="level")
            continue
        chosen = np.flatnonzero(of_method.groupby("lr")["chosen"].any())
        ends: Ends = {"low": 100 * groups.min().to_numpy(), "high": 100 * groups.max().to_numpy()}
        best = int(chosen[0]) if len(chosen) else None
        x, y = mean.index.to_numpy(float), mean.to_numpy()
        yield Series(str(method), x, y, words, best=best, runs=" ".join(of_method["run_id"]))
        yield Series(str(method), x, y, words, "points", **ends)
    for (method, lr), at_rate in rows[rows["status"] == "collapsed"].groupby(
        ["method", "lr"], sort=False
    ):
        places = [lr * 1.08 ** (i - (len(at_rate) - 1) / 2) for i in range(len(at_rate))]
        words = f"{look(str(method)).label}, lr {lr:g}, collapsed"
        yield Series(
            str(method),
            places,
            [-np.inf] * len(at_rate),
            words,
            "cross",
            runs=" ".join(at_rate["run_id"]),
        )


def _loss_lines(runs: pd.DataFrame, histories: Histories) -> Iterator[tuple[pd.DataFrame, Series]]:
    """The loss of runs that differ in nothing but the seed, and an x for each that collapsed."""
    found = [histories.thinned[run_id].get(LOSS) for run_id in runs["run_id"]]
    pieces = [piece for piece in found if piece is not None and len(piece)]
    if not pieces:
        return
    mean = mean_over(pieces, "step", "median")
    if mean.empty:
        return
    yield runs, _series(runs, mean["step"].to_numpy(), mean["median"].to_numpy(), **_band(mean))
    for run_id in runs.loc[runs["status"] == "collapsed", "run_id"]:
        piece = histories.thinned[run_id].get(LOSS)
        if piece is not None and len(piece):
            last = piece.iloc[-1]
            yield runs, _series(runs, [last["step"]], [last["median"]], shape="cross")


def _by_rate(lines: Sequence[tuple[pd.DataFrame, Series]], method: str) -> list[Series]:
    """The lines of one method, coloured by the order of their learning rates."""
    mine = [(rows, s) for rows, s in lines if rows["method"].iloc[0] == method]
    lrs = sorted({float(rows["lr"].iloc[0]) for rows, _ in mine})
    series = []
    for rows, s in mine:
        lr, chosen = float(rows["lr"].iloc[0]), bool(rows["chosen"].any())
        name = variant_name(
            method, min(lrs.index(lr), len(RAMP) - 1), min(len(lrs), len(RAMP)), f"lr {lr:g}"
        )
        end = f"{lr:g}" + " ←" * chosen if s.shape == "line" else " "
        series.append(replace(s, method=name, end=end, low=None, high=None))
    return series


def _thinned_panels(trials: Trials, histories: Histories, keys: dict[str, str]) -> list[Panel]:
    """A panel per key and facet of the chosen runs."""
    panels = []
    drawn = trials.table[trials.table["chosen"]]
    for key, label in keys.items():

        def lines(rows: pd.DataFrame, key: str = key) -> Iterator[Series]:
            for runs in same_but_seed(rows):
                found = [histories.thinned[run_id].get(key) for run_id in runs["run_id"]]
                pieces = [piece for piece in found if piece is not None and len(piece)]
                mean = mean_over(pieces, "step", "median") if pieces else pd.DataFrame()
                if len(mean):
                    yield _series(
                        runs, mean["step"].to_numpy(), mean["median"].to_numpy(), **_band(mean)
                    )

        for title, facet, series in _facets(trials, drawn, lines):
            if not series:
                continue
            middles = np.concatenate([s.y for s in series])
            log = key != LOSS and bool((middles > 0).all() and np.ptp(np.log10(middles)) > DECADES)
            kept = (
                series
                if len(series) <= BANDS
                else [replace(s, low=None, high=None) for s in series]
            )
            shown = f"{label} · {title}" if len(keys) > 1 else title
            ylim = around(middles, log, share=0.25)
            panels.append(Panel(shown, STEP, label, kept, facet, ylog=log, ylim=ylim))
    return panels


def _facets(
    trials: Trials, drawn: pd.DataFrame, lines: Callable[[pd.DataFrame], Iterator[Series]]
) -> Iterator[tuple[str, dict[str, str], list[Series]]]:
    """Title, names and series of every facet."""
    facets = [facet for facet, _ in trials.facets()]
    for facet in facets:
        rows = drawn[np.logical_and.reduce([drawn[key] == facet[key] for key in FACET])]
        yield facet_title(facet, facets), facet, list(lines(rows)) if len(rows) else []


def _series(runs: pd.DataFrame, x: Any, y: Any, **looks: Any) -> Series:
    """A series that says which runs it is made of."""
    first = runs.iloc[0]
    seeds = f"mean of {len(runs)} seeds" if len(runs) > 1 else f"run {first['run_id']}"
    status = ", collapsed" * bool((runs["status"] == "collapsed").any())
    lr = "" if first["method"] in UNTRAINED else f", lr {first['lr']:g}"
    words = f"{look(first['method']).label}{lr}{status}, {seeds}"
    return Series(first["method"], x, y, words, runs=" ".join(runs["run_id"]), **looks)


def _band(mean: pd.DataFrame, factor: float = 1) -> Ends:
    """The ends of a band; nothing where every step is a piece of its own."""
    if "low" not in mean or ("n" in mean and (mean["n"] <= 1).all()):
        return {}
    return {"low": factor * mean["low"].to_numpy(), "high": factor * mean["high"].to_numpy()}


def _seed_notes(drawn: pd.DataFrame) -> list[str]:
    most = max((len(runs) for runs in same_but_seed(drawn)), default=1)
    return [SEEDS] if most > 1 else []


def _line_notes(trials: Trials, histories: Histories) -> list[str]:
    drawn = trials.table[trials.table["chosen"]]
    if _seed_notes(drawn):
        medians = f" Each run: median of {histories.each:,d} steps." if histories.each > 1 else ""
        return [SEEDS + medians]
    return [histories.note]


def single_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the runs frame without a sweep, the newest first."""
    return runs[runs["group"] == ""].sort_values("started", ascending=False, kind="stable")


def single_run_figure(frames: Frames, most: int = 24) -> list[Figure]:
    """Training loss and validation accuracy of the newest single runs, each a line under its own name."""
    runs = single_runs(frames.runs)
    found: dict[str, list[tuple[dict[str, str], tuple[Series, Series]]]] = {}
    for row in runs.head(most).to_dict("records"):
        rows = frames.history.one(row["run_id"], [LOSS, *EVALUATED])
        facet = {key: str(row.get(f"{key}.name", "")) for key in ("model", "task", "precision")}
        loss = thin(rows, LOSS, max(1, -(-int(rows["step"].max()) // BINS)) if len(rows) else 1)
        checked, method = evaluations(rows), str(row.get("optimizer.name", ""))
        words = f"{row['run_id']} ({row['status']})"
        steps, medians = loss["step"].to_numpy(), loss["median"].to_numpy()
        heights = 100 * checked["accuracy"].to_numpy()
        lines = (
            Series(method, steps, medians, words, runs=row["run_id"], **_band(loss)),
            Series(method, checked["step"].to_numpy(), heights, words, runs=row["run_id"]),
        )
        where = " · ".join(
            part for part in (model_label(facet["model"]), task_label(facet["task"])) if part
        )
        found.setdefault(where, []).append((facet, lines))
    panels = []
    for where, lines_of in found.items():
        for place, label in ((0, NATS), (1, "validation accuracy (%)")):
            series = [lines[place] for _, lines in lines_of if len(lines[place].x)]
            if series:
                panels.append(Panel(where, STEP, label, series, lines_of[0][0]))
    notes = [
        "Each line is one run; nothing is averaged."
        + f" Drawn: the newest {most} of {len(runs)}." * (len(runs) > most)
    ]
    return [Figure("single_runs", "Single runs", panels, notes, 2)] if panels else []
