"""What the numbers can say about the methods, and what they cannot: the paper's own, or those of new runs.

    python -m analysis audit                             Tables 11, 1 and 3: results/paper
    python -m analysis compare table1 table3_opt_1_3b    runs of these sweeps: results/local/tables

write statistics.md, differences.csv, tests.csv and ranks.csv and print the conclusions. The page says how each number
is made; analysis/stats/intervals.py has the formulas and their sources.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs.run_file import LogError
from analysis.paper.names import method_label, model_label, task_label
from analysis.paper.printed_numbers import BASELINES, OURS, load
from analysis.report.markdown import csv, page, write_texts
from analysis.report.table import Cell, Column, Table
from analysis.select import cell_runs, sweep_cells
from analysis.select import method_scores as scores
from analysis.select.cell_runs import fill
from analysis.stats import method_comparison as methods
from analysis.stats.intervals import LEVEL


def of_paper(directory: Path) -> list[Path]:
    """Compare the methods by the paper's own numbers; the paths of what was written beside them."""
    printed = load(directory)
    return write(
        directory,
        "the paper's own numbers",
        scores.paper_runs(printed),
        scores.paper_families(printed),
    )


def of_sweeps(
    sweeps: Sequence[str], runs: pd.DataFrame, cache: Path, directory: Path
) -> list[Path]:
    """Compare the methods by the runs of some sweeps; the paths of what was written."""
    asked = sweep_cells.cells(sweeps, cache)
    varied = asked[asked["variant"] != "{}"]
    if len(varied):
        raise LogError(
            f"{varied['sweep'].iloc[0]} varies {varied['variant'].iloc[0]}, not the method alone: nothing to compare"
        )
    filled = fill(asked, runs)
    measured = scores.measured_cells(filled)
    if measured["method"].nunique() < 2:
        makes = ", ".join(f"`{cell_runs.command(name)}`" for name in sweeps)
        raise LogError(
            f"no two methods have a finished run in {', '.join(sweeps)}: {makes} makes them"
        )
    families = [scores.Family(", ".join(sweeps), measured, list(scores.ORDER))]
    return write(directory, f"runs of {', '.join(sweeps)}", scores.measured_runs(filled), families)


def write(directory: Path, title: str, runs: Any, families: list[scores.Family]) -> list[Path]:
    """Write statistics.md and the three csv files, print the conclusion about the first family; the paths."""
    differences = methods.paired_differences(runs, list(scores.ORDER))
    tests = [methods.cell_tests(family.cells, family.methods) for family in families]
    ranked = [methods.ranks(family.cells, family.methods) for family in families]
    sentences = [
        methods.conclusion(tests[0], differences, ours, list(BASELINES))
        for ours in OURS
        if ours in set(families[0].cells["method"])
    ]
    for family, test, ranks in zip(families, tests, ranked, strict=True):
        test.insert(0, "family", family.name)
        ranks.insert(0, "family", family.name)
    by_model: Any = [] if differences.empty else differences.groupby("model", sort=False)
    text = page(
        "statistics",
        title=title,
        sentences=sentences,
        differences=[_differences(rows) for _, rows in by_model],
        tests=zip(map(_tests, tests), map(_rank_line, ranked), strict=True),
    )
    texts = {"statistics.md": text}
    for name, frames in {"differences": [differences], "tests": tests, "ranks": ranked}.items():
        kept = [frame.dropna(axis=1, how="all") for frame in frames if not frame.empty]
        joined = pd.concat(kept, ignore_index=True) if kept else pd.DataFrame()
        texts[f"{name}.csv"] = csv(joined, "%.6g")
    print("\n\n".join(sentences))
    return write_texts(directory, texts)


def _differences(of_model: Any) -> Table:
    """A row per pair in which one of our methods stands, it first; a column per task."""
    tasks = list(dict.fromkeys(of_model["task"]))
    model = str(of_model["model"].iloc[0])
    title = f"Differences per task, {model_label(model)}, n = {int(of_model['n'].max())} runs"
    content = Table(title, ["pair", *map(task_label, tasks)])
    known = {}
    for row in of_model.to_dict("records"):
        value, low, high = row["difference"], row["low"], row["high"]
        known[row["task"], row["first"], row["second"]] = value, low, high
        known[row["task"], row["second"], row["first"]] = -value, -high, -low
    for ours, other in product(OURS, (*BASELINES, "bszo")):
        found = [known.get((task, ours, other)) for task in tasks]
        if None not in found:
            shown = [(ends[0], *map(_signed, ends)) for ends in found if ends]
            cells = [Cell(f"{mean} [{low}, {high}]", value) for value, mean, low, high in shown]
            content.rows.append([f"{method_label(ours)} − {method_label(other)}", *cells])
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
        "sign p": ("sign_p", ".2g"),
        "Holm ": ("sign_holm", ".2g"),
        "noise": lambda row: f"{row['within_noise']} of {row['cells'] - row['left_out']}",
        "left out": ("left_out", ".0f"),
    }
    return Table.of(str(tests["family"].iloc[0]), tests.to_dict("records"), columns)


def _rank_line(frame: pd.DataFrame) -> str:
    if frame.empty:
        return "No ranks: they need 3 methods and 2 cells that all of them have."
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
