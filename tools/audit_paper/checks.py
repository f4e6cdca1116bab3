"""Whether the paper's printed numbers agree with each other: every number against those that it is made of."""

from collections.abc import Callable, Iterator
from statistics import fmean, pstdev, stdev
from typing import Any, NamedTuple

import pandas as pd

from analysis.paper.bold import BEST_TWO, better, groups
from analysis.paper.names import TASKS, method_label, model_label, task_label
from analysis.paper.printed_numbers import AVERAGE, Paper, PaperError, agrees, digits

ACCURACY_TABLES = (3, 5, 11, 12)  # those that print single accuracies


class Outcome(NamedTuple):
    """One comparison."""

    location: str  # table and cell, or section
    what: str  # what was compared
    ok: bool  # whether it holds
    printed: str = ""  # what the paper says
    recomputed: str = ""  # what follows from its other numbers
    difference: str = ""  # printed minus recomputed, signed; empty if that means nothing
    kind: str = "number"  # one of `tools.audit_paper.audit_page.KINDS`
    remark: str = ""  # what explains it


def number(
    location: str, what: str, printed: str, exact: float, ok: bool, remark: str = ""
) -> Outcome:
    """The outcome for a printed number and what it should be, one digit more precise than it is printed."""
    places = digits(printed)
    difference = float(printed) - exact
    small = "e" not in printed and abs(difference) <= 10.0**-places + 1e-9
    said = (printed, signed(exact, places + 2, plus=False), signed(difference, places + 2))
    return Outcome(location, what, ok, *said, "last digit" if small else "number", remark)


def signed(value: float, places: int, plus: bool = True) -> str:
    """A number with a minus sign as printed, without trailing noise."""
    return format(value, f"{'+' if plus else ''}.{places}f").replace("-", "−")


def name(row: Any) -> str:
    """A cell as a reader finds it: Table 3, OPT-13B, BSZO, RTE."""
    noise = row["table"] == 5 and row["part"] in "cd"
    parts = [
        f"Table {row['table']}" + (f" ({row['part']})" if row["part"] else ""),
        model_label(row["model"]),
        method_label(row["method"]) if row["method"] != "all" else "",
        task_label(row["task"]),
        f"k = {row['k']}" if row["k"] else "",
        f"{row['adaptive_noise']} adaptive noise" if noise else "",
        f"run {row['run']}" if row["run"] else "",
    ]
    return ", ".join(filter(None, parts))


def nearest_multiple(percent: float, n: int) -> float:
    """The possible accuracy, in percent, that is nearest: of n examples a whole number is right."""
    return 100 * round(percent * n / 100) / n


def means_and_stds(paper: Paper) -> Iterator[Outcome]:
    """Table 1 from the runs of Table 11: mean, and standard deviation with n − 1.

    A number holds if it follows from the runs as printed or from the exact fractions they round.
    """
    runs = paper.rows("table11").groupby(["task", "method"])["value"]
    for row in paper.rows("table1").to_dict("records"):
        if row["task"] == AVERAGE:
            continue
        rounded = list(runs.get_group((row["task"], row["method"])))
        exact = [nearest_multiple(value, TASKS[row["task"]]["test_size"]) for value in rounded]
        spread = row["quantity"] == "std"
        of: Any = stdev if spread else fmean
        what = "sample standard deviation (n − 1)" if spread else "mean of 5 runs"
        ok = agrees(row["printed"], of(exact)) or agrees(row["printed"], of(rounded))
        remark, population = "", pstdev(exact)
        if spread and not ok:
            fits = agrees(row["printed"], population)
            said = "it is the population standard deviation, with n"
            remark = said if fits else f"with n: {population:.4f}"
        yield number(name(row), what, row["printed"], of(exact), ok, remark)


def averages(paper: Paper) -> Iterator[Outcome]:
    """The average columns of Tables 1 and 3 over the tasks that have a number."""
    for table, quantity in ((1, "mean"), (3, "test_accuracy")):
        of_table: Any = paper.rows(f"table{table} quantity={quantity}")
        for _, cells in of_table.groupby(["model", "method"], sort=False):
            parts, row = cells[cells["task"] != AVERAGE], cells[cells["task"] == AVERAGE].iloc[0]
            if row["status"] != "printed":
                continue
            counted = parts.loc[parts["status"] == "printed", "value"]
            exact, ok = fmean(counted), agrees(row["printed"], fmean(counted))
            what = f"mean over {len(counted)} tasks"
            yield number(name(row), what, row["printed"], exact, ok)
            what = f"number of tasks in the average, of {len(parts)}"
            ok, there = len(counted) == len(parts), f"{len(counted)} tasks"
            remark = _left_out(of_table, row, parts)
            yield Outcome(name(row), what, ok, row["printed"], there, kind="basis", remark=remark)


def _left_out(of_table: Any, row: Any, parts: Any) -> str:
    """What the other methods of the model average on the tasks that this row's average counts."""
    missing = parts[parts["status"] != "printed"]["task"]
    if missing.empty:
        return ""
    same = of_table[
        (of_table["model"] == row["model"])
        & (of_table["task"] != AVERAGE)
        & (of_table["status"] != "absent")
        & ~of_table["task"].isin(missing)
    ]
    means = same.groupby("method", sort=False)["value"].mean()
    others = ", ".join(f"{method_label(str(m))} {mean:.2f}" for m, mean in means.items())
    return f"without {', '.join(map(task_label, missing))}, which is *; without it: {others}"


