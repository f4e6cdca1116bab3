"""Every cell that the paper prints, with what has been measured here beside it.

One frame, a row per printed number: the columns of `analysis.paper.printed_numbers`, and

| column | content |
|---|---|
| `measured` | in the unit of the printed number; NaN without one |
| `difference` | measured − printed; NaN unless both are numbers |
| `n`, `seeds` | finished runs behind it, and runs that there should be |
| `here` | `finished`, `collapsed`, `unfinished`, `missing`, `duplicated`, or `nowhere`: no sweep asks for this cell |
| `lacking` | runs of the cell's grid that are missing, unfinished or duplicated |
| `here_bold` | as `bold`, for the measured numbers; False unless the whole group has been measured. Never where a
seed |
| | collapsed. Averages are compared over the tasks that all methods finished; `measured` keeps the paper's basis |
| `lr` | the chosen learning rate |
| `lost_seeds` | seeds that collapsed at that learning rate |
| `sweep`, `run_ids` | where the runs come from |
| `at_edge` | whether the chosen learning rate is the smallest or the largest of its grid |
| `remark` | what the number hides: seeds that collapsed, tasks left out of an average |
"""

import json
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class Measured:
    """One measured number, or why there is none; the fields are columns of the frame."""

    measured: float = float("nan")
    n: int = 0
    seeds: int = 0
    here: str = "nowhere"
    lacking: int = 0
    lr: float = float("nan")
    lost_seeds: int = 0
    sweep: str = ""
    run_ids: str = ""
    at_edge: bool = False
    remark: str = ""


def beside(paper: Paper, filled: pd.DataFrame) -> pd.DataFrame:
    """The frame of the module for the tables that come from runs: 1, 3, 4, 5, 11 and 12."""
    printed = paper.cells[paper.cells["table"].isin(list(SWEEPS))].reset_index(drop=True)
    chosen = choose(filled)
    by_setting, by_seed = _index(over_seeds(chosen)), _index(chosen, "seed")
    found = [_measured(row, by_setting, by_seed) for row in printed.to_dict("records")]
    frame = pd.concat([printed, pd.DataFrame([asdict(one) for one in found])], axis=1)
    _fill_averages(frame)
    frame["difference"] = frame["measured"] - frame["value"]
    frame["here_bold"] = False
    for group in groups(frame):
        there = group.cells[group.cells["status"] != "absent"]  # rows that the paper has
        if there["here"].isin(FAILED).all() and not there["lacking"].any():
            frame.loc[there.index, "here_bold"] = _best(frame, there, group)
    return frame


def _best(frame: pd.DataFrame, there: Any, group: Group) -> Any:
    """Which cells of a group that is there are bold: a collapse is never better than a number."""
    values = there["measured"].where(there["lost_seeds"] == 0)
    averages = there["task"] == AVERAGE
    if averages.any():
        values = values.where(~averages, _over_common_tasks(frame, there[averages]))
        for index in there.index[averages]:
            frame.loc[index, "remark"] = _joined(frame.loc[index, "remark"], _basis(frame, there))
    return (better(values, group.lowest) < group.best) & values.notna()


def _tasks(frame: pd.DataFrame, averages: Any) -> Any:
    """The tasks behind averages of one table and model: a row per method, a column per task; NaN for a collapse."""
    first = averages.iloc[0]
    same = [frame[key] == first[key] for key in ("table", "model", "quantity")]
    rows = frame[same[0] & same[1] & same[2] & (frame["task"] != AVERAGE)]
    rows = rows[rows["method"].isin(averages["method"])]
    return rows.assign(measured=rows["measured"].where(rows["lost_seeds"] == 0)).pivot(
        index="method", columns="task", values="measured"
    )


def _common_tasks(tasks: Any) -> list[str]:
    """The tasks that every method finished without a collapse, methods without any such task left out."""
    return list(tasks.dropna(how="all").dropna(axis=1).columns)


def _over_common_tasks(frame: pd.DataFrame, averages: Any) -> Any:
    """The averages over common tasks alone, which bold compares."""
    tasks = _tasks(frame, averages)
    return averages["method"].map(tasks[_common_tasks(tasks)].mean(axis=1))


def _basis(frame: pd.DataFrame, averages: Any) -> str:
    """What bold compares, where that is not all tasks."""
    tasks = _tasks(frame, averages[averages["task"] == AVERAGE])
    common = _common_tasks(tasks)
    if len(common) == tasks.shape[1]:
        return ""
    return (
        f"bold compares averages over {', '.join(common) or 'no task'}, which all methods finished"
    )


def _joined(*remarks: str) -> str:
    return "; ".join(remark for remark in dict.fromkeys(remarks) if remark)


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


def _measured(
    row: dict[Any, Any], by_setting: dict[Key, dict[str, Any]], by_seed: dict[Key, dict[str, Any]]
) -> Measured:
    """What has been measured for one printed cell; averages come later."""
    if row["task"] == AVERAGE:
        return Measured()
    key = _key(row)
    if row["table"] == 11:
        run = by_seed.get((*key, int(row["run"]) - 1))  # run 1 is seed 0
        return Measured() if run is None else _of_run(run)
    setting = by_setting.get(key)
    return Measured() if setting is None else _of_setting(setting, row["quantity"])


def _of_run(run: dict[str, Any]) -> Measured:
    """One seed at the chosen learning rate."""
    finished = run["status"] == "finished"
    value = PERCENT * run["test_accuracy"] if finished else float("nan")
    known: dict[str, Any] = {
        "n": int(finished),
        "seeds": 1,
        "run_ids": run["run_id"] if finished else "",
    }
    return Measured(measured=value, **known, **_common(run))


def _of_setting(setting: dict[str, Any], quantity: str) -> Measured:
    """All seeds of a setting; a standard deviation needs two."""
    value, factor = QUANTITIES[quantity]
    known = {key: int(setting[key]) for key in ("n", "seeds")} | {"run_ids": setting["run_ids"]}
    lost = int(setting["collapsed"])
    return Measured(measured=factor * setting[value], lost_seeds=lost, **known, **_common(setting))


def _common(row: dict[str, Any]) -> dict[str, Any]:
    """What a seed and a setting have in common; the remark says how many seeds a mean leaves out."""
    collapsed = row.get("collapsed", 0) if row["status"] != "collapsed" else 0
    lost = f"{collapsed} of {row.get('seeds', 1)} seeds collapsed at the chosen learning rate"
    return {
        "here": row["status"],
        "lacking": int(row["n_missing"] + row["n_unfinished"] + row["n_duplicated"]),
        "lr": row["lr"],
        "sweep": row["sweep"],
        "at_edge": bool(row["at_edge"]),
        "remark": lost if collapsed else "",
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
