"""The figures of a sweep's runs: loss, validation over steps, passes and time, BSZO's signals, learning rates.

Histories are drawn at a length that a figure can show: thinned, and averaged over runs that differ in nothing but the
seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.fragments import ENDED
from analysis.logs.frames import Frames
from analysis.logs.history import EVALUATED, History, evaluations
from analysis.paper.names import (
    UNTRAINED,
    method_label,
    method_order,
    model_label,
    task_label,
    uncounted,
    variant_name,
)
from analysis.report.figures.drawing import RAMP, RATE, Figure, limits, line_panels, points
from analysis.select.cells import shown

BINS = 60  # pieces of a history, of a panel's width
WINDOW = 5  # pieces that a running mean is over
LOSS = "train/loss"
SIGNALS = {
    "optim/noise_std": "noise σₑ",
    "optim/shrinkage": "shrinkage γ",
    "optim/residual_rms": "residual, rms",
    "optim/posterior_trace": "posterior trace",
    "optim/mu_norm": "‖μ‖",
}
SAME = ["panel", "method", "lr", "variant"]
"""Runs that agree in these differ in nothing but the seed."""
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
SEEDS = "Lines: mean over runs that differ in nothing but the seed; shaded: from the smallest to the largest."
NEWEST = 24  # single runs that are drawn


@dataclass(frozen=True)
class Histories:
    """What a sweep's runs logged, at a figure's length."""

    each: int  # Steps of a piece
    # Key -> run id -> see `thin`, of the training loss see `running_mean`
    thinned: dict[str, dict[str, pd.DataFrame]]
    evaluations: dict[str, pd.DataFrame]  # Run id -> see `evaluations`


def sweep_figures(cells: pd.DataFrame, logged: History) -> list[Figure]:
    """Every figure that the runs of a sweep can fill."""
    rows = shown(cells)
    if rows.empty:
        return []
    histories, sweep = read(rows, logged), cells["sweep"].iloc[0]
    loss, signals = (_chosen(rows, histories, keys) for keys in ({LOSS: NATS}, SIGNALS))
    notes, medians = (_line_notes(rows, histories.each, of) for of in ("running mean", "median"))
    words = f"{sweep}: training loss at the chosen learning rates"
    own = f"{sweep}: BSZO's own signals"
    made = [
        loss_by_rate(rows, histories),
        _figure("train_loss", words, loss, notes),
        *(validation(rows, histories, name) for name in AXES),
        rates(rows),
        _figure("signals", own, signals, medians, decades=True),
    ]
    return [figure for figure in made if figure is not None]


def _figure(
    name: str, title: str, series: Sequence[pd.DataFrame], notes: Sequence[str], **looks: Any
) -> Figure | None:
    """A figure of some series; None without any."""
    if not series:
        return None
    frame = pd.concat(series, ignore_index=True)
    larger = "chosen" if name == "lr" else "best step"
    meant = [f"Larger mark: {larger}."] * bool(frame["best"].any())
    meant += ["×: a collapsed run."] * bool((frame["shape"] == "cross").any())
    said = [" ".join(meant)] * bool(meant)
    return Figure(name, title, frame, line_panels(frame, **looks), [*said, *notes])


def validation(table: pd.DataFrame, histories: Histories, name: str) -> Figure | None:
    """Validation of the chosen runs: a panel of accuracies, then one of losses, per facet that was evaluated twice."""
    column, xlabel = AXES[name]
    drawn = table[table["chosen"] | table["method"].isin(UNTRAINED)]
    series: list[pd.DataFrame] = []
    for height, (label, factor) in HEIGHTS.items():
        said = {"quantity": label, "axis": xlabel}
        for _, rows in drawn.groupby("panel", sort=False):
            found: list[pd.DataFrame] = []
            for runs, line in _lines(rows, histories.evaluations, column, height, factor, **said):
                if not np.isfinite(line["y"]).any():
                    continue
                if runs["method"].iloc[0] in UNTRAINED:
                    level: dict[str, Any] = {"shape": "level", "low": None, "high": None, "x": 0.0}
                    found.append(line.head(1).assign(**level, y=line["y"].mean()))
                elif len(line) > 1:
                    best = line["step"] == runs["best_step"].iloc[0]
                    found.append(line.assign(best=best & (len(runs) == 1)))
            if any(line["shape"].iloc[0] == "line" for line in found):
                series += found
    sizes = ", ".join(f"{int(n):,d}" for n in sorted(drawn["val_n"].dropna().unique()))
    notes = [
        f"Chosen learning rates only; {sizes} validation examples.",
        *[SEEDS] * bool(drawn.duplicated(SAME).any()),
        *(f"{note}." for note in uncounted(drawn["method"]) if name == "forwards"),
    ]
    title = f"{table['sweep'].iloc[0]}: validation over {'steps' if xlabel == STEP else xlabel}"
    return _figure(f"validation_{name}", title, series, notes)


def loss_by_rate(table: pd.DataFrame, histories: Histories) -> Figure | None:
    """The paper's Figure 1: a panel per method with every learning rate, then one with each method's chosen rate.

    With several precisions a column each. None where the facets differ in something else, or nothing is trained.
    """
    table = table[~table["method"].isin(UNTRAINED)]
    if len(table[["model", "task", "apart"]].drop_duplicates()) != 1:
        return None
    lines = list(_loss_lines(table, histories.thinned[LOSS]))
    if not lines:
        return None
    whole = [(runs, line) for runs, line in lines if line["shape"].iloc[0] == "line"]
    chosen = [line for runs, line in whole if runs["chosen"].any()]
    starts = [line.head(1) for _, line in whole]
    view = limits(pd.concat([*(chosen or [line for _, line in whole]), *starts]))
    series = []
    for method in (*sorted(table["method"].unique(), key=method_order), None):
        for precision in table["precision"].unique():
            mine = [pair for pair in lines if pair[0]["precision"].iloc[0] == precision]
            title = "each method at its chosen rate"
            there = [line for rows, line in mine if rows["chosen"].any()]
            if method is not None:
                title, there = f"{method_label(method)}, every rate", _by_rate(mine, method)
            title += f" · {precision}" * (table["precision"].nunique() > 1)
            series += [line.assign(panel=title) for line in there]
    notes = [
        *_line_notes(table, histories.each),
        "Per method: the larger the learning rate, the darker the line; at the right edge the rates in the order of "
        "the lines' ends, ← the chosen one. A collapse lies at its line's end, or at the panel's edge.",
    ]
    title = f"{table['sweep'].iloc[0]}: training loss at every learning rate"
    return _figure("loss_by_rate", title, series, notes, view=view)


def rates(table: pd.DataFrame) -> Figure | None:
    """Test accuracy over the learning rate; None where no method has two rates."""
    trained = table[~table["method"].isin(UNTRAINED)]
    ended = trained[trained["status"] != "unfinished"]
    if not (ended["measure"] == "accuracy").all():
        return None
    if ended.empty or ended.groupby(["panel", "method"])["lr"].nunique().max() < 2:
        return None
    panels = table[table["panel"].isin(trained["panel"])].groupby("panel", sort=False)
    series = [line for _, rows in panels for line in _rate_series(rows)]
    seeds = int(ended.groupby(["panel", "method", "lr"])["run_id"].nunique().max())
    said = "Test accuracy at the step of best validation accuracy, which chooses the rate."
    more_seeds = f" Lines: mean of up to {seeds} seeds, bars: all of them." * (seeds > 1)
    title = f"{table['sweep'].iloc[0]}: accuracy over the learning rate"
    return _figure("lr", title, series, [said + more_seeds])


def _rate_series(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    panel = {"panel": rows["panel"].iloc[0], "quantity": "test accuracy (%)", "axis": RATE}
    finished = rows[rows["status"] == "finished"]
    for (method, _), of_method in finished.groupby(["method", "variant"], sort=False):
        by_rate = of_method.groupby("lr")
        scores = 100 * by_rate["test_accuracy"].agg(["mean", "min", "max"])
        words = method_label(str(method))
        said: dict[str, Any] = {**panel, "series": words, "runs": " ".join(of_method["run_id"])}
        x, y = scores.index.to_numpy(float), scores["mean"].to_numpy()
        if method in UNTRAINED:
            yield points(str(method), [rows["lr"].max()], y[:1], **said, shape="level")
            continue
        chosen = np.flatnonzero(by_rate["chosen"].any())
        yield points(str(method), x, y, int(chosen[0]) if len(chosen) else None, **said)
        ends: dict[str, Any] = {"low": scores["min"].to_numpy(), "high": scores["max"].to_numpy()}
        if (ends["low"] < ends["high"]).any():
            yield points(str(method), x, y, **said, shape="points", **ends)
    collapsed = rows[rows["status"] == "collapsed"].groupby(["method", "lr"], sort=False)
    for (method, lr), at_rate in collapsed:
        n = len(at_rate)
        places = [lr * 1.08 ** (i - (n - 1) / 2) for i in range(n)]
        words = f"{method_label(str(method))}, lr {lr:g}, collapsed"
        said = {**panel, "series": words, "runs": " ".join(at_rate["run_id"])}
        yield points(str(method), places, [-np.inf] * n, **said, shape="cross")


def _loss_lines(
    table: pd.DataFrame, losses: dict[str, pd.DataFrame]
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """The loss of runs that differ in nothing but the seed, and an x for each that collapsed."""
    for runs, line in _lines(table, losses, "step", "y", quantity=NATS, axis=STEP):
        yield runs, line
        for run_id in runs.loc[runs["status"] == "collapsed", "run_id"]:
            last = losses[run_id].tail(1)
            if len(last):
                at = {"x": last["step"].item(), "y": last["y"].item(), "low": None}
                at |= {"high": None, "shape": "cross", "end": ""}
                yield runs, line.head(1).assign(**at, line=line["line"] + run_id)


def _by_rate(lines: Sequence[tuple[pd.DataFrame, pd.DataFrame]], method: str) -> list[pd.DataFrame]:
    """The lines of one method, coloured by the order of their learning rates."""
    mine = [(rows, line) for rows, line in lines if rows["method"].iloc[0] == method]
    lrs = sorted({float(rows["lr"].iloc[0]) for rows, _ in mine})
    series = []
    for rows, line in mine:
        lr, chosen = float(rows["lr"].iloc[0]), bool(rows["chosen"].any())
        place, of = min(lrs.index(lr), len(RAMP) - 1), min(len(lrs), len(RAMP))
        end = f"{lr:g}" + " ←" * chosen if line["shape"].iloc[0] == "line" else ""
        name = variant_name(method, place, of, f"lr {lr:g}")
        series.append(line.assign(method=name, end=end, low=None, high=None))
    return series


def _chosen(table: pd.DataFrame, histories: Histories, keys: dict[str, str]) -> list[pd.DataFrame]:
    """The lines of the chosen runs, with a panel per key and facet."""
    series = []
    for key, label in keys.items():
        for title, rows in table[table["chosen"]].groupby("panel", sort=False):
            said: dict[str, Any] = {"quantity": label, "axis": STEP}
            said |= {"panel": f"{label} · {title}"} if len(keys) > 1 else {}
            lines = _lines(rows, histories.thinned[key], "step", "y", **said)
            series += [line for _, line in lines]
    return series


def _lines(
    rows: pd.DataFrame,
    pieces: dict[str, pd.DataFrame],
    x: str,
    y: str,
    factor: float = 1,
    **said: Any,
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Runs that differ in nothing but the seed, and the mean line over those with a piece of history."""
    for _, runs in rows.groupby(SAME, sort=False, dropna=False):
        ended = runs[runs["status"].isin(ENDED)]
        runs = ended if len(ended) else runs
        runs = runs[[len(pieces[run_id]) > 0 for run_id in runs["run_id"]]]
        if runs.empty:
            continue
        there = [pieces[run_id] for run_id in runs["run_id"]]
        mean, first, ids = mean_over(there, x, y), runs.iloc[0], " ".join(runs["run_id"])
        words = method_label(first["method"])
        words += "" if first["method"] in UNTRAINED else f", lr {first['lr']:g}"
        words += ", collapsed" * bool((runs["status"] == "collapsed").any())
        words += f", mean of {len(runs)} seeds" if len(runs) > 1 else f", run {ids}"
        known = {"panel": first["panel"], "series": words, "runs": ids} | said
        line = points(first["method"], mean[x], factor * mean[y], **band(mean, factor), **known)
        yield runs, line.assign(step=mean["step"].to_numpy())


