"""Resumes the run in a directory, or makes the run whose configuration is frozen there.

    zo resume out/bszo-0123456789ab
    zo log out/bszo-0123456789ab ...    # write W&B's file of runs that ended without one

Exit status: 0 the run has ended (a collapse is an end), 1 it failed (error.txt), 2 its data, weights or directory
cannot be used, 75 another process holds the run, 143 it was stopped by a signal and has saved, 130 the same by Ctrl-C.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from zo.extras import Trust, alias, parser
from zo.run import signals


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser("resume", __doc__)
    made.add_argument("directory", type=Path, help="a run's directory, with its config.yaml")
    made.add_argument("--device", help="auto, cpu, cuda or cuda:N instead of the frozen one")
    made.add_argument("--threads", type=int, help="CPU threads instead of the frozen number")
    made.add_argument("--trust", action=Trust)
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["log"]:
        return log(given[1:])
    args = made.parse_args(given)
    from zo.run.command import make  # here, so that --help and Ctrl-C need not wait for imports
    from zo.run.store.directory import DirectoryError, load

    try:
        cfg = load(args.directory)
        code = cfg.objective.code() if cfg.objective.of(cfg.task) == "reward" else []
        named = f"its reward calls objective.function={', '.join(code)}"
        if cfg.task.own_measure:
            code, named = [cfg.task.own_measure], f"it calls task.measure={cfg.task.own_measure}"
        if code and not Trust.given:
            raise DirectoryError(f"{args.directory}: {named}; read it, and add --trust to run it")
    except DirectoryError as error:
        print(error, file=sys.stderr)
        return 2
    cfg.device = args.device or cfg.device
    cfg.threads = args.threads or cfg.threads
    return make(cfg, args.directory)


def command(argv: Sequence[str]) -> NoReturn:
    """Runs `zo resume`, and ends the process."""
    signals.leave(lambda: main(argv))


def log(argv: Sequence[str]) -> int:
    """Writes W&B's file of runs that have ended; returns the exit status."""
    words = "Write W&B's offline file of runs that ended without one, from metrics.jsonl."
    made = parser("log", words)
    made.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="of a run")
    made.add_argument("--trust", action=Trust)
    directories: list[Path] = made.parse_args(argv).directories
    from zo.run.logs.tracking import log_again
    from zo.run.store.directory import DirectoryError
    from zo.run.store.lock import LockedError

    status = 0
    for directory in directories:
        try:
            log_again(directory)
        except (DirectoryError, LockedError, OSError) as error:
            said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
            print(said, file=sys.stderr)
            status = 2
    return status


if __name__ == "__main__":
    signals.end_at_once()
    signals.leave(lambda: alias("resume", main))
