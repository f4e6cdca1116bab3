"""What the paper's printed numbers can say about the methods: Table 11 per task, Tables 1 and 3 over cells.

Writes statistics.md, differences.csv, tests.csv, ranks.csv and the figure of ranks, and prints the conclusions. The
page says how each number is made; method_comparison.py has the formulas and their sources.
"""

from itertools import product
from pathlib import Path

import pandas as pd

from analysis.paper.names import TASKS, method_label, model_label, task_label
from analysis.paper.printed_numbers import AVERAGE, BASELINES, OURS, Paper, load
from analysis.report.figures.vega import write as write_figure
from analysis.report.markdown import csv, page, write_texts
from analysis.report.table import Cell, Column, Table
from analysis.stats.intervals import LEVEL
from tools.audit_paper import method_comparison as methods
from tools.audit_paper.rank_plot import ranks_figure

ORDER = [*OURS, *BASELINES]  # our methods first, so that a positive difference speaks for them


def write(directory: Path) -> list[Path]:
    """Compare the methods by the printed numbers in a directory and print the conclusions; the paths."""
    paper = load(directory)
    runs = paper.rows("table11").rename(columns={"value": "accuracy"})
    differences = methods.paired_differences(runs, ORDER)
    differences.insert(0, "model", runs["model"].iloc[0])
    families = _families(paper)
    tests = [methods.cell_tests(*family) for family in families.values()]
    ranks = [methods.ranks(*family) for family in families.values()]
    sentences = [methods.conclusion(tests[0], differences, ours, list(BASELINES)) for ours in OURS]
    for name, *frames in zip(families, tests, ranks, strict=True):
        for frame in frames:
            frame.insert(0, "family", name)
    text = page(
        "statistics",
        Path(__file__).parent,
        sentences=sentences,
        differences=_differences(differences),
        tests=zip(map(_tests, tests), map(_rank_line, ranks), strict=True),
    )
    texts = {"statistics.md": text, "differences.csv": csv(differences, "%.6g")}
    for name, several in {"tests": tests, "ranks": ranks}.items():
        texts[f"{name}.csv"] = csv(pd.concat(several), "%.6g")
    print("\n\n".join(sentences))
    paths = write_texts(directory, texts)
    figure = ranks_figure(pd.read_csv(directory / "ranks.csv"))  # with the digits of the file
    return [*paths, *write_figure(figure, directory)]


def _families(paper: Paper) -> dict[str, tuple[pd.DataFrame, list[str]]]:
    """Cells and methods that are tested together, under one correction; Mistral-7B lacks MeZO-Adam."""
    cells = paper.cells[paper.cells["task"] != AVERAGE]
    single = (cells["table"] == 3) & (cells["status"] != "absent")
    cells = cells[single | ((cells["table"] == 1) & (cells["quantity"] == "mean"))]
    cells = cells[["table", "model", "task", "method"]].assign(
        accuracy=cells["value"], n=[TASKS[task]["test_size"] for task in cells["task"]]
    )
    without_adam = [method for method in ORDER if method != "mezo_adam"]
    return {
        "Tables 1 and 3, all cells": (cells, ORDER),
        "Tables 1 and 3, without MeZO-Adam": (cells, without_adam),
        "Table 3, without MeZO-Adam": (cells[cells["table"] == 3], without_adam),
    }


def _differences(frame: pd.DataFrame) -> Table:
    """A row per pair in which one of our methods stands, it first; a column per task."""
    tasks = list(dict.fromkeys(frame["task"]))
    model = model_label(frame["model"].iloc[0])
    title = f"Differences per task, {model}, n = {frame['n'].max()} runs"
    content = Table(title, ["pair", *map(task_label, tasks)])
    turned = {
        "first": frame["second"],
        "second": frame["first"],
        "difference": -frame["difference"],
    }
    both = pd.concat([frame, frame.assign(**turned, low=-frame["high"], high=-frame["low"])])
    for pair in [*product(OURS, BASELINES), OURS[::-1]]:
        rows = both[(both["first"] == pair[0]) & (both["second"] == pair[1])]
        cells = [
            Cell(f"{_signed(mean)} [{_signed(low)}, {_signed(high)}]", mean)
            for mean, low, high in rows[["difference", "low", "high"]].to_numpy().tolist()
        ]
        content.rows.append([" − ".join(map(method_label, pair)), *cells])
    return content


def _tests(tests: pd.DataFrame) -> Table:
    def signed(key: str) -> Column:
        return lambda row: Cell(_signed(row[key]), float(row[key]))

    columns: dict[str, Column] = {
        "pair": lambda row: f"{method_label(row['first'])} − {method_label(row['second'])}",
        "cells": ("cells", ".0f"),
        "won, tied, lost": lambda row: f"{row['wins']}, {row['ties']}, {row['losses']}",
        "mean, points": signed("mean_difference"),
        "median": signed("median_difference"),
        "Wilcoxon p": ("wilcoxon_p", ".2g"),
        "Holm": ("wilcoxon_holm", ".2g"),
        "noise": lambda row: f"{row['within_noise']} of {row['cells'] - row['left_out']}",
        "left out": ("left_out", ".0f"),
    }
    return Table.of(str(tests["family"].iloc[0]), tests.to_dict("records"), columns)


def _rank_line(frame: pd.DataFrame) -> str:
    first = frame.iloc[0]
    tail = (
        f"no critical difference: Friedman's test does not reject at {LEVEL:.0%}, or there are fewer than 10 "
        "cells"
        if pd.isna(first["critical_difference"])
        else f"critical difference {first['critical_difference']:.2f}"
    )
    pairs = zip(frame["method"], frame["average_rank"], strict=True)
    listed = ", ".join(f"{method_label(method)} {rank:.2f}" for method, rank in pairs)
    friedman = f"Friedman p = {first['friedman_p']:.2g}"
    return f"Mean ranks over {first['cells']} cells: {listed}; {friedman}; {tail}."


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")