def band(mean: pd.DataFrame, factor: float = 1) -> dict[str, Any]:
    """The ends of a band; nothing where every step is a piece of its own."""
    if "low" not in mean or ("n" in mean and (mean["n"] <= 1).all()):
        return {}
    return {end: factor * mean[end].to_numpy() for end in ("low", "high")}


def _line_notes(table: pd.DataFrame, each: int, of: str = "running mean") -> list[str]:
    """How the lines were averaged and thinned."""
    several = table[table["chosen"]].duplicated(SAME).any()
    steps = each if of == "median" else WINDOW * each
    ends = "; shaded: from the smallest to the largest value among them"
    ends = "" if several or of != "median" else ends
    run = f"Each run: {of} of {steps:,d} steps{ends}." if each > 1 else "Every step is drawn."
    return [*[SEEDS] * bool(several), run]


def single_run_figure(frames: Frames) -> list[Figure]:
    """Training loss and validation accuracy of the newest single runs, each a line under its own name."""
    runs, series = frames.single, []
    for row in runs.head(NEWEST).to_dict("records"):
        rows = frames.history.one(row["run_id"], [LOSS, *EVALUATED])
        model, task = (str(row.get(f"{key}.name", "")) for key in ("model", "task"))
        loss, checked = running_mean(rows, LOSS, piece(rows["step"].max())), evaluations(rows)
        words = f"{row['run_id']}, lr {row.get('lr', 0):g} ({row['status']})"
        where = f"{model_label(model)} · {task_label(task)}".strip(" ·")
        for label, line, y in (
            (NATS, loss, loss["y"]),
            (VALIDATION, checked, 100 * checked["accuracy"]),
        ):
            if len(line):
                said: dict[str, Any] = {"panel": where, "quantity": label, "axis": STEP}
                said["series"] = words
                method = str(row.get("optimizer.name", ""))
                series.append(points(method, line["step"], y, **said, runs=row["run_id"]))
    more = f" Drawn: the newest {NEWEST} of {len(runs)}." * (len(runs) > NEWEST)
    window = f"a running mean over {100 * WINDOW // BINS} % of its steps"
    notes = [f"Each line is one run. Training loss: {window}." + more]
    made = _figure("single_runs", "Single runs", series, notes)
    return [made] if made else []


