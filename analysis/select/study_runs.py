"""A study's cells, the runs that fill them, and what each run says per test example and per evaluation.

A study is the sweep study_NAME and the sweeps beside it whose names end in one of PARTS.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.frames import Frames
from analysis.logs.history import EVALUATED, evaluations
from analysis.logs.run_file import LogError
from analysis.paper.names import method_label, method_order
from analysis.select import sweep_cells
from analysis.select.cell_runs import STATUSES, choose, shortfall

PREFIX = "study_"
MAIN, M_IS_K, M_IS_K_PLUS_1, NOISE, EPS = "", "_5a", "_5b", "_5c", "_eps"
PARTS = (MAIN, "_roundings", M_IS_K, M_IS_K_PLUS_1, NOISE, EPS)
"""Endings of a study's sweeps. No table of a study has the runs of `_roundings`."""
MORE = "_more"
"""Ending of a sweep with learning rates beyond the grid of another, whose name stands before it; read as part of it."""
PRECISIONS = ("fp32", "bf16", "fp16")
REFERENCE = "fp32"
Run = dict[Any, Any]


@dataclass(frozen=True)
class Setting:
    """What a learning rate is chosen for: names of conf/optimizer and conf/precision, the sweep's ending, {"k": 2}."""

    method: str
    precision: str
    ending: str = MAIN
    variant: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A study and what has been run of it.

    Args:
        name: of its main sweep.
        filled: the cells of all its sweeps, see `cell_runs.fill`; those of a sweep beyond the grid's edge (`MORE`)
            under the name of the sweep that they extend.
        frames: all runs.
    """

    name: str
    filled: pd.DataFrame
    frames: Frames
    _curves: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)

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

    def lacks(self, *endings: str) -> list[str]:
        """Sentences that say what is missing of some of its sweeps, or of all, and how to make it."""
        parts = [self.part(ending) for ending in endings or PARTS]
        return [f"{sentence}." for part in parts for sentence in shortfall(part)]

    def runs(self, setting: Setting) -> dict[int, Run]:
        """The finished runs of a setting at its chosen learning rate, by seed."""
        ended = self.ended(setting)
        return {seed: run for seed, run in ended.items() if run["status"] == "finished"}

    def ended(self, setting: Setting) -> dict[int, Run]:
        """The finished and collapsed ones, likewise."""
        rows = self.cells(setting)
        rows = rows[rows["chosen"] & rows["status"].isin(["finished", "collapsed"])]
        return {int(row["seed"]): row for row in rows.to_dict("records")}

    def cells(self, setting: Setting) -> pd.DataFrame:
        """The whole grid of a setting: every learning rate and seed."""
        wanted = {"optimizer": setting.method, "precision": setting.precision, **setting.variant}
        part = self.part(setting.ending)
        return part[np.logical_and.reduce([part[key] == value for key, value in wanted.items()])]

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
        """The evaluations of a run from step 0 on, see `evaluations`."""
        if run_id not in self._curves:
            self._curves[run_id] = evaluations(self.frames.history.one(run_id, EVALUATED))
        return self._curves[run_id]


def names() -> list[str]:
    """The studies that conf/sweep has."""
    sweeps = [name for name in sweep_cells.sweep_names() if name.startswith(PREFIX)]
    return [name for name in sweeps if not part_of(name)]


def part_of(sweep: str) -> str:
    """The ending by which a sweep belongs to a study beside its main sweep; empty if it does not."""
    endings = (*PARTS[1:], MORE) if sweep.startswith(PREFIX) else ()
    return next((part for part in endings if sweep.endswith(part)), MAIN)


def sweeps(name: str) -> list[str]:
    """The sweeps of a study that conf/sweep has."""
    if name not in names():
        there = ", ".join(names()) or "none"
        raise LogError(f"there is no study {name} in conf/sweep: there are {there}")
    wanted = [name + part + more for part in PARTS for more in ("", MORE)]
    return [sweep for sweep in wanted if sweep in sweep_cells.sweep_names()]


def of_filled(name: str, filled: pd.DataFrame, frames: Frames) -> Study:
    """A study out of the filled cells of these and maybe other sweeps."""
    within = filled.assign(sweep=filled["sweep"].str.removesuffix(MORE), made_by=filled["sweep"])
    mine = within[within["sweep"].isin([name + part for part in PARTS])].reset_index(drop=True)
    for key in ("model", "task"):
        several = sorted(mine[key].unique())
        if len(several) > 1:
            raise LogError(f"study {name} must have one {key}, not {', '.join(several)}")
    return Study(name, choose(mine), frames)
