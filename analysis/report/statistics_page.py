"""What the numbers can say about the methods, and what they cannot: the paper's own, or those of new runs.

    python -m analysis audit                             Tables 11, 1 and 3: results/paper
    python -m analysis compare table1 table3_opt_1_3b    runs of these sweeps: results/local/tables

write statistics.md, differences.csv, tests.csv and ranks.csv and print the conclusions. The page says how each number
is made; analysis/stats/intervals.py has the formulas and their sources.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs.run_file import LogError
from analysis.paper.names import PAPER_MODELS, PAPER_TASKS, method_label
from analysis.paper.printed_numbers import BASELINES, OURS, load
from analysis.report.table import Cell, Column, Table, markdown
from analysis.select import cell_runs, sweep_cells
from analysis.select.cell_runs import choose, fill
from analysis.select.method_scores import (
    ORDER,
    Family,
    measured_cells,
    measured_runs,
    paper_families,
    paper_runs,
)
from analysis.stats.method_comparison import (
    LEVEL,
    cell_tests,
    conclusion,
    paired_differences,
    rank_frame,
    ranks,
)

HOW = """\
**Per task.** Differences of runs that carry the same number, in points of accuracy, with their 95 % percentile
bootstrap interval. Up to 8 runs all resamples are enumerated, so nothing is random; beyond that 10,000 are drawn with
seed 0. With 5 runs the interval is too narrow: for normal values it covers the true mean in about 84 of 100 cases, not
95. Student's interval, which needs normal values and is wider, stands in differences.csv. A paired sign or rank test
of 5 runs has 32 outcomes, the rarest two of which have p = 0.0625: on one task no such test can be significant at 5 %.

**Over cells.** A cell is one task with one model. Wilcoxon's signed-rank test, two-sided and exact (zeros left out,
ties share ranks), and the sign test, each with Holm's correction over all pairs of the family. A collapse (`*`) has
the worst rank in both and is left out of the mean. Both tests take the cells as independent; they share models, data
sets and grids, so that p is smaller than it should be. `noise` counts the differences within 1.96 standard errors of
two independent test samples of that size: the chance of the test examples alone, before any chance of training. Two
methods err on many of the same examples, so that the real standard error is smaller.

