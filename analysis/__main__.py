"""`python -m analysis WHAT`; see analysis/report/command.py."""

import sys

from analysis.report.command import main

if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):  # a locale's encoding lacks some characters
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main())
