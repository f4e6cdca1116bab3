"""Figures that stand beside what the paper prints: ablations, and memory and time per step (its Figure 2).

Measured values are filled, the paper's hollow. Where nothing has been measured, the paper's stand alone and a note
says so.
"""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from analysis.paper.names import method_order, model_label, plain, task_label
from analysis.paper.printed_numbers import Paper
from analysis.report.figures.drawing import Drawing, Panel
from analysis.report.style import MUTED, look
from analysis.select.sweep_selection import ZERO_SHOT
from analysis.select.trials import Trials

# sweep -> table and part where the paper prints its cells
ABLATIONS = {
    "table5_a": (12, "a"),
    "table5_b": (12, "b"),
    "table12_c": (12, "c"),
    "table5_c": (5, "c"),
    "table5_d": (5, "d"),
}
EFFICIENCY = "table4"
GB = 2**30 / 1e9  # GB per GiB: the paper prints GB
QUANTITIES = {"memory_gb": "peak memory (GB)", "step_ms": "time per step (ms)"}
ADAPTIVE = {"with": look("bszo").colour, "without": look("mezo").colour}


def ablation(sweep: str, printed: pd.DataFrame, trials: Trials | None) -> Drawing | None:
    """Accuracy over k, or by task where k does not vary; None for a sweep that is no ablation of the paper.

    Args:
        sweep: its name.
        printed: the paper's cells of it, see `printed_for`.
        trials: its runs; None without any.
    """
    if sweep not in ABLATIONS:
        return None
    data = pd.concat([_printed_rows(printed), _measured_rows(trials, printed)], ignore_index=True)
    over_k = printed["k"].nunique() > 1
    if over_k:
        panels = [
            Panel(
                task_label(str(task)), partial(_draw_over_k, rows=rows), _facet(trials, str(task))
            )
            for task, rows in data.groupby("task", sort=False)
        ]
    else:
        panels = [Panel("accuracy by task", partial(_draw_by_task, rows=data), {})]
    title = f"{sweep}: accuracy over k" if over_k else f"{sweep}: with and without adaptive noise"
    handles = _ablation_handles(data)
    measured = data[data["source"] == "measured"]
    seeds = measured.groupby(["task", "k", "adaptive_noise"], dropna=False)["seed"].nunique()
    notes = [
        "Test accuracy at the chosen learning rate; every seed is a dot, the line their mean. Hollow: the paper."
        if len(measured)
        else "Nothing of this has been measured yet: what is drawn is what the paper prints.",
        *([f"Seeds per point: {seeds.min()} to {seeds.max()}."] if len(seeds) else []),
        *(trials.notes if trials else ()),
    ]
    columns = min(3, len(panels))
    return Drawing("ablation", title, panels, handles, data, notes, columns)


def efficiency(sweep: str, printed: pd.DataFrame, trials: Trials | None) -> Drawing | None:
    """Memory and time per step by model and method; the paper's beside them for its own sweep.

    Args:
        sweep: its name.
        printed: the paper's cells of it, see `printed_for`.
        trials: the sweep's runs; None without any.

    Returns:
        None where there is nothing to draw.
    """
    pieces = [_measured_efficiency(trials)]
    if sweep == EFFICIENCY:
        rows = printed[["model", "method", "quantity", "value"]]
        pieces.insert(0, rows.assign(source="paper"))
    data = pd.concat([piece for piece in pieces if len(piece)] or pieces, ignore_index=True)
    if data.empty:
        return None
    panels = [
        Panel(label, partial(_draw_bars, rows=data[data["quantity"] == quantity], label=label), {})
        for quantity, label in QUANTITIES.items()
        if (data["quantity"] == quantity).any()
    ]
    methods = sorted(data["method"].unique(), key=method_order)
    handles = [
        Patch(color=look(m).colour, label=look(m).label, gid=f"key|{plain(m)}") for m in methods
    ]
    has = {source: bool((data["source"] == source).any()) for source in ("paper", "measured")}
    if has["paper"]:
        handles.append(Patch(facecolor="none", edgecolor=MUTED, label="the paper, on an H200"))
    notes = []
    if has["measured"]:
        devices = sorted({str(d) for d in data["device"].dropna()}) if "device" in data else []
        notes.append(f"Measured on {', '.join(devices)}: medians over the sweep's runs.")
        if any(device.startswith("cpu") for device in devices):
            notes.append("On a CPU, memory is the peak of the whole process, libraries included.")
    else:
        notes.append(
            "Nothing of this has been measured yet: what is drawn is what the paper prints."
        )
    notes += list(trials.notes if trials else ())
    title = f"{sweep}: memory and time per step"
    return Drawing("efficiency", title, panels, handles, data, notes, columns=2)


