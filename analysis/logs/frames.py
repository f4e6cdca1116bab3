"""The runs that some sources have, each with all its fragments merged: one frame, and their history beside it.

`runs`, one row per run id, sorted by run id:

| column | content |
|---|---|
| `run_id`, `group` | W&B's id and group (`group` is empty without one) |
| `status` | `finished`, `collapsed`, or `unfinished`: killed, failed or still running |
| `exit_code` | of the last fragment; missing if it was killed or still runs |
| `failed` | whether an error, and no signal, ended the last fragment |
| `fragments`, `torn` | number of run files of this id and W&B's copy; whether the end of one is lost |
| `duplicates` | 0; or the number of fragments that each ended the run, if their results differ |
| `started` | first start of the run, UTC, as 2026-01-31T12:00:00 |
| `git_revisions` | revisions that wrote the fragments, in time order, joined by spaces |
| `source` | the directories and projects that have it, as the user gave them, joined by spaces |
| `last_step` | the last step logged |
| `forwards_to_best` | forward passes of training up to `best/step`; missing if the history lacks that step |
| `optimizer.name`, `lr`, ... | the configuration, nested keys joined by dots; a list as JSON text |
| `provenance.*` | where the last fragment came from, as above |
| `best/val_accuracy`, ... | W&B's summary: keys with a slash |

`history` reads the rows of a run when asked, see `analysis.logs.history.History`.

The fragments of a resumed run are merged in the order of their start: the later one wins, per step
and per configuration and summary key. W&B's copy of a run, which may be incomplete, comes before the
run files of the same run, unless it alone has the run's end: then it comes last. A run file that lies
in two places counts once.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs import manifests
from analysis.logs.fragments import ENDED, Fragment, status_of
from analysis.logs.history import History, row_count
from analysis.logs.manifests import Line
from analysis.logs.run_file import LogError
from zo.differences import differing

NO_SWEEP = "none"  # the W&B group of a run that belongs to no sweep
FILE_COLUMNS = (
    *("run_id", "group", "status", "exit_code", "failed", "fragments", "torn", "duplicates"),
    *("started", "git_revisions", "source", "last_step", "forwards_to_best", "nulls"),
)
CHOICE = [f"{group}.name" for group in ("model", "task", "optimizer", "precision")]
NO_VARIANT = (
    *(*CHOICE, "model.lr_grid", "model.install", "task.install", "provenance", "sweep", "out"),
    *("resume", "device", "tracking", "eval_tokens", "cells", "threads", "seed", "lr", "lr_index"),
)
"""Configuration that decides no number, or has a column of its own; with what lies below it."""

FORWARDS, EVALUATION, LOSS = "train/forwards", "eval/val_accuracy", "eval/val_loss"
MEASURES = ("accuracy", "exact_match", "f1", "rouge_l", "perplexity", "reward", "measure")
"""What a task may be measured by, as its run's summary names it; a classification has accuracies alone."""
MEASURED = (*(f"best/{split}_{measure}" for measure in MEASURES for split in ("val", "test")),)
RESULT = (
    *("run/status", "run/steps", "run/collapse_step", "best/step"),
    *(*MEASURED, "best/test_predictions"),
)
"""Summary keys in which two endings of one run differ, if they differ; or in the loss, by more than SAME_LOSS."""

SAME_LOSS = 1e-5  # nats


