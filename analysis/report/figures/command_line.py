"""Which figures a sweep has, and the command that writes them."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from rich.progress import track

from analysis.logs.frames import Frames
from analysis.logs.run_file import LogError
from analysis.paper import printed_numbers
from analysis.report import command
from analysis.report.figures import beside_paper, curves, grids
from analysis.report.figures.drawing import Drawing, write
from analysis.report.figures.ranks import rank_plot
from analysis.select import sweep_cells
from analysis.select.cell_runs import fill
from analysis.select.study_sweeps import part_of
from analysis.select.trials import NO_GROUP, History, Trials, of_group, of_sweep


def main(argv: Sequence[str] | None = None) -> int:
    """Write the figures of some sweeps and print the paths of their files.

    Returns:
        The exit code: 2, after one sentence on stderr, if the logs cannot be used.
    """
    arguments = _parser().parse_args(argv)
    return command.report(lambda: list(_write_all(arguments)))


def _write_all(arguments: argparse.Namespace) -> Iterator[Path]:
    """Write the figures that were asked for; the path of each file.

    Raises:
        LogError: a sweep was named, and there is nothing to draw for it.
    """
    frames = command.load(arguments, may_lack=True)
    printed = printed_numbers.load()
    for name in arguments.sweeps or _all(frames):
        try:
            yield from write_sweep(name, frames, printed, arguments.results, arguments.cache)
        except LogError as error:
            if arguments.sweeps:
                raise
            print(f"no figure: {error}")
    yield from write_ranks()


def write_sweep(
    name: str, frames: Frames, printed: printed_numbers.Paper, results: Path, cache: Path
) -> Iterator[Path]:
    """Write a sweep's figures to results/<sweep>/; the path of each file.

    Raises:
        LogError: there is nothing to draw.
    """
    drawings = sweep_drawings(name, trials_of(name, frames, cache), printed)
    if not drawings:
        raise LogError(
            f"no run of sweep {name} among the {len(frames.runs)} W&B runs, and no number of the paper "
            f"stands for it: make them with `python train.py sweep={name}`"
        )
    directory = results / name
    directory.mkdir(parents=True, exist_ok=True)
    for drawing in track(drawings, f"figures of {name}", transient=True):
        yield from write(drawing, directory)


def write_ranks() -> list[Path]:
    """Write the rank plot of the paper's numbers, beside their ranks in results/paper; the paths."""
    ranks = printed_numbers.DIRECTORY / "ranks.csv"
    drawing = rank_plot(pd.read_csv(ranks)) if ranks.is_file() else None
    return write(drawing, ranks.parent) if drawing else []


def _all(frames: Frames) -> list[str]:
    """Every sweep of conf/sweep, and every other W&B group that there is; a study's own page draws its parts."""
    groups = set(frames.runs["group"].replace("", NO_GROUP))
    names = [*sweep_cells.sweep_names(), *sorted(groups - set(sweep_cells.sweep_names()))]
    return [name for name in names if not part_of(name)]


def trials_of(name: str, frames: Frames, cache: Path) -> Trials | None:
    """The runs of a sweep, or of a W&B group that is none; None without any."""
    history = history_of(frames)
    if name not in sweep_cells.sweep_names():
        return of_group(name, frames.runs, history)
    filled = fill(sweep_cells.cells([name], cache), frames.runs)
    return of_sweep(name, filled, frames.runs, history)


def history_of(frames: Frames) -> History:
    """The histories of the frames, as figures ask for them."""
    return frames.history.one


def sweep_drawings(
    sweep: str, there: Trials | None, printed: printed_numbers.Paper
) -> list[Drawing]:
    """Every figure of a sweep that can be drawn from its runs, or from the paper's numbers alone."""
    cells = beside_paper.printed_for(sweep, printed)
    drawings = [beside_paper.ablation(sweep, cells, there)]
    if there is not None:
        drawings += [
            grids.loss_by_rate(there),
            curves.loss_drawing(there),
            *(curves.accuracy_drawing(there, curve) for curve in curves.ACCURACY),
            grids.rate_sensitivity(there),
            curves.signals_drawing(there),
        ]
    drawings.append(beside_paper.efficiency(sweep, cells, there))
    return [drawing for drawing in drawings if drawing is not None]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.report.figures",
        description="Every figure of some sweeps: png, pdf, and the csv behind it.",
        epilog="example: python -m analysis.report.figures quickstart table4 --runs out",
    )
    parser.add_argument(
        "sweeps",
        nargs="*",
        metavar="SWEEP",
        help="names of files in conf/sweep, or of W&B groups (default: all that there are but parts of studies)",
    )
    command.add_sources(parser)
    command.add_results(parser, "the files go to DIR/<sweep>/")
    return parser
