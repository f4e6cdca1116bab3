"""Every cell that the paper prints, with what has been measured here beside it.

One frame, a row per printed number: the columns of `analysis.paper.printed_numbers`, and

| column | content |
|---|---|
| `measured` | in the unit of the printed number; NaN without one |
| `difference` | measured − printed; NaN unless both are numbers |
| `n`, `seeds` | finished runs behind it, and runs that there should be |
| `here` | `finished`, `collapsed`, `unfinished`, `missing`, `duplicated`, or `nowhere`: no sweep asks for this cell |
| `lacking` | runs of the cell's grid that are missing, unfinished or duplicated |
| `here_bold` | as `bold`, for the measured numbers; False unless the whole group has been measured, and where a seed
collapsed |
| `lr` | the chosen learning rate |
| `lost_seeds` | seeds that collapsed at that learning rate |
| `sweep`, `run_ids` | where the runs come from |
| `at_edge` | whether the chosen learning rate is the smallest or the largest of its grid |
| `remark` | what the number hides: seeds that collapsed, tasks left out of an average |
"""

import json
from typing import Any

import pandas as pd

from analysis.paper.bold import Group, better, groups
from analysis.paper.printed_numbers import AVERAGE, Paper
from analysis.select.cell_runs import choose, over_seeds

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
SWEEPS: dict[int, tuple[str, ...]] = {
    1: ("table1",),
    3: ("table3_opt_1_3b", "table3_mistral_7b", "table3_opt_13b"),
    4: ("table4",),
    5: ("table5_a", "table5_b", "table5_c", "table5_d"),
    11: ("table1",),
    12: ("table5_a", "table5_b", "table12_c"),
}
"""Table -> the sweeps that its cells come from."""
BY_MODEL = {"opt-1.3b": SWEEPS[3][0], "mistral-7b": SWEEPS[3][1], "opt-13b": SWEEPS[3][2]}
FAILED = ("collapsed", "finished")  # what counts as measured


NOTHING = {
    "measured": float("nan"),
    "n": 0,
    "seeds": 0,
    "here": "nowhere",
    "lacking": 0,
    "lr": float("nan"),
    "lost_seeds": 0,
    "sweep": "",
    "run_ids": "",
    "at_edge": False,
    "remark": "",
}
"""What stands beside a cell that no sweep asks for."""


def beside(paper: Paper, filled: pd.DataFrame) -> pd.DataFrame:
    """The frame of the module for the tables that come from runs: 1, 3, 4, 5, 11 and 12."""
    printed = paper.cells[paper.cells["table"].isin(list(SWEEPS))].reset_index(drop=True)
    chosen = choose(filled)
    finished = chosen["status"] == "finished"
    alone = chosen.assign(  # each seed as a setting of its own
        test_mean=chosen["test_accuracy"].where(finished),
        run_ids=chosen["run_id"].where(finished, ""),
        n=finished.astype(int),
        seeds=1,
        collapsed=0,
    )
    settings = _index(over_seeds(chosen)) | _index(alone, "seed")
    found = [NOTHING | _measured(row, settings) for row in printed.to_dict("records")]
    frame = pd.concat([printed, pd.DataFrame(found)], axis=1)
    _fill_averages(frame)
    frame["difference"] = frame["measured"] - frame["value"]
    frame["here_bold"] = False
    for group in groups(frame):
        there = group.cells[group.cells["status"] != "absent"]  # rows that the paper has
        if there["here"].isin(FAILED).all() and not there["lacking"].any():
            frame.loc[there.index, "here_bold"] = _best(frame, there, group)
    return frame


