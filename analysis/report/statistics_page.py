"""What the numbers can say about the methods, and what they cannot: the paper's own, or those of new runs.

    python -m analysis.report.statistics_page                                    Tables 11, 1 and 3: results/paper
    python -m analysis.report.statistics_page --sweeps table1 table3_opt_1_3b    runs of these sweeps: results/tables

writes statistics.md, differences.csv, tests.csv and ranks.csv and prints the conclusions. The page says how each number
is made; analysis/stats/intervals.py has the formulas and their sources.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs.run_file import LogError
from analysis.paper.names import PAPER_MODELS, PAPER_TASKS
from analysis.paper.printed_numbers import BASELINES, DIRECTORY, OURS, load
from analysis.report import command
from analysis.report.style import look
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see the module.

    Returns:
        The exit code: 2, after one sentence on stderr, if there is nothing to compare.
    """
    arguments = _parser().parse_args(argv)
    return command.report(lambda: _work(arguments))


def _work(arguments: argparse.Namespace) -> list[Path]:
    """Compare, print the conclusions and write the rest; the paths.

    Raises:
        LogError, PaperError: there is nothing to compare.
    """
    if arguments.sweeps:
        directory = arguments.results / "tables"
        title = f"runs of {', '.join(arguments.sweeps)}"
        runs, families = _measured(arguments)
    else:
        directory, title = arguments.paper, "the paper's own numbers"
        printed = load(arguments.paper)
        runs, families = paper_runs(printed), paper_families(printed)
    directory.mkdir(parents=True, exist_ok=True)
    return write(directory, title, runs, families)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.report.statistics_page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--sweeps",
        nargs="+",
        metavar="NAME",
        help="compare runs of these, instead of the paper's numbers",
    )
    command.add_sources(parser)
    command.add_results(parser, "with --sweeps the results go to DIR/tables/")
    parser.add_argument(
        "--paper",
        type=Path,
        default=DIRECTORY,
        metavar="DIR",
        help="the printed numbers, where their results go (default: results/paper)",
    )
    return parser


def _measured(arguments: argparse.Namespace) -> tuple[pd.DataFrame, list[Family]]:
    """The runs of some sweeps as `analysis.stats.method_comparison` wants them.

    Raises:
        LogError: a sweep or a source does not exist, a sweep varies more than the method, or no two methods have runs.
    """
    asked = sweep_cells.cells(arguments.sweeps, arguments.cache)
    varied = asked[asked["variant"] != "{}"]
    if len(varied):
        raise LogError(
            f"{varied['sweep'].iloc[0]} varies {varied['variant'].iloc[0]}, not the method alone: nothing to compare"
        )
    frames = command.load(arguments)
    chosen = choose(fill(asked, frames.runs))
    runs, measured = measured_runs(chosen), measured_cells(chosen)
    if measured["method"].nunique() < 2:
        makes = ", ".join(f"`{cell_runs.command(name)}`" for name in arguments.sweeps)
        raise LogError(
            f"no two methods have a finished run in {', '.join(arguments.sweeps)}: {makes} makes them"
        )
    return runs, [Family(", ".join(arguments.sweeps), measured, list(ORDER))]


def write(directory: Path, title: str, runs: Any, families: list[Family]) -> list[Path]:
    """Write statistics.md and the three csv files, print the sentences, return the paths.

    Args:
        directory: where; must exist.
        title: of the page.
        runs: see `analysis.stats.method_comparison`.
        families: the first one is what the conclusion is about.
    """
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
    lines = [f"# Statistics: {title}", "", *[f"> {sentence}\n" for sentence in sentences], HOW, ""]
    for model in dict.fromkeys(differences["model"]) if not differences.empty else []:
        of_model = differences[differences["model"] == model]
        n = int(of_model["n"].max())
        lines += [f"## Differences per task, {PAPER_MODELS.get(model, model)}, n = {n} runs", ""]
        lines += [*_difference_lines(of_model), ""]
    for test, rank in zip(tests, ranked, strict=True):
        lines += [
            f"## {test['family'].iloc[0]}",
            "",
            *_test_lines(test),
            "",
            *_rank_lines(rank),
            "",
        ]
    return "\n".join(lines)


def _difference_lines(differences: Any) -> list[str]:
    """A row per pair in which one of our methods stands, it first; a column per task."""
    tasks = list(dict.fromkeys(differences["task"]))
    lines = ["| " + " | ".join(["", *(PAPER_TASKS.get(task, task) for task in tasks)]) + " |"]
    lines += ["| --- |" + " ---: |" * len(tasks)]
    for ours in OURS:
        for other in (*BASELINES, "bszo"):
            if other == ours:
                continue
            cells = []
            for task in tasks:
                of_task = differences[differences["task"] == task]
                for row in of_task.to_dict("records"):
                    sign = {(ours, other): 1, (other, ours): -1}.get((row["first"], row["second"]))
                    if sign:
                        low, high = sorted((sign * row["low"], sign * row["high"]))
                        cells.append(
                            f"{_signed(sign * row['difference'])} [{_signed(low)}, {_signed(high)}]"
                        )
            if len(cells) == len(tasks):
                lines.append(f"| {look(ours).label} − {look(other).label} | {' | '.join(cells)} |")
    return lines


def _test_lines(tests: pd.DataFrame) -> list[str]:
    lines = [
        "| pair | cells | won, tied, lost | mean, points | median "
        "| Wilcoxon p | Holm | sign p | Holm | noise | left out |",
        "| --- |" + " ---: |" * 10,
    ]
    for row in tests.to_dict("records"):
        cells = [
            f"{look(row['first']).label} − {look(row['second']).label}",
            str(row["cells"]),
            f"{row['wins']}, {row['ties']}, {row['losses']}",
            *(_signed(row["mean_difference"]), _signed(row["median_difference"])),
            *(f"{row[key]:.2g}" for key in ("wilcoxon_p", "wilcoxon_holm", "sign_p", "sign_holm")),
            f"{row['within_noise']} of {row['cells'] - row['left_out']}",
            str(row["left_out"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


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
        f"{look(m).label} {r:.2f}"
        for m, r in zip(frame["method"], frame["average_rank"], strict=True)
    )
    return [
        f"Mean ranks over {first['cells']} cells: {listed}; Friedman p = {first['friedman_p']:.2g}; {tail}."
    ]


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")


if __name__ == "__main__":
    sys.exit(main())
