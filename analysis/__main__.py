"""`python -m analysis WHAT`; see analysis/report/command.py."""

import sys

from analysis.report.command import main

if __name__ == "__main__":
    sys.exit(main())