**Ranks.** Mean rank over the cells that all methods of the family were run on, 1 the best, a collapse last; Friedman's
test; where it rejects at 5 % on at least 10 cells, Nemenyi's critical difference: methods whose ranks are further apart
differ at 5 %, again as if cells were independent."""


def of_paper(directory: Path) -> list[Path]:
    """Compare the methods by the paper's own numbers; the paths of what was written beside them.

    Raises:
        PaperError: a file cannot be used.
    """
    printed = load(directory)
    return write(directory, "the paper's own numbers", paper_runs(printed), paper_families(printed))


def of_sweeps(
    sweeps: Sequence[str], runs: pd.DataFrame, cache: Path, directory: Path
) -> list[Path]:
    """Compare the methods by the runs of some sweeps; the paths of what was written.

    Raises:
        LogError: a sweep does not exist, one varies more than the method, or no two methods have runs.
    """
    asked = sweep_cells.cells(sweeps, cache)
    varied = asked[asked["variant"] != "{}"]
    if len(varied):
        raise LogError(
            f"{varied['sweep'].iloc[0]} varies {varied['variant'].iloc[0]}, not the method alone: nothing to compare"
        )
    chosen = choose(fill(asked, runs))
    measured = measured_cells(chosen)
    if measured["method"].nunique() < 2:
        makes = ", ".join(f"`{cell_runs.command(name)}`" for name in sweeps)
        raise LogError(
            f"no two methods have a finished run in {', '.join(sweeps)}: {makes} makes them"
        )
    directory.mkdir(parents=True, exist_ok=True)
    families = [Family(", ".join(sweeps), measured, list(ORDER))]
    return write(directory, f"runs of {', '.join(sweeps)}", measured_runs(chosen), families)


def write(directory: Path, title: str, runs: Any, families: list[Family]) -> list[Path]:
    """Write statistics.md and the three csv files, print the conclusion about the first family; the paths."""
    differences = paired_differences(runs, list(ORDER))
    tests = [cell_tests(family.cells, family.methods) for family in families]
    ranked = [_ranked(family) for family in families]
    sentences = [
        conclusion(tests[0], differences, ours, list(BASELINES))
        for ours in OURS
        if ours in set(families[0].cells["method"])
    ]
    for frame, test in zip(families, tests, strict=True):
        test.insert(0, "family", frame.name)
    page = _page(title, sentences, differences, tests, ranked)
    paths = [
        directory / name for name in ("statistics.md", "differences.csv", "tests.csv", "ranks.csv")
    ]
    paths[0].write_text(page, encoding="utf-8", newline="\n")
    for path, frames in zip(paths[1:], ([differences], tests, ranked), strict=True):
        kept = [frame.dropna(axis=1, how="all") for frame in frames if not frame.empty]
        joined = pd.concat(kept, ignore_index=True) if kept else pd.DataFrame()
        joined.to_csv(path, index=False, lineterminator="\n", float_format="%.6g")
    print("\n\n".join(sentences))
    return paths


def _ranked(family: Family) -> pd.DataFrame:
    """The rank frame of a family; empty with fewer than 3 methods or 2 cells that all of them have."""
    try:
        return rank_frame(family.name, *ranks(family.cells, family.methods))
    except ValueError:
        return pd.DataFrame()


def _page(
    title: str,
    sentences: list[str],
    differences: Any,
    tests: list[pd.DataFrame],
    ranked: list[pd.DataFrame],
) -> str:
    parts = [f"# Statistics: {title}\n", *[f"> {sentence}\n" for sentence in sentences], HOW + "\n"]
    if not differences.empty:
        parts += [
            markdown(_differences(rows)) for _, rows in differences.groupby("model", sort=False)
        ]
    for test, rank in zip(tests, ranked, strict=True):
        parts += [markdown(_tests(test)), *_rank_lines(rank), ""]
    return "\n".join(parts)


def _differences(of_model: Any) -> Table:
    """A row per pair in which one of our methods stands, it first; a column per task."""
    tasks = list(dict.fromkeys(of_model["task"]))
    model = str(of_model["model"].iloc[0])
    title = f"Differences per task, {PAPER_MODELS.get(model, model)}, n = {int(of_model['n'].max())} runs"
    content = Table(title, ["pair", *(PAPER_TASKS.get(task, task) for task in tasks)])
    known = {(row["task"], row["first"], row["second"]): row for row in of_model.to_dict("records")}
    for ours in OURS:
        for other in (*BASELINES, "bszo"):
            cells = [_difference(known, task, ours, other) for task in tasks]
            if ours != other and None not in cells:
                content.rows.append([f"{method_label(ours)} − {method_label(other)}", *cells])  # type: ignore[list-item]
    return content


def _difference(known: dict[Any, Any], task: str, ours: str, other: str) -> Cell | None:
    """A difference with its interval, from the row of the pair in either order; None without one."""
    for pair, sign in (((ours, other), 1), ((other, ours), -1)):
        if row := known.get((task, *pair)):
            low, high = sorted((sign * row["low"], sign * row["high"]))
            value = sign * row["difference"]
            return Cell(f"{_signed(value)} [{_signed(low)}, {_signed(high)}]", value)
    return None


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


def _rank_lines(frame: pd.DataFrame) -> list[str]:
    if frame.empty:
        return ["No ranks: they need 3 methods and 2 cells that all of them have."]
    first = frame.iloc[0]
    difference = first["critical_difference"]
    tail = (
        f"critical difference {difference:.2f}"
        if pd.notna(difference)
        else f"no critical difference: Friedman's test does not reject at {LEVEL:.0%}, or there are fewer than 10 cells"
    )
    listed = ", ".join(
        f"{method_label(m)} {r:.2f}"
        for m, r in zip(frame["method"], frame["average_rank"], strict=True)
    )
    return [
        f"Mean ranks over {first['cells']} cells: {listed}; Friedman p = {first['friedman_p']:.2g}; {tail}."
    ]


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")
