"""What happens during training: loss, accuracy over steps, forward passes and time, and a method's signals.

Each panel is one facet; each method is drawn at its chosen learning rate. With several seeds each seed is
a thin line and their mean, as far as all of them go, a thick one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from analysis.paper.names import plain
from analysis.report.figures.drawing import Drawing, Panel
from analysis.report.figures.thinning import note as thinning_note
from analysis.report.figures.thinning import over_seeds, seeds_note, thin, width
from analysis.report.style import MUTED, look
from analysis.select.evaluations import EVALUATED, evaluations
from analysis.select.sweep_selection import ZERO_SHOT
from analysis.select.trials import FACET, Trials, facet_title

MARKS = 8  # markers along a line
IDENTITY = ("run_id", *FACET, "method", "lr", "seed", "status")
SIGNALS = {
    "optim/noise_std": "noise σₑ",
    "optim/shrinkage": "shrinkage γ",
    "optim/residual_rms": "residual, rms",
    "optim/posterior_trace": "posterior trace",
    "optim/mu_norm": "‖μ‖",
}
ENVELOPES = 8  # runs in a panel that can show theirs
DECADES = 1.5  # a signal that spans more is drawn on a logarithmic scale


@dataclass(frozen=True)
class Curve:
    """What a kind of learning curve shows.

    Attributes:
        name: of the file.
        title: of the figure.
        xlabel: of the horizontal axis.
        x: history of evaluations, with all steps' columns summed up -> horizontal position.
    """

    name: str
    title: str
    xlabel: str
    x: Callable[[pd.DataFrame], pd.Series]


ACCURACY = (
    Curve("accuracy_steps", "Validation accuracy over steps", "step", lambda h: h["step"]),
    Curve(
        "accuracy_forwards",
        "Validation accuracy over forward passes",
        "forward passes (training)",
        lambda h: h["forwards"],
    ),
    Curve(
        "accuracy_time",
        "Validation accuracy over training time",
        "minutes of training steps",
        lambda h: h["minutes"],
    ),
)


def accuracy_drawing(trials: Trials, curve: Curve) -> Drawing | None:
    """Validation accuracy of each method's chosen runs; None where nothing was evaluated twice."""
    drawn = trials.table[trials.table["chosen"] | (trials.table["method"] == ZERO_SHOT)]
    pieces = []
    for row in drawn.to_dict("records"):
        rows = evaluations(trials.history(row["run_id"], EVALUATED))
        rows.insert(0, "x", curve.x(rows))
        pieces.append(_identified(row, rows))
    data = _joined(pieces)
    trained = data[data["method"] != ZERO_SHOT]
    if trained.empty or trained.groupby("run_id").size().max() < 2:
        return None
    panels = _panels(
        trials, data, lambda axes, rows: _draw_accuracy(axes, rows, drawn, curve.xlabel)
    )
    methods = [method for method in trials.methods if method in set(data["method"])]
    handles = [*method_handles(methods), mark_handle("o", "best step")]
    notes = [f"{_seeds_note(trained)}Chosen learning rates only. n = {_validation_n(drawn)}."]
    return Drawing(
        curve.name,
        f"{trials.sweep}: {curve.title[0].lower()}{curve.title[1:]}",
        panels,
        handles,
        data,
        (*notes, *trials.notes),
    )


def loss_drawing(trials: Trials) -> Drawing | None:
    """Training loss of each method's chosen runs, thinned; None where no step was made."""
    return _thinned_drawing(
        trials, "train_loss", "training loss", {"train/loss": "training loss (nats)"}
    )


def signals_drawing(trials: Trials) -> Drawing | None:
    """BSZO's own signals; None where no run logs any."""
    return _thinned_drawing(trials, "signals", "BSZO's own signals", SIGNALS)


