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

from analysis.paper.names import PAPER_METHODS

DIRECTORY = Path(__file__).parents[2] / "results" / "paper"
TABLES = range(1, 13)
KEYS = ("part", "model", "task", "method", "k", "adaptive_noise", "run", "position", "quantity")
STATUS = {"*": "collapsed", "–": "absent"}
METHODS = PAPER_METHODS
BASELINES, OURS = METHODS[:4], METHODS[4:]
AVERAGE = "avg"


class PaperError(ValueError):
    """A file of printed numbers, or of conf/ beside them, cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True)
class Paper:
    """The printed numbers."""

    cells: pd.DataFrame  # of all tables, see the module; in the paper's order
    prose: pd.DataFrame  # of the text: id, location, description, printed, unit, check, of, against
    notes: pd.DataFrame  # what was noticed by reading: location, kind, note

    def rows(self, selector: str) -> pd.DataFrame:
        """The cells that a selector names.

        Args:
            selector: `table3 model=opt-13b task=avg`; `table7-10` is several tables, `method=mezo,lozo` several
                methods.
        """
        head, *conditions = selector.split()
        first, _, last = head.removeprefix("table").partition("-")
        try:
            found = self.cells[self.cells["table"].between(int(first), int(last or first))]
            for condition in conditions:
                key, _, values = condition.partition("=")
                found = found[found[key].isin(values.split(","))]
        except (KeyError, ValueError) as error:
            raise PaperError(
                f"{selector!r} does not name cells: wanted is `table3 model=opt-13b task=avg`"
            ) from error
        if found.empty:
            raise PaperError(f"{selector!r}: no such cell in results/paper")
        return found


def load(directory: Path = DIRECTORY) -> Paper:
    """Read all files."""
    cells = pd.concat([_table(number, directory) for number in TABLES], ignore_index=True)
    wanted = ("id", "location", "printed", "check", "of", "against")
    prose = text_table(directory / "prose.csv", wanted)
    return Paper(cells, prose, text_table(directory / "notes.csv", ("location", "note")))


def digits(printed: str) -> int:
    """Digits behind the decimal point; 1e-3 has three."""
    exponent = Decimal(printed).as_tuple().exponent
    return max(0, -int(exponent))


def agrees(printed: str, exact: float) -> bool:
    """Whether a number, rounded as the printed one is, gives it; both ways to round a half count."""
    return abs(float(printed) - exact) <= 0.5 * 10.0 ** -digits(printed) + 1e-9


def _table(number: int, directory: Path) -> pd.DataFrame:
    path = directory / f"table{number}.csv"
    frame = text_table(path, ("quantity", "printed"))
    strangers = set(frame.columns) - {*KEYS, "printed", "bold"}
    if strangers:
        raise PaperError(f"{path}: unknown column {sorted(strangers)[0]}")
    frame = frame.reindex(columns=[*KEYS, "printed", "bold"], fill_value="")
    twice = frame[frame.duplicated(list(KEYS))]
    if len(twice):
        raise PaperError(f"{path}, line {twice.index[0] + 2}: this cell is there twice")
    frame.insert(0, "table", number)
    marks = frame["printed"].str.match(r"[*–]$|O\(")
    frame["value"] = pd.to_numeric(frame["printed"].where(~marks), errors="coerce")
    wrong = frame[frame["value"].isna() & ~marks]
    if len(wrong):
        line, text = wrong.index[0] + 2, wrong["printed"].iloc[0]
        raise PaperError(f"{path}, line {line}: {text!r} is neither a number nor * nor –")
    frame["status"] = frame["printed"].map(STATUS).fillna("printed")
    frame["bold"] = frame["bold"] == "bold"
    return frame


def text_table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """A csv file with every cell as text."""
    try:
        frame = pd.read_csv(path, dtype=object, keep_default_na=False)
    except pd.errors.ParserError as error:
        raise PaperError(f"{path}: {error}") from error
    for column in columns:
        if column not in frame:
            raise PaperError(f"{path} lacks the column {column}")
    return frame
