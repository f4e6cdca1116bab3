"""`python -m analysis WHAT`, the former name of `zo WHAT`."""

import sys

from analysis.report.command import main

if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):  # a locale's encoding lacks some characters
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    print("`python -m analysis WHAT` is now the command `zo WHAT`", file=sys.stderr)
    sys.exit(main())
