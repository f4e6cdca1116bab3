"""The command that writes a study's tables, claims and figures, and prints its accuracies."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from analysis.logs.run_file import LogError
from analysis.report import command
from analysis.report.figures.drawing import write
from analysis.report.study.ablation import ablation_frame, ablation_table
from analysis.report.study.accuracy import accuracy_frame, accuracy_table, grid_frame, grid_table
from analysis.report.study.claims_page import claims_markdown, summary
from analysis.report.study.curves import curves_drawing
from analysis.report.study.larger_eps import eps_frame, eps_table
from analysis.report.study.roundings_figure import roundings_drawing
from analysis.report.study.roundings_page import roundings_markdown
from analysis.report.text_table import TextTable, latex, markdown, show
from analysis.select import study_runs, study_sweeps
from analysis.select.provenance import runs_json
from analysis.select.study_claims import CLAIMS, claims_frame
from analysis.select.study_roundings import Roundings
from analysis.select.study_runs import Study

PIPE_WIDTH = 120  # characters, where there is no terminal to ask


def main(argv: Sequence[str] | None = None) -> int:
    """Write studies and print the paths of their files.

    Returns:
        The exit code: 2, after one sentence on stderr, if the logs cannot be used.
    """
    arguments = _parser().parse_args(argv)
    return command.report(lambda: list(_write_all(arguments)))


def _write_all(arguments: argparse.Namespace) -> Iterator[Path]:
    """Write the studies that were asked for; the path of each file.

    Raises:
        LogError: a study does not exist, or none of its runs has ended.
    """
    frames = command.load(arguments, may_lack=arguments.if_any)
    for name in arguments.studies or study_sweeps.names():
        study = study_runs.load(name, frames, arguments.cache)
        if study.any:
            yield from write_study(study, arguments.results / name)
        elif not arguments.if_any:
            raise LogError(
                f"no run of study {name} has ended among the {len(frames.runs)} W&B runs: "
                f"make them with `python train.py -m sweep={name}`"
            )


def write_study(study: Study, directory: Path) -> list[Path]:
    """Write all files of a study and print its accuracies and what they say; the paths.

    Raises:
        LogError: runs contradict themselves or each other; then nothing has been written.
    """
    accuracy, grid, ablation = accuracy_frame(study), grid_frame(study), ablation_frame(study)
    claims, roundings = claims_frame(study), Roundings(study)
    table = accuracy_table(study, accuracy)
    texts = {
        "accuracy.csv": _csv(accuracy),
        "accuracy.md": markdown(table),
        "accuracy.tex": latex(table),
        "grid.csv": _csv(grid),
        "grid.md": markdown(grid_table(study, grid)),
        "ablation.csv": _csv(ablation),
        "ablation.md": markdown(ablation_table(study, ablation)),
        "claims.csv": _csv(claims),
        "claims.md": claims_markdown(study, claims),
        "roundings.md": roundings_markdown(roundings),
        "provenance.json": provenance(study),
    }
    eps = eps_frame(study)
    if not eps.empty:
        texts |= {"eps.csv": _csv(eps), "eps.md": markdown(eps_table(study, eps))}
    drawings = [curves_drawing(study), roundings_drawing(roundings)]
    if drawings[1] is None:
        texts["roundings.csv"] = _csv(roundings.frame)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8", newline="\n")
    paths = [directory / name for name in texts]
    for drawing in drawings:
        paths += write(drawing, directory) if drawing else []
    _show(table, claims)
    return paths


def provenance(study: Study) -> str:
    """The content of provenance.json: every run of the study, and whether a table shows it as the chosen one."""
    there = study.filled[study.filled["run_id"].isin(study.frames.runs["run_id"])]
    chosen = set(study.chosen["run_id"].dropna())
    cells = [
        {
            "run_id": run_id,
            "sweeps": list(rows["sweep"]),
            "method": rows["optimizer"].iloc[0],
            "precision": rows["precision"].iloc[0],
            "seed": int(rows["seed"].iloc[0]),
            "lr": float(rows["lr"].iloc[0]),
            "status": rows["status"].iloc[0],
            "chosen": run_id in chosen,
        }
        for run_id, rows in there.groupby("run_id", sort=False)
    ]
    runs = study.frames.runs
    return runs_json({"study": study.name}, cells, runs[runs["run_id"].isin(there["run_id"])])


def _csv(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, lineterminator="\n", float_format="%.9g")


def _show(table: TextTable, claims: pd.DataFrame) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    show(table, console)
    console.print()
    for claim, words in CLAIMS.items():
        console.print(Text(f"({claim}) {words}. {summary(claims, claim)}"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.report.study",
        description="A study's accuracies, ablations, claims, roundings and curves, from its W&B run files.",
        epilog="example: python -m analysis.report.study study_tiny --runs out",
    )
    parser.add_argument(
        "studies",
        nargs="*",
        metavar="STUDY",
        help="names of files in conf/sweep that begin with study_ (default: all studies)",
    )
    command.add_sources(parser)
    command.add_results(parser, "the files go to DIR/<study>/")
    parser.add_argument(
        "--if-any", action="store_true", help="leave out studies of which no run has ended"
    )
    return parser


__all__ = ["main", "provenance", "write_study"]
