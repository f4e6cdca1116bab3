"""Where a result comes from: the runs behind it and what they say of their code and machine.

Everything here is read from the runs, so that the same logs give the same bytes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

PREFIX = "provenance."
OF_RUN = ("started", "fragments", "torn", "git_revisions")


def runs_json(
    about: Mapping[str, Any],
    cells: Sequence[Mapping[str, Any]],
    runs: pd.DataFrame,
    unidentified: Sequence[str] = (),
) -> str:
    """The content of provenance.json: what all runs share once, what differs with each run.

    Args:
        about: what stands first.
        cells: each with a `run_id` of `runs`, and what else is to be said of it.
        runs: rows of the runs frame, at least one.
        unidentified: names of run files that belong to no known sweep.
    """
    columns = [key for key in runs.columns if key.startswith(PREFIX)]
    shared = [key for key in columns if runs[key].nunique(dropna=False) == 1]
    own = [key for key in columns if key not in (*shared, f"{PREFIX}run_id", f"{PREFIX}started")]
    rows = {
        row["run_id"]: {key.removeprefix(PREFIX): plain(row[key]) for key in (*OF_RUN, *own)}
        for row in runs.to_dict("records")
    }
    content = {
        **about,
        "shared": {key.removeprefix(PREFIX): plain(runs.iloc[0][key]) for key in shared},
        "runs": [{**cell, **rows[cell["run_id"]]} for cell in cells],
        "unidentified_files": list(unidentified),
    }
    lines = [f"{json.dumps(key)}: {_lines(value)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(value: Any) -> str:
    """JSON with an entry of a list per line."""
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in value) + "\n]"


def foot(what: str, runs: pd.DataFrame) -> str:
    """One sentence for the foot of a table, begun by `7 runs` and of what: revision, torch, device, days."""
    dirty = " with uncommitted changes" if "True" in listed(runs, "provenance.git_dirty") else ""
    git = ", ".join(revisions(runs)) or "unknown"
    torch = listed(runs, "provenance.versions.torch")
    device = listed(runs, "provenance.device")
    return f"From {what}; git {git}{dirty}; torch {torch}; on {device}; {days(runs)}."


def revisions(runs: pd.DataFrame) -> list[str]:
    """The first ten digits of every revision that wrote one of the runs."""
    return sorted({revision[:10] for text in runs["git_revisions"] for revision in text.split()})


def listed(runs: pd.DataFrame, key: str) -> str:
    """The different values of a key; `unknown` without any."""
    values: Iterable[Any] = runs.reindex(columns=[key])[key].dropna()
    return ", ".join(sorted({str(value) for value in values} - {""})) or "unknown"


def days(runs: pd.DataFrame) -> str:
    """The first and the last day on which one of the runs started; empty without runs."""
    found = sorted(text[:10] for text in runs["started"])
    return " to ".join(dict.fromkeys([*found[:1], *found[-1:]]))


def plain(value: Any) -> Any:
    """A value of a frame as JSON knows it; a gap is null, and 2.0 is 2."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return None if pd.isna(value) else int(value) if value.is_integer() else value
    return value
