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
from analysis.select.answers import right_answers
from analysis.select.cell_runs import STATUSES, choose, fill, shortfall
from analysis.select.evaluations import EVALUATED, evaluations
from analysis.select.study_sweeps import EPS, MAIN, MORE, PARTS, names, sweeps_of

PRECISIONS = ("fp32", "bf16", "fp16")
LOSS = "eval/val_loss"
Run = dict[Any, Any]


@dataclass(frozen=True)
class Setting:
    """What a learning rate is chosen for."""

    method: str  # name in conf/optimizer
    precision: str  # name in conf/precision
    ending: str = MAIN  # of the sweep
    # what the sweep varies, the last part of each key, as {"k": 2}
    variant: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A study and what has been run of it."""

    name: str  # of its main sweep
    # the cells of all its sweeps, see `analysis.select.cell_runs.fill`; those of a sweep beyond the grid's edge
    # (`MORE`) are under the name of the sweep that they extend
    filled: pd.DataFrame
    frames: Frames  # all runs
    _runs: dict[str, dict[int, Run]] = field(default_factory=dict, repr=False)
    _curves: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)

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

    def runs(self, setting: Setting) -> dict[int, Run]:
        """The finished runs of a setting at its chosen learning rate, by seed."""
        key = str(setting)
        if key not in self._runs:
            rows = _of(self.chosen, self.name, setting)
            self._runs[key] = by_seed(rows[rows["status"] == "finished"])
        return self._runs[key]

    def collapsed(self, setting: Setting) -> list[int]:
        """The seeds of a setting whose run at the chosen learning rate collapsed."""
        rows = _of(self.chosen, self.name, setting)
        return list(by_seed(rows[(rows["status"] == "collapsed") & rows["lr"].notna()]))

    def cells(self, setting: Setting) -> pd.DataFrame:
        """The whole grid of a setting: every learning rate and seed."""
        return _of(self.filled, self.name, setting)

    def same_as(self, method: str, precision: str) -> str | None:
        """A method of the main sweep, earlier in the tables, whose chosen runs have the same test predictions."""

        def predictions(name: str) -> dict[int, str]:
            runs = self.runs(Setting(name, precision))
            return {seed: run["predictions"] for seed, run in runs.items()}

        mine = predictions(method)
        earlier = self.methods[: self.methods.index(method)] if mine else []
        return next((other for other in earlier if predictions(other) == mine), None)

    def why(self, setting: Setting) -> str:
        """Why a setting has fewer runs than seeds; empty if it has all."""
        grid = self.cells(setting)
        if len(grid) and grid["seed"].nunique() == len(self.runs(setting)):
            return ""
        varied = [f"{key}={value}" for key, value in setting.variant.items()]
        words = " ".join([method_label(setting.method), setting.precision, *varied])
        if grid.empty:
            return f"{words}: no cell"
        counts = grid["status"].value_counts()
        said = ", ".join(f"{counts[s]} {s}" for s in STATUSES if s != "finished" and s in counts)
        return f"{words}: {said or 'none'} of {len(grid)} runs"

    def curve(self, run_id: str) -> pd.DataFrame:
        """Evaluations of a run: `step`, `forwards`, `accuracy` (fraction), `loss` (nats), from step 0 on."""
        if run_id not in self._curves:
            rows = self.frames.history.one(run_id, [*EVALUATED, LOSS])
            frame = evaluations(rows)
            losses = rows.set_index("step")[LOSS].astype(float)
            frame["loss"] = losses.reindex(frame["step"].astype(int)).to_numpy()
            self._curves[run_id] = frame
        return self._curves[run_id]


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


def _of(rows: pd.DataFrame, study: str, setting: Setting) -> pd.DataFrame:
    keep = (
        (rows["sweep"] == study + setting.ending)
        & (rows["optimizer"] == setting.method)
        & (rows["precision"] == setting.precision)
    )
    kept = rows[keep]
    wanted = setting.variant.items()
    varied = (
        {key.rpartition(".")[2]: value for key, value in json.loads(text).items()}
        for text in kept["variant"]
    )
    fitting = [all(key in v and v[key] == value for key, value in wanted) for v in varied]
    return kept[np.array(fitting, dtype=bool)]


def by_seed(rows: pd.DataFrame) -> dict[int, Run]:
    """Cells of one setting and learning rate as mappings, by their seed."""
    return {int(row["seed"]): row for row in rows.to_dict("records")}


def right_of_grid(cells: pd.DataFrame) -> dict[float, dict[int, Any]]:
    """Learning rate -> seed -> `right_answers` of a grid's runs that have ended; a collapsed one gets nothing right."""
    done = cells[cells["status"] == "finished"]
    examples = int(done["test_n"].max()) if len(done) else 0
    values: dict[float, dict[int, Any]] = {}
    for run in cells.to_dict("records"):
        if run["status"] in ("finished", "collapsed"):
            ended = right_answers(run) if run["status"] == "finished" else np.zeros(examples)
            values.setdefault(run["lr"], {})[int(run["seed"])] = ended
    return values


def mean_height(x: Any, y: Any, start: float, end: float) -> float:
    """Area below a curve from `start` to `end`, divided by that length; the curve is straight between its points."""
    points = np.asarray(x, float)
    at = np.concatenate([[start], points[(points > start) & (points < end)], [end]])
    heights = np.interp(at, points, np.asarray(y, float))
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(at)).sum() / (end - start))
