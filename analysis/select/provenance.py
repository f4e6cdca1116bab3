"""Where a result comes from: the runs behind it and what they say of their code and machine.

Everything here is read from the runs, so that the same logs give the same bytes.
"""

from collections.abc import Iterable
from typing import Any

import pandas as pd

NOT_HERE = "commit not in this repository"
"""`provenance.sources` of runs that did not log their sources and cite a commit that is gone."""

OF_RUN = ["run_id", "status", "started", "source", "fragments", "torn", "git_revisions"]


def sources(runs: pd.DataFrame) -> pd.DataFrame:
    """The columns of the runs frame that say where each run comes from."""
    return runs[[*OF_RUN, *(key for key in runs.columns if key.startswith("provenance."))]]


def foot(what: str, runs: pd.DataFrame) -> str:
    """One sentence for the foot of a table, begun by `7 runs` and of what: revision, torch, device, days."""
    dirty = " with uncommitted changes" if "True" in listed(runs, "provenance.git_dirty") else ""
    git = ", ".join(revisions(runs)) or "unknown"
    torch = listed(runs, "provenance.versions.torch")
    device = listed(runs, "provenance.device")
    return f"From {what}; git {git}{dirty}; torch {torch}; on {device}; {days(runs)}."


def revisions(runs: pd.DataFrame) -> list[str]:
    """The first ten digits of every revision that wrote one of the runs, with a mark where it is gone."""
    gone = runs.reindex(columns=["provenance.sources"])["provenance.sources"] == NOT_HERE
    known, lost = (
        {revision[:10] for text in some["git_revisions"] for revision in text.split()}
        for some in (runs[~gone], runs[gone])
    )
    return sorted([*known, *(f"{revision} (not in this repository)" for revision in lost - known)])


def listed(runs: pd.DataFrame, key: str) -> str:
    """The different values of a key; `unknown` without any."""
    values: Iterable[Any] = runs.reindex(columns=[key])[key].dropna()
    return ", ".join(sorted({str(value) for value in values} - {""})) or "unknown"


def days(runs: pd.DataFrame) -> str:
    """The first and the last day on which one of the runs started; empty without runs."""
    found = sorted(text[:10] for text in runs["started"])
    return " to ".join(dict.fromkeys([*found[:1], *found[-1:]]))
