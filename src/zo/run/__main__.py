"""Resumes the run in a directory, or makes the run whose configuration is frozen there.

    python -m zo.run out/bszo-0123456789ab

Exit status: 0 the run has ended (a collapse is an end), 1 it failed (error.txt), 2 its data, weights or directory
cannot be used, 75 another process holds the run, 143 it was stopped by a signal and has saved, 130 Ctrl-C twice.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from zo.run import signals


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
    from zo.run.command import make  # here, so that --help and Ctrl-C need not wait for imports
    from zo.run.directory import DirectoryError, load

    try:
        cfg = load(args.directory)
    except DirectoryError as error:
        print(error, file=sys.stderr)
        return 2
    cfg.device = args.device or cfg.device
    cfg.threads = args.threads or cfg.threads
    return make(cfg, args.directory)


if __name__ == "__main__":
    signals.end_at_once()
    signals.leave(main())
