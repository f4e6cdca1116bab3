"""The paper's tables as pages: each printed number, the measured one below it, and their difference."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.paper.names import PAPER_MODELS, PAPER_TASKS
from analysis.paper.printed_numbers import KEYS, METHODS, digits
from analysis.report.style import look
from analysis.report.text_table import ABSENT, COLLAPSED, TextTable, bold

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
PAPER, HERE, DIFFERENCE = "paper", "here", "difference"
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
Names = tuple[str, ...]


class Page:
    """Builds the tables of one number from the frame of `analysis.select.paper_cells`."""

    def __init__(self, number: int, frame: pd.DataFrame, shortfalls: dict[str, str]) -> None:
        """Keep the table's cells.

        Args:
            number: of the paper's table.
            frame: see `analysis.select.paper_cells`.
            shortfalls: sweep -> the sentence that says which of its runs lack.
        """
        rows = frame[frame["table"] == number].to_dict("records")
        self.number, self.shortfalls = number, shortfalls
        self.cells: dict[Names, dict[str, Any]] = {
            tuple(row[key] for key in KEYS): {str(k): v for k, v in row.items()} for row in rows
        }

    def tables(self) -> list[TextTable]:
        """The table, or its parts."""
        tasks, methods = self._values("task"), [m for m in METHODS if m in self._values("method")]
        by_task = [(PAPER_TASKS[task], {"task": task}) for task in tasks if task]
        rows: list[tuple[Names, Selector]]
        if self.number == 1:
            base = {"model": "roberta-large", "quantity": "mean"}
            rows = [((look(m).label,), base | {"method": m}) for m in methods]
            return [self._grid(("method",), rows, by_task)]
        if self.number == 3:
            rows = [
                ((PAPER_MODELS[model], look(m).label), {"model": model, "method": m})
                for model in self._values("model")
                for m in methods
            ]
            return [self._grid(("model", "method"), rows, by_task, quantity="test_accuracy")]
        if self.number == 4:
            columns = [
                (f"{PAPER_MODELS[model]} {label}", {"model": model, "quantity": quantity})
                for model in self._values("model")
                for label, quantity in (("GB", "memory_gb"), ("ms", "step_ms"))
            ]
            rows = [((look(m).label,), {"method": m}) for m in methods]
            return [self._grid(("method",), rows, columns)]
        if self.number == 11:
            rows = [
                ((PAPER_TASKS[task], look(m).label), {"task": task, "method": m})
                for task in tasks
                for m in methods
            ]
            columns = [(f"Run {run}", {"run": run}) for run in self._values("run")]
            base = {"model": "roberta-large", "quantity": "test_accuracy"}
            return [self._grid(("task", "method"), rows, columns, **base)]
        return self._ablations()

    def _ablations(self) -> list[TextTable]:
        """Tables 5 and 12: a row per k, the parts side by side; Table 5 (d) by itself."""
        base = {"model": "opt-1.3b", "quantity": "test_accuracy"}
        columns = []
        for part in "ab" if self.number == 5 else "abc":
            noise = "without" if part == "c" else "with"
            for task in ("sst2", "rte"):
                selector = {"part": part, "task": task, "adaptive_noise": noise}
                columns.append((f"({part}) {PAPER_TASKS[task]}", selector))
        if self.number == 5:
            for noise in ("with", "without"):
                selector = {"part": "c", "task": "rte", "adaptive_noise": noise}
                columns.append((f"(c) RTE, {noise}", selector))
        rows = [((k,), {"k": k}) for k in self._values("k")]
        tables = [self._grid(("k",), rows, columns, **base)]
        if self.number == 5:
            base = {"model": "opt-13b", "quantity": "test_accuracy", "part": "d", "k": "2"}
            rows = [((noise,), {"adaptive_noise": noise}) for noise in ("with", "without")]
            tasks = [key[KEYS.index("task")] for key in self.cells if key[0] == "d"]
            by_task = [(PAPER_TASKS[task], {"task": task}) for task in dict.fromkeys(tasks)]
            tables.append(self._grid(("(d) adaptive noise",), rows, by_task, **base))
        return tables

    def _values(self, key: str) -> list[str]:
        """The different values of a key, in the paper's order."""
        place = KEYS.index(key)
        return list(dict.fromkeys(cell[place] for cell in self.cells))

    def _grid(
        self,
        names: Names,
        rows: Sequence[tuple[Names, Selector]],
        columns: Sequence[tuple[str, Selector]],
        **base: str,
    ) -> TextTable:
        """A table of two or three lines per row: paper, here, and the difference where there is one."""
        table = TextTable(
            title=f"Table {self.number}. {TITLES[self.number]}",
            columns=[*names, "", *(label for label, _ in columns)],
            names=len(names) + 1,
            caption=[COMMON, PROTOCOL, CAPTIONS.get(self.number, "")],
        )
        if self.number == 4:
            table.caption.remove(PROTOCOL)
        table.caption = [line for line in table.caption if line]
        for labels, selector in rows:
            cells = [self._find(base | selector | more) for _, more in columns]
            if not any(cells):
                continue
            table.breaks.append(len(table.rows))
            table.rows.append([*labels, PAPER, *(self._printed(cell) for cell in cells)])
            table.rows.append(
                [*("" for _ in labels), HERE, *(self._here(cell, table) for cell in cells)]
            )
            differences = [_difference(cell) for cell in cells]
            if any(differences):
                table.rows.append([*("" for _ in labels), DIFFERENCE, *differences])
        return table

    def _find(self, selector: Selector) -> dict[str, Any] | None:
        return self.cells.get(tuple(selector.get(key, "") for key in KEYS))

    def _spread(self, cell: dict[str, Any]) -> dict[str, Any] | None:
        """The standard deviation that belongs to a mean."""
        return self._find({key: cell[key] for key in KEYS} | {"quantity": "std"})

    def _printed(self, cell: dict[str, Any] | None) -> str:
        if cell is None:
            return ""
        text = bold(cell["printed"]) if cell["bold"] else cell["printed"]
        spread = self._spread(cell)
        if spread is None or cell["quantity"] != "mean":
            return text
        return f"{text} (±{bold(spread['printed']) if spread['bold'] else spread['printed']})"

    def _here(self, cell: dict[str, Any] | None, table: TextTable) -> str:
        """A measured number, or the mark of why there is none, with its notes."""
        if cell is None:
            return ""
        if cell["here"] == "nowhere":
            return ABSENT + table.note("the paper has no such row, and no sweep asks for it")
        lack = self.shortfalls.get(cell["sweep"], f"runs of {cell['sweep']} lack")
        if pd.isna(cell["measured"]):
            if cell["here"] == "collapsed":
                return COLLAPSED + (table.note(lack) if cell["lacking"] else "")
            return ABSENT + table.note(lack)
        text = _number(cell)
        text = bold(text) if cell["here_bold"] else text
        spread = self._spread(cell)
        if spread is not None and cell["quantity"] == "mean":
            std = ABSENT if pd.isna(spread["measured"]) else _number(spread)
            text += f" (±{bold(std) if spread['here_bold'] else std}; {int(cell['n'])})"
        elif cell["quantity"] == "mean":
            text += f" ({int(cell['n'])})"
        if cell["remark"]:
            text += table.note(cell["remark"])
        if cell["lacking"]:
            text += table.note(f"chosen among the runs that there are: {lack}")
        return text


def _number(cell: dict[str, Any]) -> str:
    """With as many digits as the paper prints."""
    places = digits(cell["printed"]) if cell["status"] == "printed" else 2
    return f"{cell['measured']:.{places}f}"


def _difference(cell: dict[str, Any] | None) -> str:
    if cell is None or pd.isna(cell["difference"]):
        return ""
    return f"{cell['difference']:+.{digits(cell['printed'])}f}".replace("-", "−")
