"""Which cells the paper sets in bold: the groups that are compared, and how many of each."""

from collections.abc import Iterator
from typing import Any, NamedTuple

BEST_TWO, BEST_ONE = 2, 1


class Group(NamedTuple):
    """Cells that are compared with each other."""

    cells: Any  # rows of a frame with the columns of `analysis.paper.printed_numbers`
    best: int  # how many of them are bold; ties share
    lowest: bool  # whether the lowest are the best


def groups(cells: Any) -> Iterator[Group]:
    """The groups of Tables 1, 3, 5 and 12, as their captions say.

    Tables 1 and 3: the two best of a column, of a model; standard deviations on their own. Table 12: the best of a row.
    Table 5 does not say; (a) and (b) are compared per row, as in Table 12, (c) per row, (d) per column.
    """
    for table, quantity, parts, compared in (
        (1, "mean", [""], ["model", "task"]),
        (1, "std", [""], ["model", "task"]),
        (3, "test_accuracy", [""], ["model", "task"]),
        (5, "test_accuracy", ["a", "b"], ["k", "task"]),
        (5, "test_accuracy", ["c"], ["k"]),
        (5, "test_accuracy", ["d"], ["task"]),
        (12, "test_accuracy", ["a", "b", "c"], ["k", "task"]),
    ):
        of_table = cells[(cells["table"] == table) & (cells["quantity"] == quantity)]
        for _, group in of_table[of_table["part"].isin(parts)].groupby(compared, sort=False):
            yield Group(group, BEST_ONE if parts[0] else BEST_TWO, quantity == "std")


def better(values: Any, lowest: bool) -> Any:
    """How many of the values of a series are better than each; a NaN is better than nothing."""
    signed = -values if lowest else values
    return signed.map(lambda value: int((signed > value).sum()))
