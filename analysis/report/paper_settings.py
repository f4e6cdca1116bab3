"""The paper's tables that say what was run, beside what this suite runs: Tables 6 to 10 from conf/, Table 2 from runs.

YAML is read as text here, without the suite: `defaults` matter only where one optimizer's file builds on another's.
"""

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.paper.names import TASKS, method_label, task_label
from analysis.paper.printed_numbers import METHODS, Paper, PaperError
from analysis.report.paper_layout import TITLES
from analysis.report.table import ABSENT, Cell, Column, Table, number

CONF = Path(__file__).resolve().parents[2] / "conf"
LABELS = {
    "batch_size": "batch size",
    "lr": "learning rates",
    "eps": "ε",
    "patience_steps": "early stopping, steps",
}
SPLITS = {
    "train_size": ("training", ""),
    "validation_size": ("validation", "best/val_n"),
    "test_size": ("test", "best/test_n"),
}
"""Size of a split in conf/task -> its name in Table 6, and the key under which runs log it; none for training."""
BYTES_PER_MIB = 2**20
NAN = float("nan")


def settings(paper: Paper) -> pd.DataFrame:
    """Tables 7 to 10: each printed hyperparameter and that of conf/, a row per number.

    Returns:
        The columns of the printed numbers, and `measured`, the number in conf/ (NaN if it has none), `difference`.
    """
    rows: Any = paper.rows("table7-10").reset_index(drop=True)
    rows["measured"] = [_in_conf(row) for row in rows.to_dict("records")]
    rows["difference"] = rows["measured"] - rows["value"]
    return rows


def _in_conf(row: dict[Any, Any]) -> float:
    """A hyperparameter in conf/; of an optimizer's file, or of the one that it builds on, m is k + 1 if not given."""
    name, method = row["quantity"], row["method"]
    everything = _yaml("config.yaml")
    if name == "patience_steps":
        return float(everything["patience"]) * float(everything["eval_every"])
    if name == "batch_size":
        return float(everything["batch_size"])
    if name == "lr":
        grid = _yaml(f"model/{row['model']}.yaml")["lr_grid"].get(method, [])
        return float(dict(enumerate(grid)).get(int(row["position"]), NAN))
    named = _yaml(f"optimizer/{method}.yaml").get("defaults", [])
    content: dict[str, Any] = {}
    for one in [*(n for n in named if isinstance(n, str) and n != "_self_"), method]:
        content |= _yaml(f"optimizer/{one}.yaml")
    value = content.get(name)
    return (
        float(content["k"]) + 1
        if value is None and name == "m"
        else float(NAN if value is None else value)
    )


def settings_table(number_: int, frame: pd.DataFrame) -> Table:
    """One of Tables 7 to 10."""
    heads = ["method", "hyperparameter", "paper", "conf/", "same"]
    caption = ["conf/: model/*.yaml (learning rates), optimizer/*.yaml, config.yaml."]
    content = Table(f"Table {number_}. {TITLES[number_]}", heads, names=4, caption=caption)
    for method, of_method in frame[frame["table"] == number_].groupby("method", sort=False):
        content.breaks.append(len(content.rows))
        label = "all methods" if method == "all" else method_label(str(method))
        for name, rows in of_method.groupby("quantity", sort=False):
            same = "yes" if (rows["difference"].abs() <= 1e-12).all() else "no"
            ours = ", ".join(_short(value).text for value in rows["measured"])
            words = LABELS.get(str(name), str(name))
            content.rows.append([label, words, ", ".join(rows["printed"]), ours, same])
    return content


def splits(paper: Paper, runs: pd.DataFrame) -> pd.DataFrame:
    """Table 6: each printed size, beside that of conf/ and of the runs; and the test sizes, which it does not print.

    Returns:
        Columns `task`, `quantity`, `printed`, `value`, `conf`, `runs` (NaN without a run that says), `run_count`,
        `measured` (`runs`, else `conf`), `difference`.
    """
    printed: Any = paper.rows("table6").set_index(["task", "quantity"])[["printed", "value"]]
    rows = []
    for task, (name, (_, key)) in product(printed.index.unique("task"), SPLITS.items()):
        seen = runs[runs.reindex(columns=["task.name"])["task.name"] == task]
        sizes = seen.reindex(columns=[key])[key].dropna()
        row = {"task": task, "quantity": name, "printed": "", "value": TASKS[task].get("test_size")}
        if (task, name) in printed.index:
            row |= printed.loc[(task, name)].to_dict()
        row["conf"] = float(_yaml(f"task/{task}.yaml")[name]) if name != "test_size" else NAN
        rows.append(row | {"runs": float(sizes.max()), "run_count": len(sizes)})
    frame = pd.DataFrame(rows).astype({"value": float})
    frame["measured"] = frame["runs"].fillna(frame["conf"])
    frame["difference"] = frame["measured"] - frame["value"]
    return frame


