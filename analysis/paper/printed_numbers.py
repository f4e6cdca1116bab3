"""The numbers that the paper prints, read from results/paper/: one frame.

| column | content |
|---|---|
| `table` | 1 to 12 |
| `part`, `model`, `task`, `method`, | what the number belongs to; |
| `k`, `adaptive_noise`, `run`, `position` | empty text where that does not apply |
| `quantity` | what it is, see results/paper/README.md for the units |
| `printed` | as printed |
| `value` | as a number; NaN for `*`, `–` and formulas |
| `status` | `printed`, `collapsed` for `*`, `absent` for `–` |
| `bold` | whether the paper has it in bold |
"""

from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

import pandas as pd

DIRECTORY = Path(__file__).parents[2] / "results" / "paper"
TABLES = range(1, 13)
KEYS = ("part", "model", "task", "method", "k", "adaptive_noise", "run", "position", "quantity")
STATUS = {"*": "collapsed", "–": "absent"}
AVERAGE = "avg"


@dataclass(frozen=True)
class Paper:
    """The printed numbers."""

    cells: pd.DataFrame  # of all tables, see the module; in the paper's order

    def table(self, number: int) -> pd.DataFrame:
        """The cells of one table."""
        return self.cells[self.cells["table"] == number]


@cache
def load() -> Paper:
    """Read all tables."""
    return Paper(pd.concat(map(_table, TABLES), ignore_index=True))


def digits(printed: str) -> int:
    """Digits behind the decimal point; 1e-3 has three."""
    exponent = Decimal(printed).as_tuple().exponent
    return max(0, -int(exponent))


def _table(number: int) -> pd.DataFrame:
    frame = pd.read_csv(DIRECTORY / f"table{number}.csv", dtype=object, keep_default_na=False)
    frame = frame.reindex(columns=[*KEYS, "printed", "bold"], fill_value="")
    frame.insert(0, "table", number)
    marks = frame["printed"].str.match(r"[*–]$|O\(")
    frame["value"] = pd.to_numeric(frame["printed"].where(~marks), errors="coerce")
    frame["status"] = frame["printed"].map(STATUS).fillna("printed")
    frame["bold"] = frame["bold"] == "bold"
    return frame
