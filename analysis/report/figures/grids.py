"""What a grid of learning rates says: loss at every rate per method (the paper's Figure 1), and accuracy over it."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from analysis.report.figures.curves import (
    draw_envelope,
    limit,
    mark_handle,
    method_handles,
    name_line,
    opacity,
    whole_numbers,
)
from analysis.report.figures.drawing import Drawing, Panel
from analysis.report.figures.thinning import note as thinning_note
from analysis.report.figures.thinning import over_seeds, seeds_note, thin, width
from analysis.report.style import MUTED, RAMP, look
from analysis.select.sweep_selection import ZERO_SHOT
from analysis.select.trials import FACET, Trials, facet_title

RATE_MARKS = ("o", "s", "^", "v", "D", "P")


def loss_by_rate(trials: Trials) -> Drawing | None:
    """Figure 1: a panel per method with every learning rate, and one with each method's chosen rate.

    With several precisions a column each. None where the facets differ in something else, or nothing is trained.
    """
    table = trials.table[trials.table["method"] != ZERO_SHOT]
    facets = [f for f, rows in trials.facets() if (rows["method"] != ZERO_SHOT).any()]
    if not facets or len({tuple(f[k] for k in FACET if k != "precision") for f in facets}) > 1:
        return None
    data = _thinned(trials, table, ("precision",) if len(facets) > 1 else ())
    if data.empty:
        return None
    steps_each = int(data.attrs["steps_each"])
    view = _view(data)
    methods = [method for method in trials.methods if method in set(data["method"])]
    panels = []
    for method in (*methods, None):  # None: each at its chosen rate
        for facet in facets:
            mine = data[data["precision"] == facet["precision"]] if len(facets) > 1 else data
            rows = mine[mine["method"] == method] if method else mine[mine["chosen"]]
            title = f"{look(method).label}, every lr" if method else "each method at its chosen lr"
            title += f" · {facet['precision']}" if len(facets) > 1 else ""
            draw = partial(_draw_rates, rows=rows, ranks=method is not None, view=view)
            if len(rows) or len(facets) > 1:
                panels.append(Panel(title, draw, facet))
    handles = [*method_handles(methods), mark_handle("x", "collapsed", markeredgewidth=1.6)]
    seeds = int(
        data.groupby([*(["precision"] * (len(facets) > 1)), "method", "lr"])["seed"].nunique().max()
    )
    notes = [
        thinning_note(steps_each),
        "Per method: the larger the learning rate, the darker the line; at the right edge the rates in the order of "
        "the lines' ends, ← the chosen one. "
        "A collapse lies at the last finite loss, at the panel's edge if that is beyond it.",
        *seeds_note(seeds),
        *trials.notes,
    ]
    columns = len(facets) if 1 < len(facets) <= 4 else 3
    heading = f"{trials.sweep}: training loss"
    return Drawing("loss_by_rate", heading, panels, handles, data, notes, columns)


def rate_sensitivity(trials: Trials) -> Drawing | None:
    """Test accuracy over the learning rate; None where no method has two rates."""
    table = trials.table[trials.table["method"] != ZERO_SHOT]
    trained = table[table["status"] != "unfinished"]
    if trained.empty or trained.groupby([*FACET, "method"])["lr"].nunique().max() < 2:
        return None
    facets = [facet for facet, _ in trials.facets()]
    panels = [
        Panel(facet_title(facet, facets), partial(_draw_sensitivity, rows=rows), facet)
        for facet, rows in trials.facets()
        if (rows["method"] != ZERO_SHOT).any()
    ]
    columns = ["run_id", *FACET, "method", "lr", "seed", "status", "chosen"]
    data = trials.table[[*columns, "val_accuracy", "test_accuracy", "best_step", "collapse_step"]]
    handles = [
        *method_handles(trials.methods),
        mark_handle("o", "chosen", markersize=7),
        mark_handle("x", "collapsed, drawn at the foot", markeredgewidth=1.6),
    ]
    seeds = int(trained.groupby([*FACET, "method", "lr"])["run_id"].nunique().max())
    spread = f" Lines: mean of up to {seeds} seeds, whiskers: all of them." if seeds > 1 else ""
    notes = [
        "Test accuracy at the step of best validation accuracy; the learning rate is chosen by "
        f"validation accuracy.{spread}",
        *trials.notes,
    ]
    title = f"{trials.sweep}: accuracy over the learning rate"
    return Drawing("lr", title, panels, handles, data, notes)


def _thinned(trials: Trials, table: pd.DataFrame, facet: Sequence[str]) -> pd.DataFrame:
    """The thinned losses of all runs, with what each run is; `facet`: keys of its facet to be kept, too."""
    histories = {run_id: trials.history(run_id, ["train/loss"]) for run_id in table["run_id"]}
    last = max((int(rows["step"].max()) for rows in histories.values() if len(rows)), default=0)
    pieces = []
    for row in table.to_dict("records"):
        rows = thin(histories[row["run_id"]], "train/loss", width(last))
        for key in ("collapse_step", "chosen", "status", "seed", "lr", "method", "run_id", *facet):
            rows.insert(0, key, row[key])
        pieces.append(rows)
    filled = [piece for piece in pieces if len(piece)]
    data = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()
    data.attrs["steps_each"] = width(last)
    return data


def _view(data: pd.DataFrame) -> tuple[float, float]:
    """The losses that all panels show: those of the chosen runs, and the start of all."""
    shown = data.loc[data["chosen"], "median"]
    shown = shown if len(shown) else data["median"]
    first = data.groupby("run_id")["median"].first()
    low, high = min(shown.min(), first.min()), max(shown.max(), first.max())
    room = 0.35 * (high - low) or 0.1
    return float(low - room), float(high + room)


def _draw_rates(axes: Axes, rows: pd.DataFrame, ranks: bool, view: tuple[float, float]) -> None:
    """Lines of runs: by rank of their learning rate, or each in its method's colour."""
    rates = sorted(rows["lr"].unique())
    axes.set_ylim(*view)
    runs = [over_seeds(same) for _, same in rows.groupby(["method", "lr"], sort=False)]
    for run in sorted(runs, key=lambda run: bool(run["chosen"].iloc[0])):
        _draw_run(axes, run, rates if ranks else None, len(runs))
    axes.set(xlabel="step", ylabel="training loss (nats)")
    axes.set_xlim(left=0)
    whole_numbers(axes)
    if ranks:
        _write_rates(axes, runs)


