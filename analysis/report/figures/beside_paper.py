"""Figures that stand beside what the paper prints: ablations, memory and time per step, mean ranks.

Measured values are filled, the paper's hollow. Where nothing has been measured, the paper's stand alone.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import UNTRAINED, method_order, model_label, named, task_label
from analysis.paper.printed_numbers import Paper
from analysis.report.figures.drawing import Figure, Panel, Series
from analysis.report.style import look
from analysis.select.paper_cells import GIB_IN_GB, SWEEP_OF
from analysis.select.trials import Trials

ABLATIONS = {sweep: (table, part) for (table, part, _), sweep in SWEEP_OF.items() if part}
"""Sweep -> table and part where the paper prints its cells, Table 12 rather than 5."""
EFFICIENCY = "table4"
QUANTITIES = {"memory_gb": "peak memory (GB)", "step_ms": "time per step (ms)"}
NOISE = {"with": named("bszo", "with adaptive noise"), "without": named("mezo", "without")}
ACCURACY = "test accuracy (%)"
NOTHING = "Nothing of this has been measured yet: what is drawn is what the paper prints."


def paper_figures(sweep: str, paper: Paper, trials: Trials | None) -> list[Figure]:
    """The figures of a sweep that stand beside the paper's numbers; without runs the paper's alone."""
    made = [ablation(sweep, paper, trials)] if sweep in ABLATIONS else []
    return [*made, *efficiency(sweep, paper, trials)]


def ablation(sweep: str, paper: Paper, trials: Trials | None) -> Figure:
    """Accuracy over k, or by task where k does not vary."""
    table, part = ABLATIONS[sweep]
    printed = paper.cells[(paper.cells["table"] == table) & (paper.cells["part"] == part)]
    data = pd.concat([_printed_rows(printed), _measured_rows(trials, printed)], ignore_index=True)
    tasks = {str(task): rows for task, rows in data.groupby("task", sort=False)}
    if printed["k"].nunique() > 1:
        ks = {float(k): f"{k:g}" for k in sorted(data["k"].dropna().unique())}
        words, more = ("subspace dimension k", ACCURACY), dict[str, Any](xlog=True, xticks=ks)
        panels = [
            Panel(task_label(task), *words, list(_over(rows, "k")), {"task": task}, **more)
            for task, rows in tasks.items()
        ]
    else:
        series: list[Series] = []
        for i, (task, rows) in enumerate(tasks.items()):
            x = np.where(rows["source"] == "paper", i + 0.12, i - 0.12)
            series += _over(rows.assign(x=x), "x", f"{task_label(task)}, ")
        ticks = {float(i): task_label(task) for i, task in enumerate(tasks)}
        panels = [Panel("with and without adaptive noise", "", ACCURACY, series, xticks=ticks)]
    said = "Test accuracy at the chosen learning rate; whiskers: smallest and largest seed."
    measured = (data["source"] == "measured").any()
    notes = [said if measured else NOTHING, *(trials.notes if trials else ())]
    return Figure("ablation", f"{sweep}: ablation of BSZO", panels, notes, min(3, len(panels)))


def efficiency(sweep: str, paper: Paper, trials: Trials | None) -> list[Figure]:
    """Memory and time per step by model and method, the paper's beside them for its own sweep; none without numbers."""
    data = _measured_efficiency(trials)
    if sweep == EFFICIENCY:
        rows = paper.rows("table4")[["model", "method", "quantity", "value"]]
        parts = [rows.assign(source="paper"), *([data] if len(data) else [])]
        data = pd.concat(parts, ignore_index=True)
    if data.empty:
        return []
    panels = [_bars(rows, QUANTITIES[str(name)]) for name, rows in data.groupby("quantity")]
    devices = sorted(data["device"].dropna().unique()) if "device" in data else []
    notes = [f"Measured on {', '.join(devices)}: medians over the sweep's runs."]
    notes = notes if devices else [NOTHING]
    if any(device.startswith("cpu") for device in devices):
        notes.append("On a CPU, memory is the peak of the whole process, libraries included.")
    notes += ["Hollow: the paper, on an H200."] * (sweep == EFFICIENCY)
    notes += trials.notes if trials else ()
    return [Figure("efficiency", f"{sweep}: memory and time per step", panels, notes, 2)]


def ranks_figure(ranks: pd.DataFrame) -> Figure:
    """Mean ranks of the methods, a panel per family of cells.

    Args:
        ranks: `family`, `method`, `average_rank`, `cells`, `critical_difference` (NaN where Friedman's test does not
            reject, or the cells are too few).
    """
    notes = [
        "Rank 1 is the best of a cell; a collapse is the last. The bar is Nemenyi's critical difference, drawn from "
        "the best method: methods whose dots it covers do not differ from it at 5 %. Cells are taken as independent; "
        "they share models, data and grids, so that it is too short."
    ]
    families = ranks.groupby("family", sort=False)
    panels = [_rank_panel(str(family), rows) for family, rows in families]
    title = "The paper's numbers: mean rank over model × task cells"
    return Figure("rank_plot", title, panels, notes, 2)