@dataclass(frozen=True)
class Frames:
    """The runs, their history, and the files of runs killed before W&B wrote even their configuration.

    A sweep has the runs of its W&B group, and those that an earlier command had made of its cells.
    """

    runs: pd.DataFrame
    history: History
    unidentified: tuple[Path, ...]
    lines: Sequence[Line] = ()  # of manifests, see `analysis.logs.manifests`
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Recorded runs in whose place others of their ids count -> how those differ, "" if in nothing."""

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The cells of every sweep, see `analysis.logs.manifests`."""
        lines = manifests.complete(self.lines, self.runs)
        known = {line["sweep"] for line in lines} | {""}
        groups = self.runs[~self.runs["group"].isin(known)].groupby("group")
        return manifests.cells([*lines, *(line for _, runs in groups for line in _lines(runs))])

    def cells_of(self, sweeps: Sequence[str] = ()) -> pd.DataFrame:
        """The cells of some sweeps, or of all, without those that newer ones replace."""
        cells = self.cells[self.cells["current"]]
        cells = cells[cells["sweep"].isin(list(sweeps))] if sweeps else cells
        return cells.drop(columns="current").reset_index(drop=True)

    def of(self, sweep: str) -> pd.DataFrame:
        """The runs of a sweep."""
        ids = self.cells.loc[self.cells["sweep"] == sweep, "run_id"]
        return self.runs[(self.runs["group"] == sweep) | self.runs["run_id"].isin(ids)]

    @property
    def sweeps(self) -> list[str]:
        """The sweeps that have runs, the one whose last run started last first."""
        names = sorted({*self.runs["group"], *self.cells["sweep"]} - {""})
        last = {name: runs["started"].max() for name in names if len(runs := self.of(name))}
        return sorted(last, key=lambda name: last[name], reverse=True)

    @property
    def single(self) -> pd.DataFrame:
        """The runs that were not made as a part of a sweep, the newest first."""
        single = self.runs[self.runs["group"] == ""]
        return single.sort_values("started", ascending=False, kind="stable")


def _lines(runs: pd.DataFrame) -> Iterator[Line]:
    """Yields a line for each run of a group without any: its variant is what differs between their configurations."""
    left_out = (*(f"{key}." for key in FILE_COLUMNS), *(f"{key}." for key in NO_VARIANT))
    keys = [key for key in map(str, runs) if "/" not in key and not f"{key}.".startswith(left_out)]
    rows = runs.reindex(columns=[*CHOICE, *keys]).to_dict("records")
    varied = [key for key in differing(rows, CHOICE) if key in keys]
    for run in runs.to_dict("records"):
        known = {key: plain(value) for key, value in run.items() if pd.notna(value)}
        yield {
            **{key.partition(".")[0]: known.get(key, "") for key in CHOICE},
            **{key: known.get(key, 0) for key in ("seed", "lr", "steps")},
            "sweep": run["group"],
            "run_id": run["run_id"],
            "written": run.get("started", ""),
            "inputs": json.loads(known.get("provenance.inputs", "{}")),
            "variant": {key: known[key] for key in varied if key in known},
        }


def plain(value: Any) -> Any:
    """A value of a frame as JSON knows it; a gap is null, and 2.0 is 2."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return None if pd.isna(value) else int(value) if value.is_integer() else value
    return value


def merge(fragments: Iterable[Fragment]) -> Frames:
    """The runs that some fragments are of."""
    by_id: dict[str, list[Fragment]] = defaultdict(list)
    for fragment in fragments:
        by_id[fragment.run_id].append(fragment)
    rows, histories, unidentified = [], {}, []
    for run_id in sorted(by_id):
        ordered = _ordered(_newest(by_id[run_id]))
        if any(fragment.identified for fragment in ordered):
            histories[run_id] = [fragment.history for fragment in ordered]
            rows.append(_run_row(run_id, ordered, History({run_id: histories[run_id]})))
        else:
            unidentified += [Path(fragment.place) for fragment in ordered]
    return Frames(_runs_frame(rows), History(histories), tuple(unidentified))


def _newest(fragments: Sequence[Fragment]) -> list[Fragment]:
    """The fragments of a run's newest beginning that ended, or newest: made anew it has another id at W&B each time."""
    last = max(fragments, key=lambda f: (_ended(f), f.started)).wandb_id
    return [fragment for fragment in fragments if fragment.wandb_id in (last, "")]


