"""The command line that tables and figures share: which runs, where the results go, how it fails."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.frames import read_frames
from analysis.selection import Selection, select
from analysis.wandb_files import LogError


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
    try:
        selection = _select(arguments)
        directory = arguments.results / arguments.sweep
        directory.mkdir(parents=True, exist_ok=True)
        paths = make(selection, directory)
    except LogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print("\n".join(map(str, paths)))
    return 0


def _parser(module: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=f"example: python -m {module} quickstart --runs out --where seed=0",
    )
    parser.add_argument("sweep", help="W&B group of the runs: the name of a file in conf/sweep")
    parser.add_argument(
        "--runs",
        nargs="+",
        type=Path,
        default=[Path("out")],
        metavar="DIR",
        help="directories below which W&B run files are searched (default: out)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="the files go to DIR/<sweep>/ (default: results)",
    )
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs with this configuration, as optimizer.k=2; may be given repeatedly",
    )
    return parser


def _select(arguments: argparse.Namespace) -> Selection:
    """The runs that the arguments name.

    Raises:
        LogError: a directory does not exist, or see `read_frames` and `select`.
    """
    for directory in arguments.runs:
        if not directory.is_dir():
            raise LogError(
                f"there is no directory {directory}: "
                f"make the runs with `python train.py sweep={arguments.sweep}`"
            )
    frames = read_frames(arguments.runs)
    return select(frames, arguments.sweep, arguments.runs, arguments.where)
