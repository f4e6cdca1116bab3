"""The numbers that the paper prints, read from results/paper/: one frame, and a way to name a cell.

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

    def rows(self, selector: str) -> pd.DataFrame:
        """The cells that a selector names.

        Args:
            selector: `table3 model=opt-13b task=avg`; `table7-10` is several tables, `method=mezo,lozo` several
                methods.
        """
        head, *conditions = selector.split()
        first, _, last = head.removeprefix("table").partition("-")
        found = self.cells[self.cells["table"].between(int(first), int(last or first))]
        for condition in conditions:
            key, _, values = condition.partition("=")
            found = found[found[key].isin(values.split(","))]
        return found


def load(directory: Path = DIRECTORY) -> Paper:
    """Read all tables."""
    return Paper(pd.concat([_table(number, directory) for number in TABLES], ignore_index=True))


def digits(printed: str) -> int:
    """Digits behind the decimal point; 1e-3 has three."""
    exponent = Decimal(printed).as_tuple().exponent
    return max(0, -int(exponent))


def _table(number: int, directory: Path) -> pd.DataFrame:
    path = directory / f"table{number}.csv"
    frame = pd.read_csv(path, dtype=object, keep_default_na=False)
    frame = frame.reindex(columns=[*KEYS, "printed", "bold"], fill_value="")
    frame.insert(0, "table", number)
    marks = frame["printed"].str.match(r"[*–]$|O\(")
    frame["value"] = pd.to_numeric(frame["printed"].where(~marks), errors="coerce")
    frame["status"] = frame["printed"].map(STATUS).fillna("printed")
    frame["bold"] = frame["bold"] == "bold"
    return frame