def _printed_rows(printed: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "source": "paper",
            "task": printed["task"],
            "k": pd.to_numeric(printed["k"], errors="coerce"),
            "adaptive_noise": printed["adaptive_noise"],
            "accuracy": printed["value"] / 100,
        }
    )


def _measured_rows(trials: Trials | None, printed: pd.DataFrame) -> pd.DataFrame:
    """The chosen runs of BSZO; what the sweep does not vary is as the paper's cells have it."""
    columns = ["source", "task", "k", "adaptive_noise", "accuracy", "seed", "run_id"]
    if trials is None:
        return pd.DataFrame(columns=columns)
    rows = trials.table[trials.table["chosen"]]
    fixed = rows["adaptive_noise"]
    if printed["adaptive_noise"].nunique() == 1:
        fixed = pd.Series(float(printed["adaptive_noise"].iloc[0] == "with"), index=rows.index)
    k = rows["k"]
    if printed["k"].nunique() == 1:
        k = pd.Series(float(printed["k"].iloc[0]), index=rows.index)
    return pd.DataFrame(
        {
            "source": "measured",
            "task": rows["task"],
            "k": k,
            "adaptive_noise": np.where(fixed.fillna(1) == 0, "without", "with"),
            "accuracy": rows["test_accuracy"],
            "seed": rows["seed"],
            "run_id": rows["run_id"],
        }
    )


def _facet(trials: Trials | None, task: str) -> dict[str, str]:
    if trials is None:
        return {"task": task}
    return next((facet for facet, _ in trials.facets() if facet["task"] == task), {"task": task})


def _ablation_handles(data: pd.DataFrame) -> list[Line2D]:
    handles = [
        Line2D(
            [], [], color=ADAPTIVE[value], marker=_marker(value), label=f"{value} adaptive noise"
        )
        for value in ADAPTIVE
        if (data["adaptive_noise"] == value).any()
    ]
    hollow = Line2D([], [], color=MUTED, marker="o", markerfacecolor="white", linestyle=(0, (3, 2)))
    hollow.set_label("the paper")
    return [*handles, hollow]


def _marker(adaptive: str) -> str:
    return {"with": "D", "without": "o"}[adaptive]