def read(rows: pd.DataFrame, logged: History) -> Histories:
    """Read every run's history once; the signals of the chosen runs alone."""
    each = piece(rows["made_steps"].max())
    thinned: dict[str, dict[str, pd.DataFrame]] = {key: {} for key in (LOSS, *SIGNALS)}
    evaluated = {}
    for run_id, chosen in zip(rows["run_id"], rows["chosen"], strict=True):
        keys = (LOSS, *SIGNALS) if chosen else (LOSS,)
        history = logged.one(run_id, [*keys, *EVALUATED])
        for key in keys:
            thinned[key][run_id] = (running_mean if key == LOSS else thin)(history, key, each)
        evaluated[run_id] = evaluations(history)
    return Histories(each, thinned, evaluated)


def piece(steps: float) -> int:
    """The number of steps of a piece."""
    return max(1, -(-int(steps) // BINS)) if steps == steps else 1


def thin(history: pd.DataFrame, key: str, each: int) -> pd.DataFrame:
    """One row per piece of `each` steps that holds a finite value; step 0, the untrained model, does not count.

    `step` (the middle), `y` (median), `low`, `high` (smallest and largest), `n` (values).
    """
    groups = _pieces(history, key, each)
    parts = {"step": groups["step"].mean(), "y": groups[key].median()}
    parts |= {"low": groups[key].min(), "high": groups[key].max(), "n": groups[key].count()}
    return pd.DataFrame(parts).reset_index(drop=True)


def running_mean(history: pd.DataFrame, key: str, each: int) -> pd.DataFrame:
    """The mean over WINDOW pieces around each piece of `thin`: columns `step` (the middle) and `y`.

    Where `each` is 1 every step stands for itself.
    """
    groups = _pieces(history, key, each)
    window = WINDOW if each > 1 else 1
    sums = groups[key].agg(["sum", "count"]).rolling(window, center=True, min_periods=1).sum()
    frame = pd.DataFrame({"step": groups["step"].mean(), "y": sums["sum"] / sums["count"]})
    return frame.reset_index(drop=True)


def _pieces(history: pd.DataFrame, key: str, each: int) -> Any:
    """The finite values behind step 0, by pieces of `each` steps."""
    rows = history.reindex(columns=["step", key]).astype(float)
    rows = rows[(rows["step"] > 0) & np.isfinite(rows[key])]
    return rows.groupby((rows["step"] - 1) // each)


def mean_over(pieces: Sequence[pd.DataFrame], x: str, y: str) -> pd.DataFrame:
    """The mean of several runs where all of them have a value, `low` and `high` from the smallest to the largest run.

    A frame per run has `step`, x, which is averaged, too, and y; a single one comes back as it is.
    """
    if len(pieces) == 1:
        return pieces[0]
    groups = pd.concat(pieces).groupby("step")
    heights = groups[y].agg(["mean", "min", "max"]).set_axis([y, "low", "high"], axis=1)
    frame = heights.assign(**{x: groups[x].mean()})[groups.size() == len(pieces)]
    return frame.reset_index(drop=x == "step")
