"""Checks the paper's printed numbers against each other, and says what they can show.

    python -m tools.audit_paper            # writes audit.* and statistics.* and what belongs to them in results/paper

The printed numbers do not change, so its results are committed, and tests/tools/test_audit.py holds them to it.
"""

import sys
from pathlib import Path

from analysis.paper.printed_numbers import DIRECTORY
from tools.audit_paper import audit_page, statistics_page

if __name__ == "__main__":
    directory = Path(sys.argv[1]) if sys.argv[1:] else DIRECTORY
    print(*audit_page.write(directory), *statistics_page.write(directory), sep="\n")