def _ordered(fragments: Sequence[Fragment]) -> list[Fragment]:
    """The fragments of one run without copies, so that a later one overrules an earlier one."""
    in_time = sorted(
        fragments,
        key=lambda f: (_attempts(f), f.started, Path(f.place).parent.name, -row_count(f.history)),
    )
    files: dict[tuple[float, str], Fragment] = {}
    copies = []
    for fragment in in_time:
        if fragment.is_copy:
            copies.append(fragment)
        else:
            files.setdefault((fragment.started, Path(fragment.place).parent.name), fragment)
    ordered = [*files.values()]
    ends = [i for i, fragment in enumerate(ordered) if _ended(fragment)]
    if not ends:
        return [*ordered, *copies]
    return [*ordered[ends[-1] + 1 :], *copies, *ordered[: ends[-1] + 1]]


def _ended(fragment: Fragment) -> bool:
    return status_of(fragment.summary) in ENDED


def _attempts(fragment: Fragment) -> int:
    """How often the run had been started, which says more than the clocks of several machines."""
    attempts = fragment.config.get("provenance.attempts")
    return len(attempts) if isinstance(attempts, list) else 0


def _run_row(run_id: str, fragments: Sequence[Fragment], history: History) -> dict[str, Any]:
    """Merge the fragments of one run, in order, into its row of `runs`."""
    logged: dict[str, Any] = {}
    for said in (*(f.config for f in fragments), *(f.summary for f in fragments)):
        logged |= said
    rows = history.one(run_id, [FORWARDS, EVALUATION])
    clash = sorted(logged.keys() & set(FILE_COLUMNS))
    if clash:
        raise LogError(f"run {run_id} logs {clash[0]}, which the runs frame keeps for itself")
    revisions = [f.config.get("provenance.git_revision") for f in fragments]
    identified = [fragment for fragment in fragments if fragment.identified]
    started = min(fragment.started for fragment in identified)
    return {
        "run_id": run_id,
        "group": "" if identified[-1].group == NO_SWEEP else identified[-1].group,
        "status": status_of(logged),
        "exit_code": fragments[-1].exit_code,
        "failed": _failed(fragments[-1]),
        "fragments": len(fragments),
        "torn": any(fragment.torn_at is not None for fragment in fragments),
        "duplicates": _duplicates(fragments),
        "started": datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        "git_revisions": " ".join(dict.fromkeys(r for r in revisions if r)),
        "source": " ".join(sorted({fragment.source for fragment in fragments})),
        "last_step": rows["step"].max() if len(rows) else None,
        "forwards_to_best": _forwards_to(logged.get("best/step"), rows),
        "nulls": " ".join(sorted(key for key, value in logged.items() if value is None)),
        **{  # lists and empty mappings as JSON text, so that a cell of the frame can be compared
            key: json.dumps(value) if isinstance(value, list | dict) else value
            for key, value in sorted(logged.items())
        },
    }


def _failed(last: Fragment) -> bool:
    return last.exit_code is not None and last.summary.get("run/status") == "failed"


def _forwards_to(step: float | None, rows: pd.DataFrame) -> float | None:
    """Forward passes of training up to an evaluated step; None where the history lacks it."""
    found = rows.loc[(rows["step"] == step) & rows[EVALUATION].notna(), FORWARDS].dropna()
    return 0 if step == 0 else found.item() if len(found) else None


def _duplicates(fragments: Sequence[Fragment]) -> int:
    """How often the run ended, if not always with the same result."""
    ended = [fragment for fragment in fragments if _ended(fragment)]
    results = {tuple(str(f.summary.get(key)) for key in RESULT) for f in ended}
    losses = [float(f.summary[LOSS]) for f in ended if isinstance(f.summary.get(LOSS), int | float)]
    apart = bool(losses) and max(losses) - min(losses) > SAME_LOSS
    return len(ended) if len(results) > 1 or apart else 0


def _runs_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """One column order whatever the runs logged: the file's, the configuration's, the summary's."""
    logged = sorted({key for row in rows for key in row} - set(FILE_COLUMNS))
    configuration = [key for key in logged if "/" not in key]
    summary = [key for key in logged if "/" in key]
    return pd.DataFrame(rows, columns=[*FILE_COLUMNS, *configuration, *summary])
