"""The page's table of every number that the paper prints, beside what was measured."""

import pandas as pd

from analysis.paper.names import method_label, model_label, task_label
from analysis.paper.printed_numbers import AVERAGE
from analysis.report.table import ABSENT, COLLAPSED, Cell, Column, Row, Table, number
from analysis.select.cell_runs import EDGE, command
from analysis.select.paper_cells import with_spread

QUANTITIES = {
    "mean": "accuracy, %",
    "test_accuracy": "accuracy, %",
    "memory_gb": "memory, GB",
    "step_ms": "ms per step",
}
CAPTION = (
    "Accuracies are percentages of the test examples, at the step of best validation accuracy and the chosen "
    "learning rate; with several seeds, mean ± sample standard deviation. n: finished runs; † some of the runs "
    "lack. Bold as in the paper; of measured numbers, once a whole group has been measured. `–`: not measured "
    "here; point at it for the command that runs it. `*` collapsed."
)
COLUMNS: dict[str, Column] = {
    "table": lambda cell: f"{cell['table']} {cell['part']}".strip(),
    "model": lambda cell: model_label(cell["model"]),
    "task": lambda cell: (
        "average" if cell["task"] == AVERAGE else task_label(cell["task"] or ABSENT)
    ),
    "method": lambda cell: method_label(cell["method"]),
    "precision": "precision",
    "setting": lambda cell: _setting(cell),
    "paper": lambda cell: _printed(cell),
    "measured": lambda cell: _measured(cell),
    "difference": ("difference", "+.2f"),
    "n": ("n", ".0f"),
    "lr": lambda cell: number(cell["lr"], "g", notes=(EDGE,) * bool(cell["at_edge"])),
}


def beside_table(beside: pd.DataFrame, filled: pd.DataFrame) -> Table:
    """Every accuracy, memory and time that the paper prints, beside what was measured."""
    shown = with_spread(beside[beside["status"] != "absent"])
    precisions = filled.drop_duplicates(["sweep", "model"])[["sweep", "model", "precision"]]
    shown = shown.merge(precisions, "left", ["sweep", "model"])
    facets = shown[["model", "method", "precision", "task"]].replace({"task": {AVERAGE: ""}})
    facets = facets.fillna("").replace({"method": {"": "bszo"}, "task": {"": "-"}})
    shown["precision"] = shown["precision"].fillna(ABSENT)
    shown["method"] = facets["method"]
    more = {"names": 6, "name": "paper-measured", "caption": [CAPTION]}
    return Table.of(
        "The paper's cells: printed and measured",
        shown.to_dict("records"),
        COLUMNS,
        facets=facets.to_dict("records"),
        **more,
    )


def _printed(cell: Row) -> Cell:
    tail: str = "" if pd.isna(cell["printed_std"]) else f" ± {cell['printed_std']}"
    value: float | None = None if pd.isna(cell["value"]) else float(cell["value"])
    return Cell(cell["printed"], value, tail, bold=bool(cell["bold"]))


def _measured(cell: Row) -> Cell:
    tip = str(cell["remark"])
    if cell["here"] == "nowhere":
        tip = "No sweep asks for this cell."
    elif cell["lacking"]:
        lack = f"Runs lacking: {cell['lacking']}. To run them: {command(cell['sweep'])}"
        tip = ". ".join(filter(None, [tip, lack]))
    known = {"tip": tip, "runs": cell["run_ids"]}
    if pd.isna(cell["measured"]):
        lost = cell["here"] == "collapsed"
        return Cell(COLLAPSED if lost else ABSENT, kind="collapsed" if lost else "missing", **known)
    spread = cell["measured_std"]
    tail: str = ("" if pd.isna(spread) else f" ± {spread:.2f}") + "†" * bool(cell["lacking"])
    more = {"tail": tail, "kind": "measured", "bold": bool(cell["here_bold"])}
    return number(cell["measured"], ".2f", **more, **known)


def _setting(cell: Row) -> str:
    parts = [f"run {cell['run']}"] if cell["run"] else []
    parts += [f"k = {cell['k']}"] if cell["k"] else []
    if cell["part"] in ("c", "d"):
        parts.append(f"{cell['adaptive_noise']} adaptive noise")
    elif cell["part"]:
        parts.append("m = k" if cell["part"] == "a" else "m = k + 1")
    return ", ".join(parts or [QUANTITIES[cell["quantity"]]])
