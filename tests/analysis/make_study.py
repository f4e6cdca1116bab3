"""Studies in miniature, in memory, whose effects are known because they are put in."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.logs.frames import Frames
from analysis.logs.history import History
from analysis.select.cell_runs import fill
from analysis.select.study_runs import Study, of_filled

NAME, EXAMPLES, EVERY, STEPS = "study_made", 400, 10, 40
FORWARDS = {"zero_shot": 0, "mezo": 2, "bszo": 3, "bszo_b": 4}
METHODS, PRECISIONS, SEEDS, LRS = tuple(FORWARDS), ("fp32", "bf16", "fp16"), (0, 1, 2), (1e-4, 1e-3)
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


def cells(ending: str, swept: Mapping[str, tuple], **grid: tuple) -> list[dict[str, Any]]:
    """The cells of one sweep: its methods, precisions, learning rates and seeds, times what else it sweeps."""
    rows = []
    methods, precisions = grid.get("methods", METHODS), grid.get("precisions", PRECISIONS)
    for method, precision, seed, *values in product(methods, precisions, SEEDS, *swept.values()):
        variant = dict(zip(swept, values, strict=True))
        for lr in LRS if method != "zero_shot" else (0.0,):
            words = "-".join(str(v) for v in (ending, *variant.values()))
            rows.append(
                {
                    "sweep": NAME + ending,
                    "run_id": f"{method}-{precision}-{seed}-{lr:g}{words}",
                    "model": "reviews-tiny",
                    "task": "rotten_tomatoes",
                    "optimizer": method,
                    "precision": precision,
                    "seed": seed,
                    "lr": lr,
                    "command": "",
                    "steps": STEPS if lr else 0,
                    "variant": json.dumps(variant, sort_keys=True),
                }
            )
    return rows


def main_cells(**grid: tuple) -> list[dict[str, Any]]:
    return cells("", {}, **grid)


def made_study(rows: list[dict[str, Any]], made: Made | None = None) -> Study:
    """A study of these cells."""
    made = made or Made()
    runs, histories = [], {}
    for i, cell in enumerate(rows):
        status = made.status(cell)
        if status == "missing":
            continue
        history = _history(cell, made.loss(cell))
        histories[cell["run_id"]] = [pa.Table.from_pandas(history, preserve_index=False)]
        runs.append(_run(cell, status, made.accuracy(cell), i, history["eval/val_loss"].iloc[-1]))
    columns = list(_run(rows[0], "finished", 50.0, 0))
    frames = Frames(pd.DataFrame(runs, columns=columns), History(histories), ())
    return of_filled(NAME, fill(pd.DataFrame(rows), frames.runs), frames)


def _history(cell: dict, end: float) -> pd.DataFrame:
    """Straight lines, at another height for each seed, with a little chance on top."""
    steps = np.arange(EVERY, STEPS + 1, EVERY) if cell["lr"] else np.array([0])
    noise = np.random.default_rng(crc32(cell["run_id"].encode()))
    line = 1 + (end - 1) * steps / STEPS + 0.01 * cell["seed"]
    return pd.DataFrame(
        {
            "step": steps,
            "train/loss": line,
            "train/forwards": 1.0 * FORWARDS[cell["optimizer"]] * steps,
            "time/step_s": 0.1,
            "eval/val_accuracy": 1 - line / 2,
            "eval/val_loss": line + 1e-4 * noise.standard_normal(len(steps)),
        }
    )


def _run(cell: dict, status: str, percent: float, i: int, loss: float = 0.5) -> dict[str, Any]:
    """The larger learning rate is the better one; seed 1 is a point above seed 0, seed 2 a point below."""
    worse = 10 if cell["lr"] == LRS[0] else 0
    shift = {0: 0, 1: 1, 2: -1}[cell["seed"]]
    hard = np.random.default_rng(7).permutation(EXAMPLES) / EXAMPLES  # the same examples for all
    jitter = np.random.default_rng(i).normal(0, 0.01, EXAMPLES)
    correct = hard + jitter < (percent + shift - worse) / 100
    pairs = zip(LABELS, correct, strict=True)
    predictions = "".join(y if ok else str(1 - int(y)) for y, ok in pairs)
    return {
        "run_id": cell["run_id"],
        "status": status,
        "group": cell["sweep"],
        "duplicates": 0,
        "source": "made",
        "started": "2026-01-31T12:00:00",
        "fragments": 1,
        "torn": False,
        "git_revisions": "1489d1e",
        "provenance.git_revision": "1489d1e",
        "provenance.device": "cpu: made",
        "best/step": STEPS,
        "best/val_accuracy": (percent - worse) / 100,
        "best/test_accuracy": float(correct.mean()),
        "eval/val_loss": loss,
        "best/val_n": 500,
        "best/test_n": EXAMPLES,
        "best/test_predictions": predictions,
        "test/labels": LABELS,
        "run/forwards_per_step": FORWARDS[cell["optimizer"]],
    }
