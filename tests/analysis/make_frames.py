"""Frames of runs that fill given cells, made in memory: for what needs many runs, not their files."""

import json
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.logs.frames import Frames
from analysis.logs.history import History

EVERY = 10  # steps
GRID = {"task": ["rte"], "optimizer": ["mezo"], "variant": [{}], "lr": [1e-4], "seed": [0]}
RUN_ID = "{sweep}-{task}-{optimizer}-{lr:g}-{seed}-{variant}"
Status = Callable[[dict], str]


def finished(cell: dict) -> str:
    """Every run has finished."""
    return "finished"


def expected(
    sweep: str = "s", model: str = "m", run_id: str = RUN_ID, **grid: Iterable[Any]
) -> pd.DataFrame:
    """The cells of a sweep, as `analysis.select.sweep_cells.cells`: every combination of the grid's values."""
    rows = []
    for values in product(*(GRID | grid).values()):
        cell = {"sweep": sweep, "model": model, **dict(zip(GRID, values, strict=True))}
        cell |= {"precision": "fp32", "steps": 100, "command": "make"}
        cell["variant"] = json.dumps(cell["variant"])
        rows.append(cell | {"run_id": run_id.format(**cell)})
    return pd.DataFrame(rows)


def made_frames(cells: pd.DataFrame, status: Status = finished, steps: int = 40) -> Frames:
    """A run per cell.

    Args:
        cells: see `analysis.select.sweep_cells.cells`.
        status: what became of a cell's run.
        steps: length of its history; a collapsed run has half of them.
    """
    records = cells.drop_duplicates("run_id").to_dict("records")
    rows, histories = [], {}
    for i, cell in enumerate(records):
        became = status(cell)
        if became == "missing":
            continue
        history = _history(cell, steps // 2 if became == "collapsed" else steps, i)
        rows.append(_run(cell, became, history))
        histories[cell["run_id"]] = [pa.Table.from_pandas(history, preserve_index=False)]
    return Frames(pd.DataFrame(rows), History(histories), ())


def _history(cell: dict, steps: int, seed: int) -> pd.DataFrame:
    noise, step = np.random.default_rng(seed), np.arange(steps + 1)
    loss = 0.7 - 0.3 * step / max(steps, 1) + 0.05 * noise.standard_normal(steps + 1)
    trained = {"train/loss": loss, "train/forwards": 3.0 * step, "time/step_s": 0.5}
    if cell["optimizer"].startswith("bszo"):
        for key in ("noise_std", "shrinkage", "residual_rms", "posterior_trace", "mu_norm"):
            trained[f"optim/{key}"] = 1 + noise.random(steps + 1)
    frame = pd.DataFrame({"step": step, **trained})
    frame.loc[0, list(trained)] = np.nan
    accuracy = 0.5 + 0.3 * step / max(steps, 1)
    return frame.assign(**{"eval/val_accuracy": np.where(step % EVERY == 0, accuracy, np.nan)})


def _run(cell: dict, status: str, history: pd.DataFrame) -> dict:
    last = int(history["step"].iloc[-1])
    accuracy = 0.8 - 0.02 * abs(np.log10(max(cell["lr"], 1e-12)) + 6)
    names = ("model", "task", "optimizer", "precision")
    return {
        "run_id": cell["run_id"],
        "group": cell["sweep"],
        "status": status,
        "source": "made",
        "exit_code": 0,
        "fragments": 1,
        "torn": False,
        "duplicates": 0,
        "rows": len(history),
        **{f"{name}.name": cell[name] for name in names},
        "seed": cell["seed"],
        "lr": cell["lr"],
        **json.loads(cell["variant"]),
        "started": "2026-01-31T12:00:00",
        "git_revisions": "1489d1e0000000000000000000000000000000ab",
        "last_step": last,
        "provenance.device": "cuda: made",
        "provenance.versions.torch": "2.13.0",
        "run/forwards_per_step": 3.0,
        "run/collapse_step": float(last + 1) if status == "collapsed" else np.nan,
        "best/step": float(last),
        "best/val_accuracy": accuracy,
        "best/val_n": 500.0,
        "best/test_accuracy": accuracy - 0.01 + 0.004 * cell["seed"],
        "best/test_n": 872.0,
        "time/step_ms_median": 100.0 + 10 * len(cell["optimizer"]),
        "mem/peak_gib": 9.0 + len(cell["optimizer"]),
        "mem/state_mib": 0.0,
    }