def _draw_run(axes: Axes, run: pd.DataFrame, rates: list[float] | None, among: int) -> None:
    first = run.iloc[0]
    style = look(first["method"])
    colour, marker, line_style = style.colour, style.marker, style.line
    if rates is not None:
        rank = rates.index(first["lr"]) + max(0, (len(RAMP) - len(rates)) // 2)
        colour, line_style = RAMP[min(rank, len(RAMP) - 1)], "-"
        marker = RATE_MARKS[rates.index(first["lr"]) % len(RATE_MARKS)]
    draw_envelope(axes, run, colour, opacity(among))
    (line,) = axes.plot(
        run["step"],
        run["median"],
        color=colour,
        linestyle=line_style,
        marker=marker,
        markevery=max(1, len(run) // 6),
        linewidth=1.6 if first["chosen"] else 0.9,
    )
    words = f"{style.label}, lr {first['lr']:g}, {first['status']}, run {first['run_id']}"
    name_line(line, first["method"], words)
    last = run.iloc[-1]
    height = float(np.clip(last["median"], *axes.get_ylim()))
    if first["status"] == "collapsed":
        axes.plot(
            [last["step"]],
            [height],
            marker="x",
            markersize=6,
            markeredgewidth=1.6,
            color=colour,
            zorder=5,
            clip_on=False,
        )


def _write_rates(axes: Axes, runs: Sequence[pd.DataFrame]) -> None:
    """Each run's learning rate at its line's end, moved apart where lines end close together."""
    bottom, top = axes.get_ylim()
    ends = []
    for run in runs:
        last = run.iloc[-1]
        ends.append((float(np.clip(last["median"], bottom, top)), last))
    ends.sort(key=lambda end: end[0])
    least = (top - bottom) * 0.065
    height = bottom - least
    for end, last in ends:
        height = max(end, height + least)
        text = f"{last['lr']:g}" + (" ←" if last["chosen"] else "")
        axes.annotate(
            text,
            (1.01, height),
            xycoords=("axes fraction", "data"),
            fontsize=5.5,
            va="center",
            color=MUTED,
            annotation_clip=False,
        )


def _draw_sensitivity(axes: Axes, rows: pd.DataFrame) -> None:
    finished = rows[rows["status"] == "finished"]
    for method, of_method in finished.groupby("method", sort=False):
        style = look(str(method))
        if method == ZERO_SHOT:
            level = 100 * of_method["test_accuracy"].mean()
            axes.axhline(level, color=style.colour, linestyle=style.line, linewidth=1.2)
            continue
        groups = of_method.groupby("lr")
        mean = 100 * groups["test_accuracy"].mean()
        low, high = 100 * groups["test_accuracy"].min(), 100 * groups["test_accuracy"].max()
        (line,) = axes.plot(
            mean.index, mean, color=style.colour, linestyle=style.line, marker=style.marker
        )
        name_line(line, str(method), style.label)
        axes.vlines(mean.index, low, high, color=style.colour, linewidth=0.9, alpha=0.6)
        best = mean[groups["chosen"].any()]
        axes.plot(
            best.index,
            best,
            linestyle="",
            marker=style.marker,
            markersize=7,
            color=style.colour,
            markeredgecolor="white",
            markeredgewidth=0.8,
            zorder=4,
        )
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if len(finished):
        limit(axes, 100 * finished["test_accuracy"])
    _collapses_at_the_foot(axes, rows[rows["status"] == "collapsed"])
    axes.set(xlabel="learning rate", ylabel="test accuracy (%)")


def _collapses_at_the_foot(axes: Axes, rows: pd.DataFrame) -> None:
    """An x per collapsed run; those of one learning rate stand side by side."""
    foot = axes.get_ylim()[0]
    for _, at_rate in rows.groupby("lr"):
        for i, row in enumerate(at_rate.to_dict("records")):
            line = Line2D(
                [row["lr"] * 1.08 ** (i - (len(at_rate) - 1) / 2)],
                [foot],
                linestyle="",
                marker="x",
                markersize=5.5,
                markeredgewidth=1.5,
                color=look(row["method"]).colour,
                clip_on=False,
                zorder=5,
            )
            name_line(
                line, row["method"], f"{look(row['method']).label}, lr {row['lr']:g}, collapsed"
            )
            axes.add_line(line)
    if len(rows):
        axes.autoscale_view(scaley=False)
