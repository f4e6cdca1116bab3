"""The layouts of Tables 1, 3, 4, 5, 11 and 12: each printed number, the measured one below it, and their difference."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pandas as pd

from analysis.paper.names import PAPER_MODELS, PAPER_TASKS, method_label
from analysis.paper.printed_numbers import KEYS, METHODS, digits
from analysis.report.table import ABSENT, COLLAPSED, Cell, Table, number
from analysis.select.cell_runs import EDGE

TITLES = {
    1: "Test accuracy (%) on RoBERTa-large",
    2: "Memory complexity, and the optimizer's state as measured",
    3: "Test accuracy (%) on OPT-1.3B (fp32), Mistral-7B (fp16) and OPT-13B (bf16)",
    4: "Memory (GB) and time per step (ms)",
    5: "Ablations of BSZO, test accuracy (%)",
    6: "Training and validation examples",
    7: "Hyperparameters, RoBERTa-large",
    8: "Hyperparameters, OPT-1.3B",
    9: "Hyperparameters, Mistral-7B",
    10: "Hyperparameters, OPT-13B",
    11: "Test accuracy (%) of 5 runs on RoBERTa-large",
    12: "Ablations of BSZO on OPT-1.3B in fp32, test accuracy (%)",
}
COMMON = (
    "paper: as printed, bold as printed. here: from the runs, bold by the same rule once all cells that it compares "
    "are measured. difference: here − paper. * every run collapsed. – not measured, see the notes."
)
PROTOCOL = (
    "Learning rate: the one of best validation accuracy, of equal ones the smaller; test accuracy: at the step of best "
    "validation accuracy."
)
CAPTIONS = {
    1: "± sample standard deviation (n − 1) over seeds 0 to 4; behind the semicolon n, the finished runs.",
    4: "1 GB is 10⁹ bytes, as the paper's must be: its MeZO-Adam then needs two numbers per parameter more than MeZO. "
    "Random weights; peak of the GPU, of the process on a CPU; median time per step.",
    5: "(a) m = k, (b) m = k + 1; (c) with and without adaptive noise, OPT-1.3B in bf16; (d) the same on OPT-13B.",
    12: "(a) m = k, (b) m = k + 1, (c) noise-free adaptive sampling.",
    11: "Run i is seed i − 1, at the learning rate that all seeds share; the paper does not name its seeds.",
}
Selector = dict[str, str]


def layouts(number_: int, frame: pd.DataFrame, shortfalls: dict[str, str]) -> list[Table]:
    """The table of this number, or its parts.

    Args:
        number_: of the paper's table.
        frame: see `analysis.select.paper_cells`.
        shortfalls: sweep -> the sentence that says which of its runs lack.
    """
    rows = frame[frame["table"] == number_]
    return _Layout(number_, rows, shortfalls).tables()


class _Layout:
    """Finds the cells of one table by what they belong to."""

    def __init__(self, number_: int, rows: pd.DataFrame, shortfalls: dict[str, str]) -> None:
        self.number, self.shortfalls = number_, shortfalls
        records = rows.to_dict("records")
        self.cells: dict[Any, Any] = {tuple(row[key] for key in KEYS): row for row in records}

    def tables(self) -> list[Table]:
        tasks = [(PAPER_TASKS[task], {"task": task}) for task in self._values("task") if task]
        there = self._values("method")
        methods = [(method_label(m), {"method": m}) for m in METHODS if m in there]
        models = [(PAPER_MODELS.get(m, m), {"model": m}) for m in self._values("model")]
        accuracy = {"quantity": "test_accuracy"}
        if self.number == 1:
            base = {"model": "roberta-large", "quantity": "mean"}
            return [self._grid(("method",), _product(methods), tasks, **base)]
        if self.number == 3:
            rows = _product(models, methods)
            return [self._grid(("model", "method"), rows, tasks, **accuracy)]
        if self.number == 4:
            both = [("GB", {"quantity": "memory_gb"}), ("ms", {"quantity": "step_ms"})]
            columns = [(" ".join(words), keys) for words, keys in _product(models, both)]
            return [self._grid(("method",), _product(methods), columns)]
        if self.number == 11:
            runs = [(f"Run {run}", {"run": run}) for run in self._values("run")]
            base = {"model": "roberta-large", **accuracy}
            return [self._grid(("task", "method"), _product(tasks, methods), runs, **base)]
        return self._ablations()

    def _ablations(self) -> list[Table]:
        """Tables 5 and 12: a row per k, the parts side by side; Table 5 (d) by itself."""
        columns = [
            (
                f"({part}) {PAPER_TASKS[task]}",
                {
                    "part": part,
                    "task": task,
                    "adaptive_noise": "without" if part == "c" else "with",
                },
            )
            for part in ("ab" if self.number == 5 else "abc")
            for task in ("sst2", "rte")
        ]
        noises = [(noise, {"adaptive_noise": noise}) for noise in ("with", "without")]
        if self.number == 5:
            columns += [
                (f"(c) RTE, {n}", {"part": "c", "task": "rte", **keys}) for n, keys in noises
            ]
        rows = _product([(k, {"k": k}) for k in self._values("k")])
        tables = [self._grid(("k",), rows, columns, model="opt-1.3b", quantity="test_accuracy")]
        if self.number == 5:
            base = {"model": "opt-13b", "quantity": "test_accuracy", "part": "d", "k": "2"}
            tasks = dict.fromkeys(key[KEYS.index("task")] for key in self.cells if key[0] == "d")
            by_task = [(PAPER_TASKS[task], {"task": task}) for task in tasks]
            tables.append(self._grid(("(d) adaptive noise",), _product(noises), by_task, **base))
        return tables

    def _values(self, key: str) -> list[str]:
        """The different values of a key, in the paper's order."""
        place = KEYS.index(key)
        return list(dict.fromkeys(cell[place] for cell in self.cells))

    def _grid(
        self,
        names: Sequence[str],
        rows: Sequence[tuple[Sequence[str], Selector]],
        columns: Sequence[tuple[str, Selector]],
        **base: str,
    ) -> Table:
        """A table of two or three lines per row: paper, here, and the difference where there is one."""
        caption = [COMMON, *([PROTOCOL] if self.number != 4 else []), CAPTIONS.get(self.number, "")]
        title = f"Table {self.number}. {TITLES[self.number]}"
        heads = [*names, "", *(label for label, _ in columns)]
        content = Table(
            title, heads, names=len(names) + 1, caption=[line for line in caption if line]
        )
        for labels, selector in rows:
            cells = [self._find(base | selector | more) for _, more in columns]
            if not any(cells):
                continue
            content.breaks.append(len(content.rows))
            lines: dict[str, list[Cell]] = {"paper": [self._printed(cell) for cell in cells]}
            lines["here"] = [self._here(cell) for cell in cells]
            if any(cell and pd.notna(cell["difference"]) for cell in cells):
                lines["difference"] = [_difference(cell) for cell in cells]
            blank = [""] * len(labels)
            for line, shown in lines.items():
                content.rows.append([*(labels if line == "paper" else blank), line, *shown])
                content.facets.append(
                    {key: selector[key] for key in ("model", "task", "method") if key in selector}
                )
        return content

    def _find(self, selector: Selector) -> dict[str, Any] | None:
        return self.cells.get(tuple(selector.get(key, "") for key in KEYS))

    def _spread(self, cell: dict[str, Any]) -> dict[str, Any] | None:
        """The standard deviation that belongs to a mean."""
        if cell["quantity"] != "mean":
            return None
        return self._find({key: cell[key] for key in KEYS} | {"quantity": "std"})

    def _printed(self, cell: dict[str, Any] | None) -> Cell:
        if cell is None:
            return Cell("")
        spread = self._spread(cell)
        value = None if pd.isna(cell["value"]) else float(cell["value"])
        tail = f" (±{spread['printed']})" if spread else ""
        return Cell(
            cell["printed"],
            value,
            tail,
            bold=bool(cell["bold"]),
            tail_bold=bool(spread and spread["bold"]),
        )

    def _here(self, cell: dict[str, Any] | None) -> Cell:
        """A measured number, or the mark of why there is none, with its notes."""
        if cell is None:
            return Cell("")
        if cell["here"] == "nowhere":
            return Cell(ABSENT, notes=("the paper has no such row, and no sweep asks for it",))
        lack = self.shortfalls.get(cell["sweep"], f"runs of {cell['sweep']} lack")
        if pd.isna(cell["measured"]):
            if cell["here"] == "collapsed":
                return Cell(COLLAPSED, notes=(lack,) if cell["lacking"] else (), kind="collapsed")
            return Cell(ABSENT, notes=(lack,), kind="missing")
        spread, tail = self._spread(cell), ""
        if spread is not None:
            std = (
                ABSENT
                if pd.isna(spread["measured"])
                else f"{spread['measured']:.{_places(spread)}f}"
            )
            tail = f" (±{std}; {int(cell['n'])})"
        elif cell["quantity"] == "mean":
            tail = f" ({int(cell['n'])})"
        notes = [cell["remark"]] if cell["remark"] else []
        notes += [f"chosen among the runs that there are: {lack}"] if cell["lacking"] else []
        notes += [EDGE] if cell.get("at_edge") is True else []
        bold, tail_bold = bool(cell["here_bold"]), bool(spread and spread["here_bold"])
        known = {"tail": tail, "notes": tuple(notes), "runs": cell["run_ids"], "kind": "measured"}
        return number(
            cell["measured"], f".{_places(cell)}f", bold=bold, tail_bold=tail_bold, **known
        )


def _product(*parts: Sequence[tuple[str, Selector]]) -> list[tuple[Sequence[str], Selector]]:
    """Every combination: the words of all parts, and all their keys."""
    return [
        ([words for words, _ in chosen], {k: v for _, keys in chosen for k, v in keys.items()})
        for chosen in product(*parts)
    ]


def _places(cell: dict[str, Any]) -> int:
    """As many digits as the paper prints."""
    return digits(cell["printed"]) if cell["status"] == "printed" else 2


def _difference(cell: dict[str, Any] | None) -> Cell:
    if cell is None or pd.isna(cell["difference"]):
        return Cell("")
    return number(cell["difference"], f"+.{digits(cell['printed'])}f")
