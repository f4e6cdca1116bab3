"""The paper's tables that say what was run, beside what this suite runs: Tables 6 to 10 from conf/, Table 2 from runs.

YAML is read as text here, without the suite: `defaults` matter only where one optimizer's file builds on another's.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.paper.names import method_label, task_label
from analysis.paper.printed_numbers import Paper
from analysis.report.paper_layout import TITLES, Result
from analysis.report.table import ABSENT, Cell, Column, Table
from analysis.select.cells import command

CONF = Path(__file__).resolve().parents[2] / "conf"
LABELS = {
    "batch_size": "batch size",
    "lr": "learning rates",
    "eps": "ε",
    "patience_steps": "early stopping, steps",
}
SPLITS = {"train_size": "training", "validation_size": "validation"}
"""Size of a split in conf/task -> its name in Table 6."""
STATE = {
    "model.name": "model",
    "precision.name": "precision",
    "optimizer.name": "method",
    "mem/state_mib": "state_mib",
    "provenance.parameters": "parameters",
}
BYTES_PER_MIB = 2**20


def hyperparameters(number_: int, paper: Paper) -> Result:
    """One of Tables 7 to 10: each printed hyperparameter and that of conf/.

    The frame has a row per number: the columns of the printed numbers, `measured`, the number in conf/ (NaN if it has
    none), `difference`.
    """
    frame: Any = paper.table(number_).reset_index(drop=True)
    frame["measured"] = [_in_conf(row) for row in frame.to_dict("records")]
    frame = frame.astype({"measured": float})
    frame["difference"] = frame["measured"] - frame["value"]
    same = frame["difference"].abs() <= 1e-12
    heads = ["method", "hyperparameter", "paper", "conf/", "same"]
    caption = ["conf/: model/*.yaml (learning rates), optimizer/*.yaml, config.yaml."]
    page = Table(f"Table {number_}. {TITLES[number_]}", heads, names=4, caption=caption)
    for (method, name), rows in frame.groupby(["method", "quantity"], sort=False):
        label = "all methods" if method == "all" else method_label(method)
        if not page.rows or page.rows[-1][0] != label:
            page.breaks.append(len(page.rows))
        ours = ", ".join(_short(value).text for value in rows["measured"])
        words = [label, LABELS.get(name, name), ", ".join(rows["printed"]), ours]
        page.rows.append([*words, "yes" if same[rows.index].all() else "no"])
    summary = f"{same.sum()} of {len(frame)} numbers of conf/ as printed"
    return Result(number_, [page], frame, summary)


def _in_conf(row: dict[Any, Any]) -> Any:
    """A hyperparameter in conf/, None if it has none; m is k + 1 if not given."""
    name, method, top = row["quantity"], row["method"], _conf("config")
    if name == "patience_steps":
        return top["patience"] * top["eval_every"]
    if name == "lr":
        grid = _conf(f"model/{row['model']}")["lr_grid"].get(method, [])
        return dict(enumerate(grid)).get(int(row["position"]))
    own = top if name == "batch_size" else _conf(f"optimizer/{method}")
    return own["k"] + 1 if name == "m" and own["m"] is None else own.get(name)


def splits(paper: Paper) -> Result:
    """Table 6: each printed size, beside that of conf/.

    The frame has a row per number: `task`, `quantity`, `printed`, `value`, `measured`, the number in conf/,
    `difference`.
    """
    frame = paper.table(6)[["task", "quantity", "printed", "value"]].reset_index(drop=True)
    pairs = zip(frame["task"], frame["quantity"], strict=True)
    frame["measured"] = [float(_conf(f"task/{task}")[split]) for task, split in pairs]
    frame["difference"] = frame["measured"] - frame["value"]
    caption = ["paper: as printed. conf/: task/*.yaml. Sizes of test sets are not printed."]
    heads = ["split", "", *map(task_label, frame["task"].unique())]
    page = Table(f"Table 6. {TITLES[6]}", heads, names=2, caption=caption)
    for split, rows in frame.groupby("quantity", sort=False):
        page.breaks.append(len(page.rows))
        page.rows.append([SPLITS[str(split)], "paper", *map(_short, rows["value"])])
        page.rows.append(["", "conf/", *map(_short, rows["measured"])])
    same = (frame["difference"] == 0).sum()
    return Result(6, [page], frame, f"{same} of {len(frame)} sizes as printed")


def state(paper: Paper, runs: pd.DataFrame) -> Result:
    """Table 2: each method's claims, and what its finished runs keep between steps.

    The frame has a row per method, model and precision of the runs, one with an empty model for a method without a run:
    `method`, `memory`, `additional_space` (printed), `model`, `precision`, `parameters`, `state_mib`,
    `bytes_per_parameter` (medians), `runs` (their number).
    """
    known = runs.reindex(columns=["status", "precision.rounding", *STATE]).rename(columns=STATE)
    own = known["precision.rounding"] != "compensated"  # whose residuals no method asks for
    known = known[(known["status"] == "finished") & own].dropna(subset=["state_mib", "parameters"])
    known = known.astype({"state_mib": float, "parameters": float})
    groups = known.groupby(["method", "model", "precision"])
    medians = groups[["parameters", "state_mib"]].median().assign(runs=groups.size()).reset_index()
    printed = paper.table(2)
    claims = printed.pivot(index="method", columns="quantity", values="printed")
    claims = claims.loc[printed["method"].unique(), ["memory", "additional_space"]].reset_index()
    frame = claims.merge(medians, "left", "method")
    frame = frame.fillna({"model": "", "precision": "", "runs": 0}).astype({"runs": int})
    per_parameter = frame["state_mib"] * BYTES_PER_MIB / frame["parameters"]
    frame.insert(len(frame.columns) - 1, "bytes_per_parameter", per_parameter)
    first = ~frame["method"].duplicated()
    shown = frame.assign(method=frame["method"].map(method_label))
    words = ["method", "memory", "additional_space"]
    shown[words] = shown[words].where(first, "")
    columns: dict[str, Column] = {
        "method": "method",
        "memory": "memory",
        "additional": "additional_space",
        "model": lambda row: row["model"] or ABSENT,
        "precision": lambda row: row["precision"] or ABSENT,
        "parameters": ("parameters", ",.0f"),
        "MiB": ("state_mib", ".3g"),
        "bytes per parameter": ("bytes_per_parameter", ".3g"),
        "runs": ("runs", ".0f"),
    }
    caption = [
        "memory, additional: as printed; n parameters, k directions. Measured: what the method keeps between "
        "steps, at the end of a finished run, median over the runs."
    ]
    more = {"names": 5, "caption": caption, "breaks": list(frame.index[first])}
    page = Table.of(f"Table 2. {TITLES[2]}", shown.to_dict("records"), columns, **more)
    without = [method_label(method) for method in frame["method"][frame["runs"] == 0]]
    summary = f"{len(claims) - len(without)} of {len(claims)} methods measured, from {frame['runs'].sum()} runs"
    said = f"no finished run has logged the state of {', '.join(without)}: `{command('table4')}` makes them"
    return Result(2, [page], frame, summary, [said] if without else [])


@cache
def _conf(name: str) -> dict[str, Any]:
    """A file of conf/, on top of the file of its group that it builds on."""
    content = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    for below in content.get("defaults", []):
        if isinstance(below, str) and "/" not in below and below != "_self_":
            content = _conf(f"{name.rpartition('/')[0]}/{below}") | content
    return content


def _short(value: Any) -> Cell:
    """A number as short as it is; 0.0001 as 1e-4, as the paper's files have it."""
    if pd.isna(value):
        return Cell(ABSENT)
    small = 0 < abs(value) < 1e-3
    text = np.format_float_scientific(value, trim="-", exp_digits=1) if small else f"{value:g}"
    return Cell(text, float(value))