def _thinned_drawing(trials: Trials, name: str, title: str, keys: dict[str, str]) -> Drawing | None:
    """One panel per facet and key."""
    drawn = trials.table[trials.table["chosen"]]
    histories = {run_id: trials.history(run_id, list(keys)) for run_id in drawn["run_id"]}
    last = max((int(rows["step"].max()) for rows in histories.values() if len(rows)), default=0)
    pieces = []
    for row in drawn.to_dict("records"):
        for key in keys:
            rows = thin(histories[row["run_id"]], key, width(last))
            rows.insert(0, "key", key)
            pieces.append(_identified(row, rows))
    data = _joined(pieces)
    if data.empty:
        return None
    present = {key: label for key, label in keys.items() if key in set(data["key"])}
    panels = [
        panel
        for key, label in present.items()
        for panel in _panels(
            trials,
            data[data["key"] == key],
            partial(_draw_thinned, label=label, log=_spans_decades(data[data["key"] == key])),
            label if len(present) > 1 else "",
        )
    ]
    methods = [method for method in trials.methods if method in set(data["method"])]
    most = int(data.groupby([*FACET, "key"])["run_id"].nunique().max())
    seeds = int(data.groupby([*FACET, "method"])["run_id"].nunique().max())
    notes = (
        thinning_note(width(last), most <= ENVELOPES),
        *seeds_note(seeds),
        *trials.notes,
    )
    facets = len({tuple(panel.facet.values()) for panel in panels})
    columns = facets if len(present) > 1 and 1 < facets <= 4 else 3
    heading = f"{trials.sweep}: {title}"
    return Drawing(name, heading, panels, method_handles(methods), data, notes, columns)


def _spans_decades(rows: pd.DataFrame) -> bool:
    low, high = rows["median"].min(), rows["median"].max()
    return bool(low > 0 and high / low > 10**DECADES)


def method_handles(methods: Sequence[str]) -> list[Line2D]:
    """Legend entries of methods."""
    return [_method_handle(method) for method in methods]


def mark_handle(marker: str, label: str, **looks: object) -> Line2D:
    """A legend entry of a sign."""
    return Line2D([], [], color=MUTED, linestyle="", marker=marker, label=label, **looks)  # type: ignore[arg-type]


def name_line(line: Line2D, method: str, text: str) -> None:
    """Give a line the words that a page shows when it is pointed at."""
    line.set_gid(f"line|{plain(method)}|{text}")


def _method_handle(method: str) -> Line2D:
    style = look(method)
    return Line2D(
        [],
        [],
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        label=style.label,
        gid=f"key|{plain(method)}",
    )


def _panels(
    trials: Trials,
    data: pd.DataFrame,
    draw: Callable[[Axes, pd.DataFrame], None],
    prefix: str = "",
) -> list[Panel]:
    """A panel per facet that has data."""
    facets = [facet for facet, _ in trials.facets()]
    panels = []
    for facet in facets:
        rows = data[np.logical_and.reduce([data[key] == facet[key] for key in FACET])]
        if rows.empty:
            continue
        title = " · ".join(part for part in (prefix, facet_title(facet, facets)) if part)
        panels.append(Panel(title, partial(draw, rows=rows), facet))  # type: ignore[call-arg]
    return panels