def _best(frame: pd.DataFrame, there: Any, group: Group) -> Any:
    """Which cells of a group that is there are bold: a collapse is never better than a number.

    Averages are compared over the tasks that every method finished without a collapse, methods without any such task
    left out.
    """
    values = there["measured"].where(there["lost_seeds"] == 0)
    averages = there[there["task"] == AVERAGE]
    if len(averages):
        first = averages.iloc[0]
        same = [frame[key] == first[key] for key in ("table", "model", "quantity")]
        rows = frame[same[0] & same[1] & same[2] & (frame["task"] != AVERAGE)]
        rows = rows[rows["method"].isin(averages["method"])]
        rows = rows.assign(measured=rows["measured"].where(rows["lost_seeds"] == 0))
        tasks = rows.pivot(index="method", columns="task", values="measured")
        common = list(tasks.dropna(how="all").dropna(axis=1).columns)
        values.loc[averages.index] = averages["method"].map(tasks[common].mean(axis=1))
        if len(common) < tasks.shape[1]:
            basis = f"bold compares averages over {', '.join(common) or 'no task'}, which all methods finished"
            for index in averages.index:
                said = str(frame.loc[index, "remark"])
                frame.loc[index, "remark"] = "; ".join(filter(None, [said, basis]))
    return (better(values, group.lowest) < group.best) & values.notna()


Key = tuple[Any, ...]


def _index(rows: pd.DataFrame, *more: str) -> dict[Key, dict[str, Any]]:
    """Rows by sweep, model, task, method and what the sweep varies (k, adaptive noise), as text, and `more`."""
    index: dict[Key, dict[str, Any]] = {}
    for row in rows.to_dict("records"):
        varied = json.loads(row["variant"])
        k = varied.get("optimizer.k", "")
        noise = varied.get("optimizer.adaptive_noise", "")
        words = {True: "with", False: "without", "": ""}
        setting = (row["sweep"], row["model"], row["task"], row["optimizer"], str(k), words[noise])
        index[(*setting, *(row[key] for key in more))] = {str(k): v for k, v in row.items()}
    return index


def _key(row: dict[Any, Any]) -> Key:
    """The setting that a printed cell comes from; its sweep is empty if no sweep asks for it."""
    model, task, method, part = (row[key] for key in ("model", "task", "method", "part"))
    if row["table"] in (1, 11):
        return ("table1", model, task, method, "", "")
    if row["table"] == 3:
        return (BY_MODEL[model], model, task, method, "", "")
    if row["table"] == 4:
        return ("table4", model, "phrases", method, "", "")
    sweep = "table12_c" if row["table"] == 12 and part == "c" else f"table5_{part}"
    noise = row["adaptive_noise"] if sweep in ("table5_c", "table5_d") else ""
    k = "" if sweep == "table5_d" else row["k"]  # the default
    return (sweep, model, task, "bszo", k, noise)


def _measured(row: dict[Any, Any], settings: dict[Key, dict[str, Any]]) -> dict[str, Any]:
    """What has been measured for one printed cell; averages come later. A standard deviation needs two seeds."""
    key = _key(row)
    if row["table"] == 11 and row["task"] != AVERAGE:
        key = (*key, int(row["run"]) - 1)  # run 1 is seed 0
    found = settings.get(key)
    if found is None or row["task"] == AVERAGE:
        return {}
    column, factor = QUANTITIES[row["quantity"]]
    lost = int(found["collapsed"]) if found["status"] != "collapsed" else 0
    said = f"{lost} of {found['seeds']} seeds collapsed at the chosen learning rate"
    return {
        "measured": factor * found[column],
        "n": int(found["n"]),
        "seeds": int(found["seeds"]),
        "here": found["status"],
        "lacking": int(found["n_missing"] + found["n_unfinished"] + found["n_duplicated"]),
        "lr": found["lr"],
        "lost_seeds": int(found["collapsed"]),
        "sweep": found["sweep"],
        "run_ids": found["run_ids"],
        "at_edge": bool(found["at_edge"]),
        "remark": said if lost else "",
    }


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
        found["sweep"] = parts["sweep"].max()
        if not open_ and len(numbers):
            found |= {"measured": numbers["measured"].mean(), "n": numbers["n"].min()}
            if len(left_out):
                found["remark"] = f"leaves out {', '.join(left_out)}, which collapsed"
        for key, value in found.items():
            frame.loc[index, key] = value  # type: ignore[index]