def _draw_over_k(axes: Axes, rows: pd.DataFrame) -> None:
    for (source, adaptive), part in rows.groupby(["source", "adaptive_noise"], sort=False):
        colour = ADAPTIVE[str(adaptive)]
        mean = 100 * part.groupby("k")["accuracy"].mean()
        paper = source == "paper"
        (line,) = axes.plot(
            mean.index,
            mean,
            color=colour,
            marker=_marker(str(adaptive)),
            linestyle=(0, (3, 2)) if paper else "-",
            markerfacecolor="white" if paper else colour,
            linewidth=1.0 if paper else 1.6,
            markersize=4.5,
        )
        line.set_gid(f"line|bszo|{'the paper' if paper else 'measured'}, {adaptive} adaptive noise")
        if not paper:
            axes.plot(part["k"], 100 * part["accuracy"], ".", color=colour, alpha=0.6)
    axes.set_xscale("log", base=2)
    ks = sorted(rows["k"].dropna().unique())
    axes.xaxis.set_major_locator(FixedLocator(ks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{k:g}" for k in ks])
    axes.set(xlabel="subspace dimension k", ylabel="test accuracy (%)")


def _draw_by_task(axes: Axes, rows: pd.DataFrame) -> None:
    """A dot per task, source and setting; the two settings of a source are joined."""
    tasks = list(dict.fromkeys(rows["task"]))
    for i, task in enumerate(tasks):
        for source, shift in (("measured", -0.12), ("paper", 0.12)):
            part = rows[(rows["task"] == task) & (rows["source"] == source)]
            mean = 100 * part.groupby("adaptive_noise")["accuracy"].mean()
            if mean.empty:
                continue
            axes.plot([i + shift] * len(mean), mean, color=MUTED, linewidth=0.8)
            for adaptive, value in mean.items():
                colour = ADAPTIVE[str(adaptive)]
                (dot,) = axes.plot(
                    [i + shift],
                    [value],
                    linestyle="",
                    marker=_marker(str(adaptive)),
                    color=colour,
                    markerfacecolor="white" if source == "paper" else colour,
                    markersize=5,
                )
                dot.set_gid(f"line|bszo|{task_label(task)}, {source}, {adaptive} adaptive noise")
    axes.set_xticks(range(len(tasks)), [task_label(task) for task in tasks])
    axes.set(ylabel="test accuracy (%)", xlim=(-0.5, len(tasks) - 0.5))


def _measured_efficiency(trials: Trials | None) -> pd.DataFrame:
    """Median memory and time of each model and method that trains."""
    if trials is None:
        return pd.DataFrame()
    table = trials.table[trials.table["method"] != ZERO_SHOT]
    table = table.assign(memory_gb=table["peak_gib"] * GB, model=_places(table))
    long = table.melt(
        ["model", "method", "device"], list(QUANTITIES), var_name="quantity", value_name="value"
    )
    keys = ["model", "method", "quantity", "device"]
    medians = long.dropna(subset="value").groupby(keys, sort=False)["value"].agg(["median", "size"])
    medians = medians.reset_index().rename(columns={"median": "value", "size": "runs"})
    return medians.assign(source="measured")


def _places(table: pd.DataFrame) -> pd.Series:
    """What stands below a group of bars: the model, with its precision where it ran in several."""
    several = table.groupby("model")["precision"].transform("nunique") > 1
    return table["model"].where(~several, table["model"] + " " + table["precision"])


def _draw_bars(axes: Axes, rows: pd.DataFrame, label: str) -> None:
    """Bars by model, within it by method; of a method the paper's hollow one stands to the right."""
    models = list(dict.fromkeys(rows["model"]))
    methods = sorted(rows["method"].unique(), key=method_order)
    sources = [source for source in ("measured", "paper") if (rows["source"] == source).any()]
    bar = 0.84 / (len(methods) * len(sources))
    for row in rows.to_dict("records"):
        place = methods.index(row["method"]) * len(sources) + sources.index(row["source"])
        x = models.index(row["model"]) - 0.42 + (place + 0.5) * bar
        style = look(row["method"])
        paper = row["source"] == "paper"
        (patch,) = axes.bar(
            x,
            row["value"],
            width=bar * 0.88,
            facecolor="none" if paper else style.colour,
            edgecolor=style.colour,
            linewidth=1.0,
            hatch=None,
        )
        words = f"{style.label}, {model_label(row['model'])}, {row['source']}: {row['value']:.4g}"
        patch.set_gid(f"bar|{plain(row['method'])}|{words}")
        _write_value(axes, x, row["value"], len(rows))
    axes.set_xticks(range(len(models)), [model_label(model) for model in models])
    axes.set(ylabel=label, xlim=(-0.5, len(models) - 0.5))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=False, axis="x")


def _write_value(axes: Axes, x: float, value: float, among: int) -> None:
    text = f"{value:.1f}" if value < 100 else f"{value:.0f}"
    axes.annotate(
        text,
        (x, value),
        textcoords="offset points",
        xytext=(0, 1.5),
        ha="center",
        fontsize=5.5 if among <= 16 else 4.5,
        rotation=0 if among <= 8 else 90,
        color=MUTED,
    )


def printed_for(sweep: str, paper: Paper) -> pd.DataFrame:
    """The printed numbers that a sweep's figure stands beside; empty where there are none."""
    if sweep == EFFICIENCY:
        return paper.rows("table4")
    table, part = ABLATIONS.get(sweep, (0, ""))
    return paper.cells[(paper.cells["table"] == table) & (paper.cells["part"] == part)]
