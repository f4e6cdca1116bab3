"""`python -m analysis.study`."""

import sys

from analysis.study.command_line import main

if __name__ == "__main__":
    sys.exit(main())
