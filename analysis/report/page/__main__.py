"""python -m analysis.report.page; see command_line."""

import sys

from analysis.report.page.command_line import main

if __name__ == "__main__":
    sys.exit(main())
