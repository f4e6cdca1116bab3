"""`python -m analysis.paper.audit`."""

import sys

from analysis.paper.audit.audit import main

if __name__ == "__main__":
    sys.exit(main())
