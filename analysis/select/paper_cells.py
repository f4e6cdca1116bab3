"""Every cell that the paper prints, with what has been measured here beside it.

One frame, a row per printed number: the columns of `analysis.paper.printed_numbers`, those of `over_seeds`, and

| column | content |
|---|---|
| `measured`, `difference` | in the unit of the printed number, and minus it; NaN without one |
| `here` | `finished`, `collapsed`, `unfinished`, `missing`, `duplicated`, or `nowhere`: the paper has no number here |
| `lacking` | runs of the cell's grid (Tables 7 to 10) that have not ended |
| `here_bold` | as `bold`, for the measured numbers; False unless its whole group is, and where a seed collapsed |
| `lost_seeds` | seeds that collapsed at the chosen learning rate, of all tasks for an average |
| `remark` | what the number hides: seeds that collapsed, tasks left out of an average |
"""

from typing import Any

import numpy as np
import pandas as pd

from analysis.paper import names
from analysis.paper.printed_numbers import AVERAGE, Paper
from analysis.select.cells import over_seeds

PERCENT = 100
GIB_IN_GB = 2**30 / 1e9
QUANTITIES = {
    "mean": ("test_mean", PERCENT),
    "std": ("test_std", PERCENT),
    "test_accuracy": ("test_mean", PERCENT),
    "memory_gb": ("peak_gib", GIB_IN_GB),
    "step_ms": ("step_ms", 1.0),
}
"""Printed quantity -> column of `over_seeds`, and the factor between their units."""
SWEEP_OF = {
    (table, part, about.get("model", "")): sweep
    for sweep, about in names.SWEEPS.items()
    for table, part in about["tables"].items()
}
"""Table, its part, and for Table 3 the model -> the sweep that its cells come from."""
SWEEPS = {
    number: [sweep for (table, _, _), sweep in SWEEP_OF.items() if table == number]
    for number in (1, 3, 4, 5, 11, 12)
}
"""Table -> the sweeps that its cells come from."""
BEHIND = frozenset(SWEEP_OF.values())
"""The sweeps behind all of them."""
COMPARED = (
    (1, "mean", [""], ["model", "task"], 2),
    (1, "std", [""], ["model", "task"], 2),
    (3, "test_accuracy", [""], ["model", "task"], 2),
    (5, "test_accuracy", ["a", "b"], ["k", "task"], 1),
    (5, "test_accuracy", ["c"], ["k"], 1),
    (5, "test_accuracy", ["d"], ["task"], 1),
    (12, "test_accuracy", ["a", "b", "c"], ["k", "task"], 1),
)
"""Cells that bold compares, as the captions say: table, quantity, parts, what they share, and how many are bold.

Tables 1 and 3: the two best of a column, of a model; standard deviations on their own. Table 12: the best of a row.
Table 5 does not say; (a) and (b) are compared per row, as in Table 12, (c) per row, (d) per column.
"""
FAILED = ("collapsed", "finished")  # what counts as measured
KEY = ["sweep", "model", "task", "optimizer", "k", "noise", "seed"]
"""What a printed cell and a row of `over_seeds` are matched by; the seed is ALL_SEEDS for a mean over the seeds."""
ALL_SEEDS = -1


def beside(paper: Paper, filled: pd.DataFrame) -> pd.DataFrame:
    """The frame of the module for the tables that come from runs: 1, 3, 4, 5, 11 and 12."""
    printed = paper.cells[paper.cells["table"].isin(list(SWEEPS))].reset_index(drop=True)
    frame = pd.concat([printed, _measured(_keys(paper, printed), printed, filled)], axis=1)
    _fill_averages(frame)
    frame["difference"] = frame["measured"] - frame["value"]
    frame["here_bold"] = False
    in_paper = frame[frame["status"] != "absent"]
    for table, quantity, parts, shared, best in COMPARED:
        cells = in_paper[(in_paper["table"] == table) & (in_paper["quantity"] == quantity)]
        for _, group in cells[cells["part"].isin(parts)].groupby(shared, sort=False):
            if group["here"].isin(FAILED).all() and not group["lacking"].any():
                frame.loc[group.index, "here_bold"] = _best(group, best)
    return frame


def with_spread(cells: pd.DataFrame) -> pd.DataFrame:
    """The printed cells of `beside`, each mean with its standard deviation: columns that end in `_std`."""
    keys = ["table", "model", "task", "method"]
    spreads = cells[cells["quantity"] == "std"][[*keys, "printed", "measured"]]
    rows, on = cells[cells["quantity"] != "std"], [*keys, "quantity"]
    return rows.merge(spreads.assign(quantity="mean"), "left", on, suffixes=("", "_std"))


def _best(there: pd.DataFrame, best: int) -> pd.Series:
    """Which cells of a group are the best ones; ties share, and what a collapse is left out of is none of them."""
    values = there["measured"].where(there["lost_seeds"] == 0)
    signed = -values if (there["quantity"] == "std").all() else values
    return signed.rank(method="min", ascending=False) <= best


