"""The paper's tables that say what was run, beside what this suite runs: Tables 6 to 10 from conf/, Table 2 from runs.

YAML is read as text here, without the suite: `defaults` matter only where one optimizer's file builds on another's.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.paper.names import PAPER_TASKS, method_label
from analysis.paper.printed_numbers import METHODS, TEST_SIZES, Paper, PaperError
from analysis.report.paper_layout import TITLES
from analysis.report.table import ABSENT, Cell, Table, number

CONF = Path(__file__).resolve().parents[2] / "conf"
LABELS = {
    "batch_size": "batch size",
    "lr": "learning rates",
    "eps": "ε",
    "rank": "rank",
    "interval": "interval",
    "k": "k",
    "m": "m",
    "patience_steps": "early stopping, steps",
}
SPLITS = {"train_size": "training", "validation_size": "validation", "test_size": "test"}
BYTES_PER_MIB = 2**20


def settings(paper: Paper, conf: Path = CONF) -> pd.DataFrame:
    """Tables 7 to 10: each printed hyperparameter and that of conf/, a row per number.

    Returns:
        The columns of the printed numbers, and `measured`, the number in conf/ (NaN if it has none), `difference`.

    Raises:
        PaperError: a file of conf/ is missing.
    """
    rows: Any = paper.rows("table7-10").reset_index(drop=True)
    read = cache(_yaml)  # each file once
    everything = read(conf / "config.yaml")
    patience = float(everything["patience"]) * float(everything["eval_every"])
    found = []
    for row in rows.to_dict("records"):
        name = row["quantity"]
        if name == "patience_steps":
            found.append(patience)
        elif name == "batch_size":
            found.append(float(everything["batch_size"]))
        elif name == "lr":
            grid = read(conf / "model" / f"{row['model']}.yaml")["lr_grid"].get(row["method"], [])
            place = int(row["position"])
            found.append(float(grid[place]) if place < len(grid) else float("nan"))
        else:
            found.append(_of_optimizer(row["method"], name, conf / "optimizer", read))
    rows["measured"] = found
    rows["difference"] = rows["measured"] - rows["value"]
    return rows


def settings_table(number_: int, frame: pd.DataFrame) -> Table:
    """One of Tables 7 to 10."""
    content = Table(
        f"Table {number_}. {TITLES[number_]}",
        ["method", "hyperparameter", "paper", "conf/", "same"],
        names=4,
        caption=["conf/: model/*.yaml (learning rates), optimizer/*.yaml, config.yaml."],
    )
    of_table = frame[frame["table"] == number_]
    for method, of_method in of_table.groupby("method", sort=False):
        content.breaks.append(len(content.rows))
        for name, rows in of_method.groupby("quantity", sort=False):
            same = bool((rows["difference"].abs() <= 1e-12).all())
            label = "all methods" if method == "all" else method_label(str(method))
            ours = ", ".join(_short(value).text for value in rows["measured"])
            content.rows.append(
                [
                    label,
                    LABELS[str(name)],
                    ", ".join(rows["printed"]),
                    ours,
                    "yes" if same else "no",
                ]
            )
    return content


def splits(paper: Paper, runs: pd.DataFrame, conf: Path = CONF) -> pd.DataFrame:
    """Table 6: each printed size, beside that of conf/ and of the runs; and the test sizes, which it does not print.

    A run logs how many validation and test examples it scored, not how many it trained on: training sizes are those
    of conf/.

    Returns:
        Columns `task`, `quantity`, `printed`, `value`, `conf`, `runs` (NaN without a run that says), `run_count`,
        `measured` (`runs`, else `conf`), `difference`.

    Raises:
        PaperError: a file of conf/ is missing.
    """
    printed: Any = paper.rows("table6")
    rows = []
    for task in printed["task"].unique():
        content = _yaml(conf / "task" / f"{task}.yaml")
        seen = runs[runs["task.name"] == task] if "task.name" in runs else runs.iloc[:0]
        for name, logged in (
            ("train_size", None),
            ("validation_size", "best/val_n"),
            ("test_size", "best/test_n"),
        ):
            cell = printed[(printed["task"] == task) & (printed["quantity"] == name)]
            sizes = seen[logged].dropna() if logged and logged in seen else pd.Series(dtype=float)
            configured = float(content[name]) if name != "test_size" else float("nan")
            size = float(sizes.max()) if len(sizes) else float("nan")
            rows.append(
                {
                    "task": task,
                    "quantity": name,
                    "printed": cell["printed"].iloc[0] if len(cell) else "",
                    "value": cell["value"].iloc[0] if len(cell) else float(TEST_SIZES[task]),
                    "conf": configured,
                    "runs": size,
                    "run_count": len(sizes),
                    "measured": configured if pd.isna(size) else size,
                }
            )
    frame = pd.DataFrame(rows)
    frame["difference"] = frame["measured"] - frame["value"]
    return frame


def splits_table(frame: pd.DataFrame) -> Table:
    """Table 6."""
    tasks = list(dict.fromkeys(frame["task"]))
    content = Table(
        f"Table 6. {TITLES[6]}",
        ["split", "", *(PAPER_TASKS[task] for task in tasks)],
        names=2,
        caption=[
            "paper: as printed; test sizes as the public data have them. conf: conf/task/*.yaml. runs: what runs "
            "logged; they log no training size. – no run of that task has logged it, or conf/ does not fix it."
        ],
    )
    for split, label in SPLITS.items():
        rows = frame[frame["quantity"] == split].set_index("task")
        content.breaks.append(len(content.rows))
        notes = ("not printed",) if split == "test_size" else ()
        for line, column in (("paper", "value"), ("conf", "conf"), ("runs", "runs")):
            values = [
                _short(rows.loc[task, column], notes if line == "paper" else ()) for task in tasks
            ]
            content.rows.append([label if line == "paper" else "", line, *values])
    return content


def state(paper: Paper, runs: pd.DataFrame) -> pd.DataFrame:
    """Table 2: each method's claims, and what its finished runs keep between steps.

    Returns:
        A row per method, model and precision of the runs, one with an empty model for a method without a run: `method`,
        `memory`, `additional_space` (printed), `model`, `precision`, `parameters`, `state_mib`,
        `bytes_per_parameter` (medians), `runs` (their number).
    """
    names = {
        "optimizer.name": "method",
        "model.name": "model",
        "precision.name": "precision",
        "mem/state_mib": "state_mib",
        "provenance.parameters": "parameters",
        "precision.rounding": "rounding",
    }
    logged = runs.reindex(columns=["status", *names]).rename(columns=names)
    logged = logged[(logged["status"] == "finished") & logged["state_mib"].notna()]
    logged = logged[logged["parameters"].notna()]
    residuals = logged["rounding"] == "compensated"  # state that no method asks for
    logged = logged[~residuals]
    rows = []
    for method in [m for m in METHODS if paper.find(2, method=m, quantity="memory") is not None]:
        claims = {
            name: paper.rows(f"table2 method={method} quantity={name}")["printed"].iloc[0]
            for name in ("memory", "additional_space")
        }
        mine = logged[logged["method"] == method]
        for (model, precision), some in mine.groupby(["model", "precision"], sort=True):
            parameters = float(some["parameters"].astype(float).median())
            mib = float(some["state_mib"].astype(float).median())
            rows.append(
                {
                    "method": method,
                    **claims,
                    "model": model,
                    "precision": precision,
                    "parameters": parameters,
                    "state_mib": mib,
                    "bytes_per_parameter": mib * BYTES_PER_MIB / parameters,
                    "runs": len(some),
                }
            )
        if mine.empty:
            rows.append({"method": method, **claims, "model": "", "precision": "", "runs": 0})
    columns = ["method", "memory", "additional_space", "model", "precision", "parameters"]
    return pd.DataFrame(rows, columns=[*columns, "state_mib", "bytes_per_parameter", "runs"])


def state_table(frame: pd.DataFrame, command: str) -> Table:
    """Table 2.

    Args:
        frame: of `state`.
        command: what makes runs of every method.
    """
    heads = [
        "method",
        "memory",
        "additional",
        "model",
        "precision",
        "parameters",
        "MiB",
        "bytes per parameter",
        "runs",
    ]
    content = Table(
        f"Table 2. {TITLES[2]}",
        heads,
        names=5,
        caption=[
            "memory, additional: as printed; n parameters, k directions. Measured: what the method keeps between "
            "steps, at the end of a finished run, median over the runs."
        ],
    )
    note = f"no finished run has logged it: `{command}` makes one per method and model of Table 4"
    for _, of_method in frame.groupby("method", sort=False):
        content.breaks.append(len(content.rows))
        for i, row in enumerate(of_method.to_dict("records")):
            claims = (
                [method_label(row["method"]), row["memory"], row["additional_space"]]
                if i == 0
                else [""] * 3
            )
            where = [row["model"] or ABSENT, row["precision"] or ABSENT]
            mark = () if row["runs"] else (note,)
            numbers = [number(row["parameters"], ",.0f"), number(row["state_mib"], ".3g")]
            numbers += [
                number(row["bytes_per_parameter"], ".3g", notes=mark),
                number(row["runs"], ".0f"),
            ]
            content.rows.append([*claims, *where, *numbers])
    return content


def _of_optimizer(
    method: str, name: str, folder: Path, read: Callable[[Path], dict[str, Any]]
) -> float:
    """A number of an optimizer's file, or of the file that it builds on; m is k + 1 unless it says otherwise."""
    content: dict[str, Any] = {}
    for one in [*_bases(read(folder / f"{method}.yaml")), method]:
        content |= read(folder / f"{one}.yaml")
    value = content.get(name)
    if value is None and name == "m":
        return float(content["k"]) + 1
    return float("nan") if value is None else float(value)


def _bases(content: dict[str, Any]) -> list[str]:
    """The files of the same folder that a file's defaults list names."""
    return [
        entry
        for entry in content.get("defaults", [])
        if isinstance(entry, str) and entry != "_self_"
    ]


def _yaml(path: Path) -> dict[str, Any]:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PaperError(f"there is no file {path}: Tables 6 to 10 are read from conf/") from error


def _short(value: Any, notes: tuple[str, ...] = ()) -> Cell:
    """A number as short as it is; 0.0001 as 1e-4, as the paper's files have it."""
    if pd.isna(value):
        return Cell(ABSENT, notes=notes)
    text = f"{value:g}"
    if 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:e}".split("e")
        text = f"{float(mantissa):g}e{int(exponent)}"
    return Cell(text, float(value), notes=notes)
