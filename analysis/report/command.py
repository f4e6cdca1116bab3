"""The command lines of the analysis: which runs, where the results go, how it fails."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.logs import sources
from analysis.logs.cloud import REFRESH
from analysis.logs.frames import Frames
from analysis.logs.run_file import LogError
from analysis.paper.printed_numbers import PaperError
from analysis.select.sweep_selection import NoRuns, Selection, select

DEFAULT_RUNS = ["out"]


def run(
    module: str,
    description: str,
    make: Callable[[Selection, Path], list[Path]],
    argv: Sequence[str] | None,
) -> int:
    """Read the runs, make what there is to make, print the paths of its files.

    Args:
        module: as after `python -m`.
        description: for `--help`.
        make: writes results into a directory, which exists, and returns the files' paths.
        argv: arguments; None for those of the process.

    Returns:
        The exit code: 2, after one sentence on stderr, if the logs cannot be used.
    """
    arguments = _parser(module, description).parse_args(argv)

    def work() -> list[Path]:
        try:
            selection = _select(arguments)
        except NoRuns:
            if arguments.if_any:
                return []
            raise
        directory = arguments.results / arguments.sweep
        directory.mkdir(parents=True, exist_ok=True)
        return make(selection, directory)

    return report(work)


def report(work: Callable[[], list[Path]]) -> int:
    """Do some work and print the paths that it returns.

    Returns:
        The exit code: 2, after one sentence on stderr, if the logs cannot be used or a file not be written.
    """
    try:
        paths = work()
    except (LogError, PaperError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    for path in paths:
        print(path)
    return 0


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where runs are read: --runs, --cache and --refresh."""
    parser.add_argument(
        "--runs",
        nargs="+",
        default=DEFAULT_RUNS,
        metavar="SOURCE",
        help="directories below which W&B run files are searched, and W&B projects as entity/project (default: out)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=sources.CACHE,
        metavar="DIR",
        help=f"what was read is kept here, so that only changes are read again (default: {sources.CACHE})",
    )
    parser.add_argument(
        "--refresh",
        choices=REFRESH,
        default="auto",
        help="what to ask W&B's cloud again: what may have changed, all, or nothing (default: auto)",
    )


def add_results(parser: argparse.ArgumentParser, content: str) -> None:
    """Add the option --results.

    Args:
        parser: the command's.
        content: what goes where, as "the files go to DIR/<sweep>/".
    """
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results/local"),
        metavar="DIR",
        help=f"{content} (default: results/local)",
    )


def load(arguments: argparse.Namespace, may_lack: bool = False) -> Frames:
    """The runs that the options of `add_sources` name.

    Args:
        arguments: of the command line.
        may_lack: whether there may be no runs yet: no output directory where none was named.

    Raises:
        LogError: see `analysis.logs.sources.load`.
    """
    nothing = may_lack and arguments.runs == DEFAULT_RUNS and not Path(*DEFAULT_RUNS).is_dir()
    places = [] if nothing else arguments.runs
    return sources.load(places, cache_dir=arguments.cache, refresh=arguments.refresh)


def _parser(module: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=f"example: python -m {module} quickstart --runs out --where seed=0",
    )
    parser.add_argument("sweep", help="W&B group of the runs: the name of a file in conf/sweep")
    add_sources(parser)
    add_results(parser, "the files go to DIR/<sweep>/")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs with this configuration, as optimizer.k=2; may be given repeatedly",
    )
    parser.add_argument(
        "--if-any", action="store_true", help="do nothing, and do not fail, if there is no such run"
    )
    return parser


def _select(arguments: argparse.Namespace) -> Selection:
    """The runs that the arguments name.

    Raises:
        LogError: a source does not exist, or see `sources.load` and `select`.
    """
    try:
        directories, projects = sources.split(arguments.runs)
    except LogError as error:
        advice = f"make the runs with `python train.py sweep={arguments.sweep}`"
        raise NoRuns(f"{error}: {advice}") from None
    places = [*directories, *map(Path, projects)]
    return select(load(arguments), arguments.sweep, places, arguments.where)