def _rank_panel(family: str, rows: pd.DataFrame) -> Panel:
    ordered = rows.sort_values("average_rank", kind="stable").to_dict("records")
    best, distance = ordered[0]["average_rank"], ordered[0]["critical_difference"]
    series, ticks, top = [], {}, len(ordered) - 0.4
    if pd.notna(distance):
        ends, words = [best, best + distance], f"critical difference {distance:.2f}"
        band: dict[str, Any] = {"low": [-0.7] * 2, "high": [top] * 2}
        series.append(Series("reference", ends, [-0.7, -0.7], words, **band))
    for place, row in enumerate(ordered):
        ticks[float(place)] = label = look(row["method"]).label
        words = f"{label}: mean rank {row['average_rank']:.2f}"
        series.append(Series(row["method"], [row["average_rank"]], [place], words, "points"))
    title = f"{family}: {ordered[0]['cells']} cells"
    return Panel(title, "mean rank", "", series, yticks=ticks, ylim=(-1.1, top))


def _printed_rows(printed: pd.DataFrame) -> pd.DataFrame:
    k, noise = pd.to_numeric(printed["k"], errors="coerce"), printed["adaptive_noise"]
    known = {"task": printed["task"], "k": k, "noise": noise, "accuracy": printed["value"] / 100}
    return pd.DataFrame({"source": "paper", **known, "run_id": ""})


def _measured_rows(trials: Trials | None, printed: pd.DataFrame) -> pd.DataFrame:
    """The chosen runs of BSZO; what the sweep does not vary is as the paper's cells have it."""
    if trials is None:
        return pd.DataFrame(columns=["source", "task", "k", "noise", "accuracy", "run_id"])
    rows = trials.table[trials.table["chosen"]]
    noise = np.where(rows["adaptive_noise"].fillna(1) == 0, "without", "with")
    if printed["adaptive_noise"].nunique() == 1:
        noise[:] = printed["adaptive_noise"].iloc[0]
    k = rows["k"] if printed["k"].nunique() > 1 else float(pd.to_numeric(printed["k"]).iloc[0])
    rows = rows.assign(source="measured", k=k, noise=noise, accuracy=rows["test_accuracy"])
    return rows[["source", "task", "k", "noise", "accuracy", "run_id"]]


def _over(data: pd.DataFrame, x: str, prefix: str = "") -> Iterator[Series]:
    """A line per source and setting of adaptive noise: the mean over the seeds."""
    for (source, noise), rows in data.groupby(["source", "noise"], sort=False):
        scores = 100 * rows.groupby(x)["accuracy"].agg(["mean", "min", "max"])
        printed = source == "paper"
        words = f"{prefix}{'the paper' if printed else 'measured'}, {noise} adaptive noise"
        points = NOISE[str(noise)], scores.index.to_numpy(float), scores["mean"].to_numpy(), words
        about: dict[str, Any] = {"hollow": printed, "runs": " ".join(rows["run_id"]).strip()}
        if len(scores) > 1:
            yield Series(*points, **about)
        if not printed:
            about |= {"low": scores["min"].to_numpy(), "high": scores["max"].to_numpy()}
        yield Series(*points, "points", **about)


def _measured_efficiency(trials: Trials | None) -> pd.DataFrame:
    """Median memory and time of each model and method that trains."""
    if trials is None:
        return pd.DataFrame()
    table = trials.table[~trials.table["method"].isin(UNTRAINED)]
    several = table.groupby("model")["precision"].transform("nunique") > 1
    model = table["model"].where(~several, table["model"] + " " + table["precision"])
    table = table.assign(memory_gb=table["peak_gib"] * GIB_IN_GB, model=model)
    keys = ["model", "method", "quantity", "device"]
    long = table.melt(["model", "method", "device"], list(QUANTITIES), "quantity", "value")
    medians = long.dropna(subset="value").groupby(keys, sort=False)["value"].median()
    return medians.reset_index().assign(source="measured")


def _bars(rows: pd.DataFrame, label: str) -> Panel:
    """Bars by model, within it by method; the paper's hollow one to the right of the measured one."""
    models = list(rows["model"].unique())
    methods = sorted(rows["method"].unique(), key=method_order)
    sources = sorted(rows["source"].unique())  # measured, paper
    width = 0.84 / (len(methods) * len(sources))
    series = []
    for row in rows.to_dict("records"):
        place = methods.index(row["method"]) * len(sources) + sources.index(row["source"])
        x = models.index(row["model"]) - 0.42 + (place + 0.5) * width
        words = f"{look(row['method']).label}, {model_label(row['model'])}, {row['source']}"
        hollow = row["source"] == "paper"
        series.append(Series(row["method"], [x], [row["value"]], words, "bar", hollow=hollow))
    ticks = {float(i): model_label(model) for i, model in enumerate(models)}
    return Panel(label, "", label, series, xticks=ticks, width=width)
