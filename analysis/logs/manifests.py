"""The cells of sweeps: the manifests that sweeps write (`launch/manifest.py`), and what runs logged of their own cells.

One frame, a row per cell: the keys of a manifest's line, `variant` and `inputs` as JSON texts, and `current`, False for
a line that a newer one replaces. Replaced are, of one sweep, lines of other data than the newest of the same model,
task and precision, lines of other code or settings than the newest of the same method and variant, of a comparison's
last stage those of another setting than the newest that was chosen for the method, and all but the newest line of a
cell, or of a run that two lines name: each run is one cell of a sweep.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs.run_file import LogError

DIRECTORY = "sweeps"
CODE = "optimizer.code"
COLUMNS = (
    *("sweep", "run_id", "model", "task", "optimizer", "precision", "seed", "lr", "steps"),
    *("variant", "changed", "line", "role", "equivalence_margin", "levels", "inputs", "settings"),
    "command",
)
DECIDING = "data", "facet", "chosen", "written"  # Which of several lines counts
RENAMED = {"arm": "line", "smallest": "equivalence_margin"}
"""Keys of manifests, new and old, that are columns of another name."""

CELL = ["sweep", "model", "task", "optimizer", "precision", "variant", "line", "seed", "lr"]
Line = Mapping[str, Any]


def read(paths: Iterable[Path]) -> Iterator[Line]:
    """Yields the lines of some manifests, or of `cells.parquet` beside committed runs."""
    for path in sorted({path.resolve() for path in paths}):
        if path.suffix == ".parquet":
            texts = list(pd.read_parquet(path)["line"])
        else:
            texts = path.read_text(encoding="utf-8").splitlines()
        for text in texts:
            try:
                line = json.loads(text)
            except ValueError:  # torn
                continue
            if not isinstance(line, dict) or "sweep" not in line or "run_id" not in line:
                raise LogError(f"{path}: has a line without sweep and run_id, so it is no manifest")
            yield line


def write(lines: Iterable[Line], path: Path) -> None:
    """Writes lines as `cells.parquet`; of those that differ in `command` and `written` alone the newest one."""
    texts = {
        json.dumps({**line, "command": None, "written": None}, sort_keys=True): json.dumps(line)
        for line in sorted(lines, key=lambda line: str(line.get("written", "")))
    }
    pd.DataFrame({"line": [*texts.values()]}).to_parquet(path, compression="zstd", index=False)


def complete(lines: Sequence[Line], runs: pd.DataFrame) -> list[Line]:
    """Returns the lines, and what runs logged of cells that are in no manifest."""
    known = {(line["sweep"], line["run_id"]) for line in lines}
    logged = _logged(runs)
    return [*lines, *(line for line in logged if (line["sweep"], line["run_id"]) not in known)]


def cells(lines: Iterable[Line]) -> pd.DataFrame:
    """The frame of the module."""
    every = sorted(lines, key=lambda line: str(line.get("written", "")))
    frame = pd.DataFrame([_plain(line) for line in every], columns=[*COLUMNS, *DECIDING])
    frame = frame.astype({"seed": "int64", "steps": "int64", "lr": "float64"})
    if frame.empty:
        return frame.drop(columns=[*DECIDING]).assign(current=False)
    frame["written"] = frame["written"].fillna("")
    facet = ["sweep", "model", "task", "precision", "facet"]
    frame["own"] = frame["settings"] + frame["inputs"]
    frame["setting"] = frame["variant"] + frame["lr"].astype(str)
    kept = frame[frame["data"] == _last(frame, facet, "data")]
    kept = kept[kept["own"] == _last(kept, CELL[:-2], "own")]
    kept = kept[(kept["line"] == "") | (kept["changed"] == _last(kept, ["sweep"], "changed"))]
    by = ["sweep", "line", "setting"]  # a command may have given a line several, which is an error
    newest = (kept["written"] == _last(kept, by[:2], "written")).groupby([kept[key] for key in by])
    kept = kept[newest.transform("any") | ~kept["chosen"].isin([True])]
    kept = kept.drop_duplicates(CELL, keep="last").drop_duplicates(["sweep", "run_id"], keep="last")
    frame = frame.assign(current=frame.index.isin(kept.index))
    return frame.drop(columns=[*DECIDING, "own", "setting"])


def _last(frame: pd.DataFrame, keys: Sequence[str], column: str) -> pd.Series:
    """The newest value among the rows that agree in some keys."""
    return frame.groupby(list(keys))[column].transform("last")


def _logged(runs: pd.DataFrame) -> Iterator[Line]:
    """Yields what the runs of sweeps logged of their own cells."""
    for row in runs.reindex(columns=["run_id", "group", "started", "provenance.cell"]).to_dict(
        "records"
    ):
        if row["group"] and isinstance(row["provenance.cell"], str):
            own = {"sweep": row["group"], "run_id": row["run_id"], "written": row["started"]}
            yield {**json.loads(row["provenance.cell"]), **own}


def _plain(line: Line) -> dict[str, Any]:
    """A line as a row: nested values as JSON texts, and what decides whether another line replaces it."""
    line = {RENAMED.get(key, key): value for key, value in line.items()}
    variant, inputs = line.get("variant", {}), line.get("inputs", {})
    data = {key: value for key, value in inputs.items() if key != CODE}
    facet = {key: value for key, value in variant.items() if not key.startswith("optimizer.")}
    texts = {"variant": variant, "inputs": inputs, "data": data, "facet": facet}
    row: dict[str, Any] = dict.fromkeys(("line", "role", "settings", "command"), "")
    row |= {"equivalence_margin": float("nan"), **line}
    row["levels"] = json.dumps(line["levels"]) if line.get("levels") else None
    row["changed"] = ",".join(line.get("changed", ()))
    return row | {key: json.dumps(value, sort_keys=True) for key, value in texts.items()}
