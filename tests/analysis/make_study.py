"""Studies in miniature, in memory, whose effects are known because they are put in."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.logs.frames import Frames
from analysis.logs.history import History
from analysis.select.cell_runs import fill
from analysis.select.study_runs import Study, of_filled
from tests.analysis.make_frames import expected

NAME, EXAMPLES, EVERY, STEPS = "study_made", 400, 10, 40
FORWARDS = {"zero_shot": 0, "mezo": 2, "bszo": 3, "bszo_b": 4}
PRECISIONS, LRS = ("fp32", "bf16", "fp16"), (1e-4, 1e-3)
LABELS = "01" * (EXAMPLES // 2)


@dataclass
class Made:
    """What a run is to say.

    Attributes:
        accuracy: cell -> % right on the test examples; seeds and chance come on top.
        loss: cell -> validation loss after the last step, on a straight line from 1 at step 0.
        status: cell -> what becomes of its run.
    """

    accuracy: Callable[[dict], float] = lambda cell: 70.0
    loss: Callable[[dict], float] = lambda cell: 0.5
    status: Callable[[dict], str] = lambda cell: "finished"


def cells(
    *methods: str, precisions: Iterable[str] = PRECISIONS, ending: str = "", **grid: Any
) -> pd.DataFrame:
    """The cells of one sweep: these methods, or all, with every precision, learning rate and seed."""
    every = expected(NAME + ending, optimizer=methods or FORWARDS, lr=LRS, seed=(0, 1, 2), **grid)
    untrained = every["optimizer"] == "zero_shot"
    every = every[~untrained | (every["lr"] == LRS[0])]
    every.loc[untrained, ["lr", "steps"]] = 0
    return pd.concat(
        [every.assign(precision=name, run_id=every["run_id"] + name) for name in precisions]
    )


def made_study(cells: pd.DataFrame, made: Made | None = None) -> Study:
    """A study of these cells."""
    made = made or Made()
    runs, histories = [], {}
    for i, cell in enumerate(cells.to_dict("records")):
        status = made.status(cell)
        if status != "missing":
            history = _history(cell, made.loss(cell))
            histories[cell["run_id"]] = [pa.Table.from_pandas(history, preserve_index=False)]
            runs.append(_run(cell, status, made.accuracy(cell), i))
    frames = Frames(pd.DataFrame(runs), History(histories), ())
    return of_filled(NAME, fill(cells, frames.runs), frames)


def _history(cell: dict, end: float) -> pd.DataFrame:
    """Straight lines, at another height for each seed, with a little chance on top."""
    steps = np.arange(EVERY, STEPS + 1, EVERY) if cell["lr"] else np.array([0])
    noise = np.random.default_rng(crc32(cell["run_id"].encode()))
    line = 1 + (end - 1) * steps / STEPS + 0.01 * cell["seed"]
    return pd.DataFrame(
        {
            "step": steps,
            "train/forwards": 1.0 * FORWARDS[cell["optimizer"]] * steps,
            "time/step_s": 0.1,
            "eval/val_accuracy": 1 - line / 2,
            "eval/val_loss": line + 1e-4 * noise.standard_normal(len(steps)),
        }
    )


def _run(cell: dict, status: str, percent: float, i: int) -> dict[str, Any]:
    """The larger learning rate is the better one; seed 1 is a point above seed 0, seed 2 a point below."""
    worse = 10 if cell["lr"] == LRS[0] else 0
    shift = {0: 0, 1: 1, 2: -1}[cell["seed"]]
    hard = np.random.default_rng(7).permutation(EXAMPLES) / EXAMPLES  # the same examples for all
    jitter = np.random.default_rng(i).normal(0, 0.01, EXAMPLES)
    correct = hard + jitter < (percent + shift - worse) / 100
    pairs = zip(LABELS, correct, strict=True)
    return {
        "run_id": cell["run_id"],
        "status": status,
        "started": "2026-01-31T12:00:00",
        "fragments": 1,
        "torn": False,
        "git_revisions": "1489d1e",  # of provenance.json
        "best/step": STEPS,
        "best/val_accuracy": (percent - worse) / 100,
        "best/test_accuracy": float(correct.mean()),
        "best/val_n": 500,
        "best/test_n": EXAMPLES,
        "best/test_predictions": "".join(y if ok else str(1 - int(y)) for y, ok in pairs),
        "test/labels": LABELS,
    }