def _draw_accuracy(axes: Axes, rows: pd.DataFrame, drawn: pd.DataFrame, xlabel: str) -> None:
    """Thin lines per seed, thick ones of their mean, a level for zero-shot."""
    best_steps = drawn.set_index("run_id")["best_step"]
    for method, of_method in rows.groupby("method", sort=False):
        style = look(str(method))
        if method == ZERO_SHOT:
            level = 100 * of_method["accuracy"].mean()
            axes.axhline(level, color=style.colour, linestyle=style.line, linewidth=1.2)
            continue
        runs = [run for _, run in of_method.groupby("run_id", sort=False)]
        for run in runs if len(runs) > 1 else ():
            _line(axes, run["x"], 100 * run["accuracy"], run.iloc[0], linewidth=0.6, alpha=0.45)
        mean = _mean(runs)
        words = f"mean of {len(runs)} seeds" if len(runs) > 1 else ""
        every = max(1, len(mean) // MARKS)
        looks = {"marker": style.marker, "markevery": every}
        _line(axes, mean["x"], 100 * mean["accuracy"], runs[0].iloc[0], words, **looks)
        for run in runs if len(runs) == 1 else ():
            best = run[run["step"] == best_steps[run["run_id"].iloc[0]]]
            _best_mark(axes, best, str(method))
    axes.set(xlabel=xlabel, ylabel="validation accuracy (%)")
    axes.set_xlim(left=0)
    if xlabel != ACCURACY[2].xlabel:
        whole_numbers(axes)


def whole_numbers(axes: Axes) -> None:
    """Ticks of a horizontal axis that counts."""
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _best_mark(axes: Axes, best: pd.DataFrame, method: str) -> None:
    axes.plot(
        best["x"],
        100 * best["accuracy"],
        linestyle="",
        marker=look(method).marker,
        markersize=7,
        color=look(method).colour,
        markeredgecolor="white",
        markeredgewidth=0.8,
        zorder=4,
    )


def _line(
    axes: Axes, x: pd.Series, y: pd.Series, row: pd.Series, words: str = "", **looks: object
) -> None:
    """A line in its method's look that names its run."""
    style = look(row["method"])
    (line,) = axes.plot(x, y, color=style.colour, linestyle=style.line, **looks)  # type: ignore[arg-type]
    run = words or f"run {row['run_id']}"
    name_line(line, row["method"], f"{style.label}, lr {row['lr']:g}, {run}")


def _mean(runs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Mean over runs at the steps that all of them have."""
    if len(runs) == 1:
        return runs[0]
    rows = pd.concat(runs)
    groups = rows.groupby("step")
    means = groups[["x", "accuracy"]].mean()
    return means[groups.size() == len(runs)].reset_index()


def _draw_thinned(axes: Axes, rows: pd.DataFrame, label: str, log: bool) -> None:
    """Medians over their envelopes; the view follows the medians."""
    runs = [over_seeds(same) for _, same in rows.groupby(["method", "lr"], sort=False)]
    for run in runs:
        draw_envelope(axes, run, look(run["method"].iloc[0]).colour, opacity(len(runs)))
    for run in runs:
        style = look(run["method"].iloc[0])
        _line(
            axes,
            run["step"],
            run["median"],
            run.iloc[0],
            marker=style.marker,
            markevery=max(1, len(run) // MARKS),
            linewidth=1.2 if len(runs) <= 8 else 0.8,
        )
        mark_collapse(axes, run)
    axes.set(xlabel="step", ylabel=label)
    axes.set_xlim(left=0)
    whole_numbers(axes)
    if log:
        axes.set_yscale("log")
    limit(axes, rows["median"], log)


def draw_envelope(axes: Axes, run: pd.DataFrame, colour: str, opacity: float) -> None:
    """From the smallest to the largest value of each piece; nothing where every step is a piece."""
    if (run["n"] <= 1).all() or not opacity:
        return
    band = axes.fill_between(
        run["step"].to_numpy(),
        run["low"].to_numpy(),
        run["high"].to_numpy(),
        color=colour,
        alpha=opacity,
        linewidth=0,
    )
    band.set_gid(f"band|{plain(run['method'].iloc[0])}")


def opacity(runs: int) -> float:
    """Of the envelopes in a panel; 0 where there are so many runs that they would cover each other."""
    return 0.5 / (3 + runs) if runs <= ENVELOPES else 0.0


def limit(axes: Axes, values: pd.Series, log: bool = False) -> None:
    """Show all medians with room around them; an envelope may leave the panel."""
    low, high = float(values.min()), float(values.max())
    if log and low > 0:
        room = max(high / low, 1.05) ** 0.25
        axes.set_ylim(low / room, high * room)
        return
    room = 0.25 * (high - low) or 0.05 * abs(high) or 0.1
    axes.set_ylim(low - room, high + room)


def mark_collapse(axes: Axes, run: pd.DataFrame) -> None:
    """An x where a collapsed run ends."""
    if run["status"].iloc[0] != "collapsed":
        return
    last = run.iloc[-1]
    axes.plot(
        [last["step"]],
        [last["median"]],
        marker="x",
        markersize=6,
        markeredgewidth=1.6,
        color=look(last["method"]).colour,
        zorder=5,
        clip_on=False,
    )


def _identified(row: dict, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one run, with what the run is in front of them."""
    for key in reversed(IDENTITY):
        rows.insert(0, key, row[key])
    return rows


def _joined(pieces: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [piece for piece in pieces if len(piece)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(IDENTITY))


def _seeds_note(data: pd.DataFrame) -> str:
    """Says how seeds are drawn, where there are several."""
    groups = data.groupby([*FACET, "method"])["run_id"].nunique()
    if groups.max() <= 1:
        return ""
    return f"Up to {groups.max()} seeds per method: thin lines; thick: their mean as far as all go; no best steps. "


def _validation_n(drawn: pd.DataFrame) -> str:
    sizes = sorted({int(n) for n in drawn["val_n"].dropna()})
    return ", ".join(f"{n:,d}" for n in sizes) + " validation examples"
