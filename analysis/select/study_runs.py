"""A study's cells, the runs that fill them, and what each run says per test example and per evaluation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.frames import Frames
from analysis.logs.run_file import LogError
from analysis.paper.names import method_label, method_order
from analysis.select import sweep_cells
from analysis.select.cell_runs import STATUSES, choose, fill, shortfall
from analysis.select.evaluations import EVALUATED, evaluations
from analysis.select.study_sweeps import EPS, MAIN, MORE, PARTS, names, sweeps_of
from analysis.stats.intervals import accuracy

PRECISIONS = ("fp32", "bf16", "fp16")
LOSS = "eval/val_loss"
Run = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A study and what has been run of it.

    Attributes:
        name: of its main sweep.
        filled: the cells of all its sweeps, see `analysis.select.cell_runs.fill`; those of a sweep beyond the grid's
            edge (`MORE`) are under the name of the sweep that they extend.
        frames: all runs.
    """

    name: str
    filled: pd.DataFrame
    frames: Frames
    _runs: dict[tuple[str, ...], dict[int, Run]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _curves: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def chosen(self) -> pd.DataFrame:
        """A row per setting and seed at the chosen learning rate, see `analysis.select.cell_runs.choose`."""
        return choose(self.filled)

    @cached_property
    def precisions(self) -> list[str]:
        """Of the main sweep, in the order of the tables."""
        there = list(dict.fromkeys(self.part(MAIN)["precision"]))
        return sorted(there, key=lambda p: (*PRECISIONS, *there).index(p))

    @cached_property
    def methods(self) -> list[str]:
        """Of the main sweep, in the order of the tables."""
        return sorted(self.part(MAIN)["optimizer"].unique(), key=method_order)

    @property
    def any(self) -> bool:
        """Whether a run that trains has ended."""
        ended = self.filled["status"].isin(["finished", "collapsed"])
        return bool((ended & (self.filled["steps"] > 0)).any())

    def part(self, ending: str) -> pd.DataFrame:
        """The cells of one of its sweeps; no rows if conf/sweep has none of this name."""
        return self.filled[self.filled["sweep"] == self.name + ending]

    def lacks(self, ending: str | None = None) -> list[str]:
        """Sentences that say what is missing of one of its sweeps, or of all, and how to make it."""
        parts = PARTS if ending is None else (ending,)
        said = []
        for part in parts:
            if self.part(part).empty and part != EPS:
                said.append(f"conf/sweep has no {self.name + part}.yaml")
            said += shortfall(self.part(part))
        return said

    def runs(
        self, method: str, precision: str, ending: str = MAIN, **variant: Any
    ) -> dict[int, Run]:
        """The finished runs of a setting at its chosen learning rate, by seed.

        Args:
            method: name in conf/optimizer.
            precision: name in conf/precision.
            ending: of the sweep.
            **variant: what the sweep varies, the last part of each key, as `k=2`.
        """
        key = (method, precision, ending, json.dumps(variant, sort_keys=True))
        if key not in self._runs:
            rows = self._of(self.chosen, method, precision, ending, variant)
            rows = rows[rows["status"] == "finished"]
            self._runs[key] = {int(row["seed"]): row for row in _records(rows)}
        return self._runs[key]

    def collapsed(
        self, method: str, precision: str, ending: str = MAIN, **variant: Any
    ) -> list[int]:
        """The seeds of a setting whose run at the chosen learning rate collapsed."""
        rows = self._of(self.chosen, method, precision, ending, variant)
        lost = rows[(rows["status"] == "collapsed") & rows["lr"].notna()]
        return [int(seed) for seed in lost["seed"]]

    def same_as(self, method: str, precision: str) -> str | None:
        """A method of the main sweep, earlier in the tables, whose chosen runs have the same test predictions."""
        mine = _predictions(self.runs(method, precision))
        for other in self.methods[: self.methods.index(method)]:
            if mine and mine == _predictions(self.runs(other, precision)):
                return other
        return None

    def cells(
        self, method: str, precision: str, ending: str = MAIN, **variant: Any
    ) -> pd.DataFrame:
        """The whole grid of a setting: every learning rate and seed."""
        return self._of(self.filled, method, precision, ending, variant)

    def why(self, method: str, precision: str, ending: str = MAIN, **variant: Any) -> str:
        """Why a setting has fewer runs than seeds; empty if it has all."""
        grid = self.cells(method, precision, ending, **variant)
        there = self.runs(method, precision, ending, **variant)
        lacking = grid["seed"].nunique() - len(there)
        if len(grid) and not lacking:
            return ""
        counts = {s: int((grid["status"] == s).sum()) for s in STATUSES if s != "finished"}
        said = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        words = " ".join(
            [method_label(method), precision, *(f"{k}={v}" for k, v in variant.items())]
        )
        return (
            f"{words}: {said or 'none'} of {len(grid)} runs" if len(grid) else f"{words}: no cell"
        )

    def curve(self, run_id: str) -> pd.DataFrame:
        """Evaluations of a run: `step`, `forwards`, `accuracy` (fraction), `loss` (nats), from step 0 on."""
        if run_id not in self._curves:
            rows = self.frames.history.one(run_id, [*EVALUATED, LOSS])
            frame = evaluations(rows)
            losses = rows.set_index("step")[LOSS].astype(float)
            frame["loss"] = losses.reindex(frame["step"].astype(int)).to_numpy()
            self._curves[run_id] = frame
        return self._curves[run_id]

    def _of(
        self, rows: pd.DataFrame, method: str, precision: str, ending: str, variant: Mapping
    ) -> pd.DataFrame:
        keep = (
            (rows["sweep"] == self.name + ending)
            & (rows["optimizer"] == method)
            & (rows["precision"] == precision)
        )
        kept = rows[keep]
        fitting = [matches(text, variant) for text in kept["variant"]]
        return kept[np.array(fitting, dtype=bool)]


def load(name: str, frames: Frames, cache: Path | None) -> Study:
    """A study of conf/sweep.

    Raises:
        LogError: there is no such study, or it is none: it has several models or tasks.
    """
    if name not in names():
        there = ", ".join(names()) or "none"
        raise LogError(f"there is no study {name} in conf/sweep: there are {there}")
    return of_filled(name, fill(sweep_cells.cells(sweeps_of(name), cache), frames.runs), frames)


def of_filled(name: str, filled: pd.DataFrame, frames: Frames) -> Study:
    """A study out of the filled cells of these and maybe other sweeps.

    Raises:
        LogError: it has several models or tasks.
    """
    within = filled.assign(sweep=filled["sweep"].str.removesuffix(MORE), made_by=filled["sweep"])
    mine = within[within["sweep"].isin([name + part for part in PARTS])].reset_index(drop=True)
    for key in ("model", "task"):
        several = sorted(mine[key].unique())
        if len(several) > 1:
            raise LogError(f"study {name} must have one {key}, not {', '.join(several)}")
    return Study(name, mine, frames)


def matches(text: str, wanted: Mapping[str, Any]) -> bool:
    """Whether a variant, as JSON text, has these values under the last parts of its keys."""
    if not wanted:
        return True
    short = {key.rpartition(".")[2]: value for key, value in json.loads(text).items()}
    return all(key in short and short[key] == value for key, value in wanted.items())


def right(runs: Mapping[int, Run]) -> dict[int, Any]:
    """Per seed 100 for every test example that the run gets right, 0 for the others: their mean is its accuracy in %.

    Raises:
        LogError: a run's predictions are not those of its labels or of its accuracy.
    """
    return {seed: _right(run) for seed, run in runs.items()}


def right_of_grid(study: Study, cells: pd.DataFrame) -> dict[float, dict[int, Any]]:
    """Learning rate -> seed -> as `right`, of a grid's runs that have ended; a collapsed one gets nothing right."""
    done = cells[cells["status"] == "finished"]
    examples = int(done["test_n"].max()) if len(done) else 0
    values: dict[float, dict[int, Any]] = {}
    for run in _records(cells):
        if run["status"] == "finished":
            values.setdefault(run["lr"], {})[int(run["seed"])] = _right(run)
        elif run["status"] == "collapsed":
            values.setdefault(run["lr"], {})[int(run["seed"])] = np.zeros(examples)
    return values


def _predictions(runs: Mapping[int, Run]) -> dict[int, str]:
    return {seed: run["predictions"] for seed, run in runs.items()}


def _right(run: Run) -> Any:
    predictions, labels = run["predictions"], run["labels"]
    if not labels or not predictions or len(labels) != len(predictions):
        raise LogError(
            f"run {run['run_id']} logs {len(predictions or '')} test predictions "
            f"and {len(labels or '')} labels"
        )
    counted = accuracy(predictions, labels)
    if abs(counted - run["test_accuracy"]) > 1e-6:
        raise LogError(
            f"run {run['run_id']} logs a test accuracy of {run['test_accuracy']:.6f}, "
            f"but its predictions have {counted:.6f}"
        )
    pairs = zip(predictions, labels, strict=True)
    return 100.0 * np.array([p == y for p, y in pairs], dtype=float)


def check_examples(filled: pd.DataFrame) -> None:
    """Refuse runs that were tested on different examples: they cannot be paired.

    Raises:
        LogError: naming two of them.
    """
    done = filled[filled["status"] == "finished"]
    first = done.drop_duplicates("labels")
    if len(first) > 1:
        one, other = first["run_id"].iloc[:2]
        raise LogError(f"runs {one} and {other} were tested on different examples (test/labels)")


def mean_height(x: Any, y: Any, start: float, end: float) -> float:
    """Area below a curve from `start` to `end`, divided by that length; the curve is straight between its points."""
    points = np.asarray(x, float)
    at = np.concatenate([[start], points[(points > start) & (points < end)], [end]])
    heights = np.interp(at, points, np.asarray(y, float))
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(at)).sum() / (end - start))


def _records(rows: pd.DataFrame) -> list[Run]:
    return [{str(key): value for key, value in row.items()} for row in rows.to_dict("records")]