def splits_table(frame: pd.DataFrame) -> Table:
    """Table 6."""
    tasks = list(dict.fromkeys(frame["task"]))
    heads = ["split", "", *map(task_label, tasks)]
    caption = [
        "paper: as printed; test sizes as the public data have them. conf: conf/task/*.yaml. runs: what runs "
        "logged; they log no training size. – no run of that task has logged it, or conf/ does not fix it."
    ]
    content = Table(f"Table 6. {TITLES[6]}", heads, names=2, caption=caption)
    for split, (label, _) in SPLITS.items():
        rows = frame[frame["quantity"] == split].set_index("task")
        content.breaks.append(len(content.rows))
        for line, column in {"paper": "value", "conf": "conf", "runs": "runs"}.items():
            notes = ("not printed",) * (split == "test_size" and line == "paper")
            cells = (_short(rows.loc[task, column], notes) for task in tasks)
            content.rows.append([label if line == "paper" else "", line, *cells])
    return content


def state(paper: Paper, runs: pd.DataFrame) -> pd.DataFrame:
    """Table 2: each method's claims, and what its finished runs keep between steps.

    Returns:
        A row per method, model and precision of the runs, one with an empty model for a method without a run: `method`,
        `memory`, `additional_space` (printed), `model`, `precision`, `parameters`, `state_mib`,
        `bytes_per_parameter` (medians), `runs` (their number).
    """
    names = {
        **{f"{key}.name": key for key in ("model", "precision")},
        "optimizer.name": "method",
        "mem/state_mib": "state_mib",
        "provenance.parameters": "parameters",
        "precision.rounding": "rounding",
    }
    logged = runs.reindex(columns=["status", *names]).rename(columns=names)
    known = logged[["state_mib", "parameters"]].notna().all(axis=1)
    own = logged["rounding"] != "compensated"  # whose residuals are state that no method asks for
    logged = logged[(logged["status"] == "finished") & known & own]
    logged = logged.astype({"state_mib": float, "parameters": float})
    groups = logged.groupby(["method", "model", "precision"])
    medians = groups[["parameters", "state_mib"]].median().assign(runs=groups.size()).reset_index()
    claims = paper.rows("table2").pivot(index="method", columns="quantity", values="printed")
    methods = claims.reindex([method for method in METHODS if method in claims.index])
    frame = methods.reset_index().merge(medians, "left", "method")
    frame = frame.fillna({"model": "", "precision": "", "runs": 0}).astype({"runs": int})
    frame["bytes_per_parameter"] = frame["state_mib"] * BYTES_PER_MIB / frame["parameters"]
    columns = ["method", "memory", "additional_space", "model", "precision", "parameters"]
    return frame[[*columns, "state_mib", "bytes_per_parameter", "runs"]]


def state_table(frame: pd.DataFrame, command: str) -> Table:
    """Table 2, out of the frame of `state`; `command` makes runs of every method."""
    note = f"no finished run has logged it: `{command}` makes one per method and model of Table 4"
    first = ~frame["method"].duplicated()
    claims = frame[["memory", "additional_space"]].where(first, "")
    shown = frame.assign(label=frame["method"].map(method_label).where(first, ""), **claims)
    columns: dict[str, Column] = {
        "method": "label",
        "memory": "memory",
        "additional": "additional_space",
        "model": lambda row: row["model"] or ABSENT,
        "precision": lambda row: row["precision"] or ABSENT,
        "parameters": ("parameters", ",.0f"),
        "MiB": ("state_mib", ".3g"),
        "bytes per parameter": lambda row: number(
            row["bytes_per_parameter"], ".3g", notes=() if row["runs"] else (note,)
        ),
        "runs": ("runs", ".0f"),
    }
    caption = [
        "memory, additional: as printed; n parameters, k directions. Measured: what the method keeps between "
        "steps, at the end of a finished run, median over the runs."
    ]
    more = {"names": 5, "caption": caption, "breaks": list(frame.index[first])}
    return Table.of(f"Table 2. {TITLES[2]}", shown.to_dict("records"), columns, **more)


@cache
def _yaml(name: str) -> dict[str, Any]:
    """A file of conf/, read once."""
    try:
        return yaml.safe_load((CONF / name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PaperError(
            f"there is no file conf/{name}: Tables 6 to 10 are read from conf/"
        ) from error


def _short(value: Any, notes: tuple[str, ...] = ()) -> Cell:
    """A number as short as it is; 0.0001 as 1e-4, as the paper's files have it."""
    if pd.isna(value):
        return Cell(ABSENT, notes=notes)
    text = f"{value:g}"
    if 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:e}".split("e")
        text = f"{float(mantissa):g}e{int(exponent)}"
    return Cell(text, float(value), notes=notes)
