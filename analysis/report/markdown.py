"""What is written: tables as csv, md and tex, and runs as parquet."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis.logs import committed, manifests
from analysis.logs.fragments import ENDED
from analysis.logs.frames import FILE_COLUMNS, MEASURED, Frames, plain
from analysis.logs.history import EVALUATED
from analysis.logs.run_file import LogError
from analysis.report.table import Table, latex, markdown
from analysis.select.cells import TAKEN

OF_MACHINE = (
    *("optimizer.name", "lr", "optimizer.eps", "seed", "provenance.sources"),
    *("provenance.device", "provenance.git_dirty", "provenance.versions.torch"),
    *("provenance.host_cores", "provenance.threads", "provenance.cpu_capability"),
    "precision.noise",
)
"""What says of a kept run which it is, of which code and on which machine it was made."""

LARGE = "best/test_predictions"
"""What no table of a comparison reads, another text in each run."""


def csv(frame: pd.DataFrame, digits: str | None = None) -> str:
    """The text of a csv file; `digits`: the format of its numbers, None for all that they have."""
    return frame.to_csv(index=False, lineterminator="\n", float_format=digits)


def table_texts(stem: str, text: str, tables: Sequence[Table], tex: bool = True) -> dict[str, str]:
    """The files of a table, or of its parts, by their names: csv (`text`), md and, if asked for, tex."""
    texts = {f"{stem}.csv": text, f"{stem}.md": "\n".join(map(markdown, tables))}
    return texts | ({f"{stem}.tex": "\n".join(map(latex, tables))} if tex else {})


def write_texts(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files into a directory, which is made; name -> content; the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8", newline="\n")
    return [directory / name for name in texts]


def write_runs(runs: pd.DataFrame, directory: Path) -> Path:
    """Write the runs frame to runs.parquet, a column of mixed values as JSON texts; the path."""

    def storable(column: pd.Series) -> pd.Series:
        kinds = {type(plain(value)) for value in column.dropna()}
        if len(kinds) > 1 and not kinds <= {int, float}:
            return column.map(lambda value: json.dumps(plain(value)), na_action="ignore")
        return column

    path = directory / "runs.parquet"
    directory.mkdir(parents=True, exist_ok=True)
    runs.apply(storable).to_parquet(path, compression="zstd", index=False)
    return path


def write_record(frames: Frames, sweeps: Sequence[str], directory: Path) -> list[Path]:
    """Write the ended runs of some sweeps, what the tables need of them, their evaluations and cells; the paths."""
    cells, path = frames.cells_of(sweeps), directory / "runs.parquet"
    runs = frames.runs[frames.runs["run_id"].isin(cells["run_id"])]
    there = runs["status"].isin(ENDED)
    if not there.any():
        raise LogError(f"no run of {' or '.join(sweeps)} has ended")
    failed = runs.get("failed", pd.Series(False, runs.index)) == 1
    runs = runs[there | failed].reset_index(drop=True)
    wanted = [*FILE_COLUMNS, *TAKEN.values(), *MEASURED, *OF_MACHINE]
    runs = runs[[key for key in dict.fromkeys(wanted) if key in runs and key != LARGE]]
    runs = runs.assign(source=path.name)
    rows = pd.concat([frames.history.one(run_id, EVALUATED) for run_id in runs["run_id"]])
    rows = rows[rows["eval/val_loss"].notna()].drop(columns="time/step_s")
    directory.mkdir(parents=True, exist_ok=True)
    beside = [directory / name for name in (committed.EVALUATED, committed.CELLS)]
    runs.to_parquet(path, compression="zstd", index=False)
    rows.to_parquet(beside[0], compression="zstd", index=False)
    lines = manifests.complete(frames.lines, frames.runs)
    manifests.write([line for line in lines if line["sweep"] in sweeps], beside[1])
    return [path, *beside]
