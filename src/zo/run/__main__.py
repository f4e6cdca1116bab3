"""Resumes the run in a directory, or makes the run whose configuration is frozen there.

    python -m zo.run out/bszo-0123456789ab

Exit status: 0 the run has ended (a collapse is an end), 1 it failed (error.txt), 2 its data, weights or directory
cannot be used, 75 another process holds the run, 143 it was stopped by a signal and has saved, 130 Ctrl-C twice.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from zo.run.directory import load
from zo.run.lock import LockedError
from zo.run.runner import LOCKED, UNUSABLE, run


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    parser = argparse.ArgumentParser(
        "python -m zo.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path, help="a run's directory, with its config.yaml")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N instead of the frozen one")
    parser.add_argument("--threads", type=int, help="CPU threads instead of the frozen number")
    args = parser.parse_args(argv)
    try:
        cfg = load(args.directory)
        cfg.device = args.device or cfg.device
        cfg.threads = args.threads or cfg.threads
        run(cfg, args.directory)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except LockedError as error:
        print(error, file=sys.stderr)
        return LOCKED
    except UNUSABLE as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