def _key(row: dict[Any, Any]) -> tuple[Any, ...]:
    """The KEY of a printed cell."""
    table, part, model = row["table"], row["part"], row["model"]
    sweep = SWEEP_OF[table, part, model if table == 3 else ""]
    k = "" if sweep == "table5_d" else row["k"]  # the default
    noise = row["adaptive_noise"] if sweep in ("table5_c", "table5_d") else ""
    seed = int(row["run"]) - 1 if row["run"] else ALL_SEEDS  # run 1 is seed 0
    return (sweep, model, row["task"] or "phrases", row["method"] or "bszo", k, noise, seed)


def _keys(paper: Paper, printed: pd.DataFrame) -> pd.DataFrame:
    """The KEY of each printed cell, and how many `runs` the paper made for it: its seeds times its learning rates."""
    keys = pd.DataFrame([_key(row) for row in printed.to_dict("records")], columns=KEY)
    grids = paper.cells[paper.cells["quantity"] == "lr"].groupby(["model", "method"])["printed"]
    rates = grids.nunique().rename("runs")
    keys = keys.join(rates, on=["model", "optimizer"])
    keys.loc[printed["table"] == 4, "runs"] = 1  # timed at one rate
    seeds = paper.cells.loc[paper.cells["table"] == 11, "run"].nunique()
    keys["of_seeds"] = np.where((keys["sweep"] == "table1") & (keys["seed"] == ALL_SEEDS), seeds, 1)
    keys["runs"] *= keys["of_seeds"]
    keys.loc[printed["status"] == "absent", ["runs", "of_seeds"]] = 0
    return keys.fillna({"runs": 0}).astype({"runs": int, "of_seeds": int})


def wanted(paper: Paper) -> dict[str, int]:
    """How many runs each sweep behind a table has."""
    printed = paper.cells[
        paper.cells["table"].isin(list(SWEEPS)) & (paper.cells["task"] != AVERAGE)
    ]
    keys = _keys(paper, printed.reset_index(drop=True)).drop_duplicates(KEY)
    whole = keys[keys["seed"] == ALL_SEEDS]
    return {str(sweep): int(runs) for sweep, runs in whole.groupby("sweep")["runs"].sum().items()}


def _measured(keys: pd.DataFrame, printed: pd.DataFrame, filled: pd.DataFrame) -> pd.DataFrame:
    """What has been measured for the printed cells; averages come later. A standard deviation needs two seeds.

    Runs whose command changed what its sweep sets (`changed`) fill no printed cell.
    """
    filled = filled[filled["changed"] == ""]
    alone = over_seeds(filled, "seed").assign(collapsed=0)
    rows = pd.concat([over_seeds(filled).assign(seed=ALL_SEEDS), alone])
    rows["k"] = ["" if pd.isna(k) else f"{k:g}" for k in rows["k"]]
    rows["noise"] = rows["adaptive_noise"].map({True: "with", False: "without"}).fillna("")
    found = keys.merge(rows, "left", KEY)
    there = found["status"].notna()
    ended = (found["grid"] - found["lacking"]).fillna(0)
    found["lacking"] = np.maximum(found["lacking"].fillna(0), found["runs"] - ended)
    found["seeds"] = found["seeds"].fillna(found["of_seeds"])
    known = there | (printed["status"] != "absent")
    found["status"] = found["status"].fillna("missing").where(known, "nowhere")
    counts = found[["n", "seeds", "collapsed"]].fillna(0).astype(int)
    lost = counts["collapsed"].where(found["status"] != "collapsed", 0)
    values = pd.Series(np.nan, found.index)
    for quantity, (column, factor) in QUANTITIES.items():
        values = values.where(printed["quantity"] != quantity, factor * found[column])
    said = "{} of {} seeds collapsed at the chosen learning rate".format
    return pd.DataFrame(
        {
            "measured": values,
            **counts[["n", "seeds"]],
            "here": found["status"],
            "lacking": found["lacking"].astype(int),
            "lr": found["lr"],
            "lost_seeds": counts["collapsed"],
            "sweep": found["sweep"].where(known, ""),
            "run_ids": found["run_ids"].fillna(""),
            "at_edge": found["at_edge"].eq(True),
            "remark": [said(n, of) * (n > 0) for n, of in zip(lost, counts["seeds"], strict=True)],
        }
    )


def _fill_averages(frame: pd.DataFrame) -> None:
    """The average columns of Tables 1 and 3: over the tasks of a method, if each has been measured or collapsed."""
    keys = ["table", "model", "method", "quantity"]
    tasks = dict(iter(frame[frame["task"] != AVERAGE].groupby(keys)))
    for index, row in frame[frame["task"] == AVERAGE].iterrows():
        parts: Any = tasks[tuple(row[key] for key in keys)]
        numbers = parts[parts["measured"].notna()]
        left_out = parts[parts["here"] == "collapsed"]["task"]
        open_ = [status for status in parts["here"] if status not in FAILED]
        found = {"here": open_[0] if open_ else "finished" if len(numbers) else "collapsed"}
        found |= {"lacking": parts["lacking"].sum(), "seeds": parts["seeds"].max()}
        found |= {"sweep": parts["sweep"].max(), "lost_seeds": parts["lost_seeds"].sum()}
        if not open_ and len(numbers):
            found |= {"measured": numbers["measured"].mean(), "n": numbers["n"].min()}
            if len(left_out):
                found["remark"] = f"leaves out {', '.join(left_out)}, which collapsed"
        for key, value in found.items():
            frame.loc[index, key] = value  # type: ignore[index]