def test_set_multiples(paper: Paper) -> Iterator[Outcome]:
    """Every single accuracy is a whole number of right answers."""
    for table in ACCURACY_TABLES:
        cells: Any = paper.rows(f"table{table}")
        cells = cells[(cells["task"] != AVERAGE) & (cells["status"] == "printed")]
        for row in cells.to_dict("records"):
            n = TASKS[row["task"]]["test_size"]
            exact = nearest_multiple(row["value"], n)
            ok = agrees(row["printed"], exact)
            twice = round(round(exact, 3) + 1e-9, 2)  # to three digits, then up to two
            remark = f"{round(row['value'] * n / 100)} of {n} right"
            if not ok and agrees(row["printed"], twice):
                remark += f"; rounded twice, over {exact:.3f}"
            yield number(name(row), f"nearest multiple of 1/{n}", row["printed"], exact, ok, remark)


def bold_cells(paper: Paper) -> Iterator[Outcome]:
    """Bold is what the captions say: see `analysis.paper.bold`."""
    for group in groups(paper.cells[paper.cells["status"] == "printed"]):
        tied = group.cells["value"].duplicated(keep=False)
        above = better(group.cells["value"], group.lowest)
        count = "two" if group.best == BEST_TWO else "one"
        end = "lowest" if group.lowest else "highest"
        what = f"bold for the best {count}, {end} first"
        for index, row in group.cells.iterrows():
            remark = "tied with another cell" if tied[index] else ""
            if row["table"] == 5 and row["part"] in "ab":
                remark = "compared per row over (a) and (b), as Table 12 says; Table 5 does not say"
                remark += ", and has the bold of Table 12 without its column (c)"
            location = name(row) + (" (std)" if row["quantity"] == "std" else "")
            ok = row["bold"] == (above[index] < group.best)
            said = f"{row['printed']} {'bold' if row['bold'] else 'not bold'}"
            other = f"{above[index]} better"
            yield Outcome(location, what, ok, said, other, kind="bold", remark=remark)


def printed_twice(paper: Paper) -> Iterator[Outcome]:
    """Cells of Table 5 that Tables 12 and 3 print too."""
    for row in paper.rows("table5").to_dict("records"):
        part, where = row["part"], f"task={row['task']}"
        twins = [f"table12 part={part} k={row['k']} {where}"] if part in "ab" else []
        if row["adaptive_noise"] == "with" and (part == "d" or (part == "b" and row["k"] == "2")):
            twins.append(f"table3 model={row['model']} method=bszo {where}")
        for twin in twins:
            other: Any = paper.rows(twin).iloc[0]
            yield Outcome(
                f"{name(row)} and {name(other)}",
                "the same run in two tables",
                bool(row["value"] == other["value"]),
                f"{row['printed']} and {other['printed']}",
                difference=signed(row["value"] - other["value"], 2),
            )


def quoted_numbers(paper: Paper) -> Iterator[Outcome]:
    """Numbers of the text against the tables, by the rules that results/paper/README.md lists."""
    claim: Any
    for claim in paper.prose[paper.prose["check"] != "none"].to_dict("records"):
        where = (claim["location"], claim["description"], claim["printed"])
        yield number(*where, *_quoted(claim, paper))


def _quoted(claim: dict[str, str], paper: Paper) -> tuple[float, bool]:
    """What a quoted number should be, and whether it is."""
    rule, printed = claim["check"], float(claim["printed"])
    of: Any = paper.rows(claim["of"])
    values = of["value"]

    def against(key: str) -> Any:
        return paper.rows(claim["against"]).set_index(key)["value"]

    if rule in ("every", "one_more"):
        exact = max(values + (rule == "one_more"), key=lambda value: abs(value - printed))
        return exact, exact == printed
    rules: dict[str, Callable[[], Any]] = {
        "distinct": lambda: of[claim["against"]].nunique(),
        "value": lambda: values.item(),
        "above": lambda: values.item(),
        "largest": lambda: values.max(),
        "difference": lambda: values.item() - against("quantity").item(),
        "wins": lambda: (of.set_index("task")["value"] > against("task")).sum(),
        "least_ratio": lambda: (of.set_index("model")["value"] / against("model")).min(),
        "largest_ratio": lambda: (of.set_index("model")["value"] / against("model")).max(),
    }
    if rule not in rules:
        raise PaperError(f"prose.csv, {claim['id']}: unknown rule {rule}")
    exact = float(rules[rule]())
    return exact, printed > exact if rule == "above" else agrees(claim["printed"], exact)


def grids(paper: Paper) -> Iterator[Outcome]:
    """The learning-rate grids of Tables 7-10: each value once, in falling order."""
    rates: Any = paper.rows("table7-10 quantity=lr")
    for _, grid in rates.groupby(["table", "method"], sort=False):
        values, first = list(grid["value"]), grid.iloc[0]
        printed, different = ", ".join(grid["printed"]), len(set(values))
        once, counts = different == len(values), f"{different} different of {len(values)}"
        yield Outcome(name(first), "values of the grid, each once", once, printed, counts)
        falling = values == sorted(values, reverse=True)
        said = "the series suggests 1e-7 for the second 1e-6" if values.count(1e-6) > 1 else ""
        yield Outcome(name(first), "values of the grid, falling", falling, printed, remark=said)


CHECKS: dict[str, Callable[[Paper], Iterator[Outcome]]] = {
    "Table 1 from the runs of Table 11": means_and_stds,
    "average columns": averages,
    "accuracies as multiples of one test example": test_set_multiples,
    "bold cells": bold_cells,
    "numbers printed twice": printed_twice,
    "numbers quoted in the text": quoted_numbers,
    "learning-rate grids": grids,
}


def audit(paper: Paper) -> pd.DataFrame:
    """Every check's outcome, in the order of the checks: a row with `group` and the attributes of `Outcome`."""
    return pd.DataFrame(
        [{"group": g} | one._asdict() for g, check in CHECKS.items() for one in check(paper)]
    )
