"""python -m analysis.report; see command_line."""

import sys

from analysis.report.command_line import main

if __name__ == "__main__":
    sys.exit(main())
