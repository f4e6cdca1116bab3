"""The rows of many runs, which stay where they are, on disk or in memory, until somebody asks for some of them.

1,500 runs of 20,000 steps are 30 million rows of some fifteen numbers: 3.6 GB as one frame, and a figure needs a few
columns of a few runs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

STEP = "step"
EVALUATED = ("train/forwards", "time/step_s", "eval/val_accuracy", "eval/val_loss")
"""Keys that `evaluations` reads."""
Rows: TypeAlias = Path | pa.Table
"""The rows of one fragment of a run: the path of a parquet file, or the table itself; `step` and one column per key."""


class History:
    """What the runs logged, step by step: run id -> the rows of its fragments, of which later ones overrule earlier."""

    def __init__(self, rows: Mapping[str, Sequence[Rows]]):
        self.rows = {run_id: tuple(rows[run_id]) for run_id in sorted(rows)}

    @classmethod
    def of_frame(cls, frame: pd.DataFrame) -> "History":
        """The history that a frame of several runs, each like that of `one`, holds."""
        groups = frame.groupby("run_id", sort=False)
        parts = {str(run_id): rows.drop(columns="run_id") for run_id, rows in groups}
        return cls({run_id: [pa.Table.from_pandas(rows)] for run_id, rows in parts.items()})

    def one(self, run_id: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The rows of one run, each step once; none of a run that nobody knows.

        `run_id`, `step` (int64), then the columns as asked, as `train/loss`, or all in alphabetical order; sorted by
        step. NaN where a row lacks a key. Of two rows of one step the later fragment's stays.
        """
        parts = [_read(rows, columns) for rows in self.rows.get(run_id, ())]
        empty = pd.DataFrame({STEP: pd.Series(dtype="int64")})
        frame = pd.concat([p for p in parts if len(p)] or [*parts, empty][:1], ignore_index=True)
        if not (frame[STEP].is_monotonic_increasing and frame[STEP].is_unique):
            frame = frame.drop_duplicates(STEP, keep="last").sort_values(STEP, ignore_index=True)
        keys = sorted(set(frame.columns) - {"step"}) if columns is None else columns
        return frame.assign(run_id=run_id).reindex(columns=["run_id", "step", *keys])


def row_count(rows: Rows) -> int:
    """The number of rows, without reading them."""
    return rows.num_rows if isinstance(rows, pa.Table) else pq.read_metadata(rows).num_rows


def _read(rows: Rows, columns: Sequence[str] | None) -> pd.DataFrame:
    """Some columns of a fragment's rows, those that there are."""
    wanted = None if columns is None else [STEP, *columns]
    if not isinstance(rows, pa.Table):
        return pq.ParquetFile(rows).read(wanted).to_pandas()
    return rows.select([k for k in rows.column_names if wanted is None or k in wanted]).to_pandas()


def evaluations(history: pd.DataFrame, by: str = "accuracy") -> pd.DataFrame:
    """The rows of a run's history with a validation accuracy, or with a loss, which runs that train rewards have alone.

    `step`, `forwards`, `minutes` (of steps), `accuracy` (fraction), `loss` (nats, or minus the reward).
    """
    rows = history.reindex(columns=["step", *EVALUATED])
    forwards = rows["train/forwards"].where(rows["step"] > 0, 0.0)
    minutes = rows["time/step_s"].fillna(0.0).cumsum() / 60
    frame = pd.DataFrame(
        {
            "step": rows["step"].astype(float),
            "forwards": forwards.astype(float),
            "minutes": minutes.where(rows["time/step_s"].notna() | (rows["step"] == 0)),
            "accuracy": rows["eval/val_accuracy"].astype(float),
            "loss": rows["eval/val_loss"].astype(float),
        }
    )
    return frame[frame[by].notna()].reset_index(drop=True)
