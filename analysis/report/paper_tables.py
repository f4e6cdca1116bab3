"""Tables 1 to 12 of the paper, rebuilt from runs and from conf/, each number beside the printed one.

Tables 1, 3, 4, 5, 11 and 12 come from the runs of conf/sweep: each printed number, the measured one below it, and their
difference. Table 2 comes from what runs logged of their optimizer's state, Tables 6 to 10 from conf/, whose YAML is
read as text here, without the suite. A csv has a row per number, unrounded; md and tex have the page; all.tex is a
document of all tables.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from rich.text import Text

from analysis.paper import names
from analysis.paper.names import method_label, task_label
from analysis.paper.printed_numbers import TABLES, Paper, digits
from analysis.report.markdown import csv, table_texts, write_texts
from analysis.report.table import (
    ABSENT,
    COLLAPSED,
    Cell,
    Column,
    Row,
    Table,
    console,
    latex_text,
    number,
    show,
)
from analysis.select.cells import EDGE, ROOT, command, shortfall
from analysis.select.paper_cells import BEHIND, FAILED, SWEEPS, beside, wanted, with_spread
from analysis.select.provenance import foot

DOCUMENT = r"""\documentclass{article}
\usepackage[a3paper,margin=15mm]{geometry}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""
DESCRIBED: dict[int, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "paper" / "tables.yaml").read_text(encoding="utf-8")
)
TITLES = {number_: str(table["title"]) for number_, table in DESCRIBED.items()}
COMMON = (
    "paper: as printed, means bold as printed. here: from the runs, bold by the same rule once all cells that it "
    "compares are measured. difference: here − paper. * every run collapsed. – not measured, see the notes."
)
PROTOCOL = (
    "Learning rate: the one of best validation accuracy, of equal ones the smaller; test accuracy: at the step of best "
    "validation accuracy."
)
QUANTITIES = {"memory_gb": "GB", "step_ms": "ms"}
LABELS: dict[str, Any] = {
    **names.LABELS,
    "quantity": QUANTITIES.get,
    "run": "Run {}".format,
    "part": "({})".format,
}
CONF = ROOT / "conf"
HYPERPARAMETERS = {
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


class Result(NamedTuple):
    """One of the paper's tables."""

    number: int
    pages: list[Table]  # its parts
    frame: pd.DataFrame  # its numbers
    summary: str  # how much of it there is
    lacks: Sequence[str] = ()  # sentences that say what lacks


def build(
    numbers: Iterable[int], paper: Paper, runs: pd.DataFrame, filled: pd.DataFrame
) -> Iterable[Result]:
    """The tables; `filled`: the cells of the sweeps behind them, and maybe of others."""
    sizes, filled = wanted(paper), filled[filled["sweep"].isin(BEHIND)]
    frame = beside(paper, filled)
    for n in numbers:
        if n in SWEEPS:
            yield _from_runs(n, frame, filled, runs, {s: sizes[s] for s in SWEEPS[n]})
        elif n == 2:
            yield state(paper, runs)
        elif n == 6:
            yield splits(paper)
        else:
            yield hyperparameters(n, paper)


def write(results: Sequence[Result], directory: Path) -> list[Path]:
    """Write csv, md and tex of each table, and all.tex; two paths that stand for them."""
    texts: dict[str, str] = {}
    for result in results:
        texts |= table_texts(f"table{result.number}", csv(result.frame), result.pages)
    inputs = [
        f"\\section*{{Table {n}. {latex_text(TITLES[n])}}}\n\\noindent\\input{{table{n}.tex}}\\clearpage"
        for n in TABLES
        if f"table{n}.tex" in texts or (directory / f"table{n}.tex").exists()
    ]
    texts["all.tex"] = DOCUMENT % "\n".join(inputs)
    write_texts(directory, texts)
    return [directory / "table*.{csv,md,tex}", directory / "all.tex"]


def show_results(results: Sequence[Result], full: bool) -> None:
    """Print a line per table and what is missing; the tables themselves if they were asked for."""
    terminal = console(150)
    for result in results:
        for page in result.pages if full else []:
            show(page, terminal)
    terminal.print()
    for result in results:
        words = f"Table {result.number:2d}  {result.summary}  ({TITLES[result.number]})"
        terminal.print(Text(words))
    for line in dict.fromkeys(line for result in results for line in result.lacks):
        terminal.print(Text(f"  {line}", style="dim"))


def _from_runs(
    n: int,
    frame: pd.DataFrame,
    filled: pd.DataFrame,
    runs: pd.DataFrame,
    sizes: dict[str, int],
) -> Result:
    """A table of runs; `sizes`: sweep -> how many the paper made."""
    mine: Any = filled[filled["sweep"].isin(list(sizes)) & (filled["changed"] == "")]
    ended = mine.loc[mine["status"].isin(FAILED), "run_id"]
    there = runs[runs["run_id"].isin(ended)]
    lacks = {s: shortfall(mine[mine["sweep"] == s], {s: size}) for s, size in sizes.items()}
    pages = layouts(n, frame, {sweep: " ".join(said) for sweep, said in lacks.items()})
    for page in pages:
        page.caption += [foot(f"{len(there)} runs", there)] if len(there) else []
    rows: Any = frame[(frame["table"] == n) & (frame["here"] != "nowhere")]
    measured = int(rows["here"].isin(FAILED).sum())
    summary = f"{measured} of {len(rows)} numbers from {len(ended)} of {sum(sizes.values())} runs"
    said = [sentence for sentences in lacks.values() for sentence in sentences]
    return Result(n, pages, frame[frame["table"] == n], summary, said)


def layouts(number_: int, frame: pd.DataFrame, shortfalls: dict[str, str]) -> list[Table]:
    """The table of this number, or its parts; `shortfalls`: sweep -> the sentence that says which of its runs lack."""
    cells = with_spread(frame[frame["table"] == number_])
    about = DESCRIBED[number_]
    caption = [COMMON, *([PROTOCOL] if number_ != 4 else []), *filter(None, [about.get("caption")])]
    title = f"Table {number_}. {about['title']}"
    return [_grid(cells, shortfalls, title, caption, grid) for grid in about["grids"]]


def _over(cells: pd.DataFrame, method: str) -> pd.DataFrame:
    """The cells divided by those of one method, model by model."""
    keys, numbers = ["model", "quantity"], ["value", "measured"]
    base = cells[keys].merge(cells[cells["method"] == method], "left", keys)[numbers]
    ratios = cells[numbers] / base.set_index(cells.index)
    difference = ratios["measured"] - ratios["value"]
    printed = ratios["value"].map("{:.2f}".format)
    return cells.assign(**ratios, difference=difference, printed=printed)


def _grid(
    cells: pd.DataFrame, lacks: dict[str, str], title: str, caption: list[str], grid: dict[str, Any]
) -> Table:
    """A table of two or three lines per row: paper, here, and the difference where there is one."""
    rows, columns, base = grid["rows"], grid["columns"], grid.get("base", {})
    cells = cells[(cells[list(base)] == pd.Series(base)).all(axis=1)]
    if "over" in grid:
        cells = _over(cells, grid["over"])
        title += f", over {method_label(grid['over'])}'s"
    if isinstance(columns, dict):
        parts = [cells[(cells[list(c)] == pd.Series(c)).all(axis=1)] for c in columns.values()]
        cells = pd.concat([p.assign(head=h) for h, p in zip(columns, parts, strict=True)])
    else:
        words = [cells[key].map(LABELS.get(key, str)) for key in columns]
        cells = cells.assign(head=[" ".join(one) for one in zip(*words, strict=True)])
    heads = list(cells["head"].unique())
    named = [grid["name"]] if "name" in grid else rows
    content = Table(title, [*named, "", *heads], names=len(rows) + 1, caption=list(caption))
    for values, of_row in cells.groupby(rows, sort=False):
        selector = dict(zip(rows, values, strict=True))
        labels = [LABELS.get(key, str)(value) for key, value in selector.items()]
        found = {cell["head"]: cell for cell in of_row.to_dict("records")}
        content.breaks.append(len(content.rows))
        facet = {k: v for k, v in selector.items() if k in ("model", "task", "method")}
        for line, made in (("paper", _printed), ("here", _here), ("difference", _difference)):
            if line == "difference" and not of_row["difference"].notna().any():
                continue
            said = labels if line == "paper" else [""] * len(labels)
            shown = [made(found[head], lacks) if head in found else "" for head in heads]
            content.rows.append([*said, line, *shown])
            content.facets.append(facet)
    return content


def _printed(cell: Row, _: Any) -> Cell:
    value: float | None = None if pd.isna(cell["value"]) else float(cell["value"])
    tail: str = "" if pd.isna(cell["printed_std"]) else f" (±{cell['printed_std']})"
    return Cell(cell["printed"], value, tail, bold=cell["bold"])


def _here(cell: Row, shortfalls: dict[str, str]) -> Cell:
    """A measured number, or the mark of why there is none, with its notes."""
    if cell["here"] == "nowhere":
        return Cell(ABSENT, notes=("the paper has no such row, and no sweep asks for it",))
    lack = shortfalls.get(cell["sweep"], f"runs of {cell['sweep']} lack")
    if pd.isna(cell["measured"]):
        if cell["here"] == "collapsed":
            return Cell(COLLAPSED, notes=(lack,) if cell["lacking"] else (), kind="collapsed")
        return Cell(ABSENT, notes=(lack,), kind="missing")
    n = int(cell["n"])
    tail: str = f" ({n})" if cell["quantity"] == "mean" else ""
    if pd.notna(cell["printed_std"]):
        spread = number(cell["measured_std"], f".{digits(cell['printed_std'])}f").text
        tail = f" (±{spread}; {n})"
    notes = [cell["remark"]] if cell["remark"] else []
    notes += [f"chosen among the runs that there are: {lack}"] if cell["lacking"] else []
    notes += [EDGE] if cell["at_edge"] is True else []
    more = {"tail": tail, "notes": tuple(notes), "runs": cell["run_ids"], "kind": "measured"}
    more["bold"] = cell["here_bold"]
    places = digits(cell["printed"]) if cell["status"] == "printed" else 2
    return number(cell["measured"], f".{places}f", **more)


def _difference(cell: Row, _: Any) -> Cell:
    if pd.isna(cell["difference"]):
        return Cell("")
    return number(cell["difference"], f"+.{digits(cell['printed'])}f")


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
        words = [label, HYPERPARAMETERS.get(name, name), ", ".join(rows["printed"]), ours]
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
    page = Table.of(f"Table 2. {TITLES[2]}", shown, columns, **more)
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
