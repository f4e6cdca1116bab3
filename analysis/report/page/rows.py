"""The page's head and its tables of runs."""

from typing import Any

import pandas as pd

from analysis.logs.frames import Frames
from analysis.paper import names
from analysis.report.table import ABSENT, Cell, Column, Row, Table, number
from analysis.select.paper_cells import BEHIND
from analysis.select.provenance import revisions

LABELS = names.LABELS | {"precision": str}
"""What the page filters by, and its words."""
COLUMNS = {key: f"{'optimizer' if key == 'method' else key}.name" for key in LABELS}
RUNNING = "running or killed"


def headline(frames: Frames, filled: pd.DataFrame, wanted: int) -> dict[str, Any]:
    """The page's title, sentence, tiles (words, number, words, words) and foot, as the template wants them.

    `wanted`: how many runs the paper's tables have.
    """
    runs, sweeps = frames.runs, frames.sweeps
    asked = filled[filled["sweep"].isin(BEHIND)]
    known = int((asked["status"] == "finished").sum())
    tiles = [
        ("Runs", len(runs), "read for this page", counted(runs)),
        ("The paper's runs", known, f"of {wanted:,} finished", ""),
    ]
    title = "Nothing has been run yet"
    summary = (
        "Make runs with `zo train -m sweep=quickstart`, then this page again with `make report`."
    )
    footer = "Made by `zo report`."
    if len(runs):
        title = sweeps[0] if sweeps else "Single runs"
        mine = frames.of(title) if sweeps else frames.single
        missing = int((filled.loc[filled["sweep"] == title, "status"] == "missing").sum())
        finished = int((mine["status"] == "finished").sum())
        words = counted(mine) + (f", {missing:,} not started" if missing else "")
        summary = f"The newest {'sweep' if sweeps else 'runs'}: {words}. What was run comes first, the paper after it."
        tiles.insert(0, ("Newest", finished, f"of {len(mine) + missing:,} finished", words))
        footer += f" Runs made at git {', '.join(revisions(runs)) or 'unknown'}."
    return {"title": title, "summary": summary, "tiles": tiles, "footer": footer}


def counted(runs: pd.DataFrame) -> str:
    """How many runs finished, collapsed, failed, or have no end."""
    if runs.empty:
        return "none"
    words = pd.Series([_state(row) for row in runs.to_dict("records")]).value_counts()
    order = ("finished", "collapsed", RUNNING, "failed")
    return ", ".join(f"{words[word]:,} {word}" for word in order if word in words)


RUN: dict[str, Column] = {
    "run": "run_id",
    "sweep": lambda row: row["group"] or ABSENT,
    **{k: (lambda row, k=k: LABELS[k](row[k]) or ABSENT) for k in LABELS},  # type: ignore[misc]
    "lr": ("lr", "g"),
    "seed": ("seed", ".0f"),
    "status": lambda row: _status(row),
    "val. %": ("best/val_accuracy", ".1f", 100),
    "test %": ("best/test_accuracy", ".1f", 100),
    "steps": lambda row: number(row.get("last_step"), ",.0f", tail=_of(row)),
    "ms per step": ("time/step_ms_median", ",.1f"),
    "peak GiB": ("mem/peak_gib", ".2f"),
    "started (UTC)": lambda row: str(row["started"])[:16].replace("-", "\u2011").replace("T", " "),
    "device": lambda row: str(row.get("provenance.device") or ""),
}


def runs_table(runs: pd.DataFrame, title: str, name: str = "") -> Table:
    """One row per run, whatever became of it."""
    named = runs.reindex(columns=list(COLUMNS.values())).fillna("")
    frame = runs.assign(**named.set_axis(list(COLUMNS), axis=1))
    facets = frame[[*LABELS]].to_dict("records")
    caption = [
        "A run without an exit code goes on, or was killed. `ms per step` is the median; on a CPU, memory is the whole "
        "process's."
    ]
    return Table.of(title, frame, RUN, name=name, caption=caption, facets=facets)


def _status(row: Row) -> Cell:
    """What became of a run, in words, with the step of a collapse and the exit code of a failure."""
    word, step, code = _state(row), row.get("run/collapse_step"), row.get("exit_code")
    more = f" at step {step:.0f}" if word == "collapsed" and pd.notna(step) else ""
    more = f" (exit code {code:.0f})" if word == "failed" else more
    kinds = {"collapsed": "collapsed", "failed": "collapsed", RUNNING: "missing"}
    return Cell(word + more, kind=kinds.get(word, ""))


def _state(row: Row) -> str:
    if row["status"] != "unfinished":
        return str(row["status"])
    code = row.get("exit_code")
    return "failed" if pd.notna(code) and code != 0 else RUNNING


def _of(row: Row) -> str:
    """The steps that an unfinished run was to make."""
    steps = row.get("steps")
    return f" of {steps:,.0f}" if row["status"] == "unfinished" and pd.notna(steps) else ""
