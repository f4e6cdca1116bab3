"""`python -m analysis.report.study`."""

import sys

from analysis.report.study.command_line import main

if __name__ == "__main__":
    sys.exit(main())
