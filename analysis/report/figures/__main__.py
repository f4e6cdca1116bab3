"""python -m analysis.report.figures SWEEP...; see command_line."""

import sys

from analysis.report.figures.command_line import main

if __name__ == "__main__":
    sys.exit(main())
