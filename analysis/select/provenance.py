"""Where a result comes from: the runs behind it and what they say of their code and machine.

Everything here is read from the runs, so that the same logs give the same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.select.sweep_selection import Selection

PREFIX = "provenance."


def provenance_json(selection: Selection) -> str:
    """The content of provenance.json: what all runs share once, what differs with each run."""
    chosen = {cell.run_id for cell in selection.chosen.values()}
    cells = [
        {
            "run_id": cell.run_id,
            "method": cell.method,
            "lr": cell.lr,
            "status": cell.status,
            "chosen": cell.run_id in chosen,
        }
        for cell in selection.cells
    ]
    names = [path.name for path in selection.unidentified]
    return runs_json(
        {"sweep": selection.name, "where": list(selection.where)}, cells, selection.runs, names
    )


def runs_json(
    about: Mapping[str, Any],
    cells: Sequence[Mapping[str, Any]],
    runs: pd.DataFrame,
    unidentified: Sequence[str] = (),
) -> str:
    """Some runs with where they come from, as JSON: what all share once, what differs with each run.

    Args:
        about: what stands first.
        cells: each with a `run_id` of `runs`, and what else is to be said of it.
        runs: rows of the runs frame, at least one.
        unidentified: names of run files that belong to no known sweep.
    """
    columns = [key for key in runs.columns if key.startswith(PREFIX)]
    shared = [key for key in columns if runs[key].nunique(dropna=False) == 1]
    first = runs.iloc[0]
    rows = {row["run_id"]: row for row in runs.to_dict("records")}
    written = [
        {
            **cell,
            **{
                key: _plain(rows[cell["run_id"]][key])
                for key in ("started", "fragments", "torn", "git_revisions")
            },
            **{
                key.removeprefix(PREFIX): _plain(rows[cell["run_id"]][key])
                for key in columns
                if key not in shared and key.removeprefix(PREFIX) not in ("run_id", "started")
            },
        }
        for cell in cells
    ]
    content = {
        **about,
        "shared": {key.removeprefix(PREFIX): _plain(first[key]) for key in shared},
        "runs": written,
        "unidentified_files": list(unidentified),
    }
    lines = [f"{json.dumps(k)}: {_lines(v)}" for k, v in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(value: Any) -> str:
    """JSON with an entry of a list per line."""
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in value) + "\n]"


def provenance_line(selection: Selection) -> str:
    """One sentence for the foot of a table: runs, revision, torch, device, days."""
    runs = selection.runs
    revisions = sorted({r[:10] for text in runs["git_revisions"] for r in text.split()})
    dirty = "provenance.git_dirty" in runs and bool((runs["provenance.git_dirty"] == True).any())  # noqa: E712
    days = sorted({text[:10] for text in runs["started"]})
    parts = [
        f"{len(runs)} runs of the W&B group {selection.name}",
        "git " + (", ".join(revisions) or "unknown") + (" with uncommitted changes" * dirty),
        "torch " + _values(runs, "provenance.versions.torch"),
        "on " + _values(runs, "provenance.device"),
        " to ".join(dict.fromkeys([days[0], days[-1]])),
    ]
    return f"From {'; '.join(parts)}."


def _values(runs: pd.DataFrame, key: str) -> str:
    if key not in runs:
        return "unknown"
    return ", ".join(sorted({str(value) for value in runs[key].dropna()})) or "unknown"


def _plain(value: Any) -> Any:
    """A value of a frame as JSON knows it; a gap is null."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return None if pd.isna(value) else int(value) if value.is_integer() else value
    return value
