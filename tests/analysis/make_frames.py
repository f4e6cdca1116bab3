"""Runs that fill given cells, made in memory; their effects are known because they are put in."""

import json
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.logs import manifests
from analysis.logs.frames import Frames
from analysis.logs.history import History
from launch.profile import register
from launch.sweep import Sweep

PAPER_METHODS = ("mezo", "mezo_adam", "hizoo", "lozo", "bszo", "bszo_b")
EXAMPLES, EVERY, STEPS = 400, 10, 40
LABELS = "01" * (EXAMPLES // 2)
FORWARDS = {"zero_shot": 0, "bszo": 3, "bszo_b": 4}
BEST_LR = 1e-3
GRID = {"task": ["rte"], "optimizer": ["mezo"], "variant": [{}], "lr": [1e-4], "seed": [0]}
RUN_ID = "{sweep}-{task}-{optimizer}-{lr:g}-{seed}-{variant}"
POSTERIOR = ("noise_std", "shrinkage", "residual_rms", "posterior_trace", "mu_norm")


def expected(
    sweep: str = "s", model: str = "m", run_id: str = RUN_ID, **grid: Iterable[Any]
) -> pd.DataFrame:
    """The cells of a sweep, as `Frames.cells_of`: every combination of the grid's values."""
    rows = []
    for values in product(*(GRID | grid).values()):
        cell = {"sweep": sweep, "model": model, **dict(zip(GRID, values, strict=True))}
        cell |= {"precision": "fp32", "steps": 100, "command": "", "changed": "", "line": ""}
        cell["variant"] = json.dumps(cell["variant"])
        rows.append(cell | {"run_id": run_id.format(**cell)})
    return pd.DataFrame(rows)


def lines(*sweeps: str) -> list[dict[str, Any]]:
    """The manifests of sweeps in conf/sweep, each with `stage=` behind its name if it has stages."""
    register()
    typed = [f"sweep={name}".split() for name in sweeps]
    return [line for words in typed for line in Sweep.of(words).manifest]


def composed(*sweeps: str) -> pd.DataFrame:
    """Their cells."""
    return manifests.cells(lines(*sweeps)).drop(columns="current")


def made_frames(
    cells: pd.DataFrame,
    status: Callable[[dict], str] = lambda cell: "finished",
    accuracy: Callable[[dict], float] = lambda cell: 70.0,
    loss: Callable[[dict], float] = lambda cell: 0.5,
) -> Frames:
    """A run per cell.

    Args:
        cells: see `Frames.cells_of`.
        status: what became of a cell's run; a collapsed one has half of the steps.
        accuracy: cell -> % right on the test examples at the best rate; rates, seeds and chance come on top.
        loss: cell -> validation loss after the last step, on a straight line from 1 at step 0.
    """
    rows, histories = [], {}
    for cell in cells.drop_duplicates("run_id").to_dict("records"):
        became = status(cell)
        if became == "missing":
            continue
        steps = STEPS // 2 if became == "collapsed" else STEPS
        rows.append(_run(cell, became, accuracy(cell), steps))
        logged = _history(cell, loss(cell), steps)
        histories[cell["run_id"]] = [pa.Table.from_pandas(logged, preserve_index=False)]
    return Frames(pd.DataFrame(rows), History(histories), ())


def _history(cell: dict, end: float, steps: int) -> pd.DataFrame:
    """Straight lines, at another height for each seed, with a little chance on top."""
    step = np.arange(1, steps + 1) if cell["lr"] else np.array([0])
    noise = np.random.default_rng(crc32(cell["run_id"].encode()))
    line = 1 + (end - 1) * step / STEPS + 0.01 * cell["seed"]
    logged = {
        "train/loss": line + 0.05 * noise.standard_normal(len(step)),
        "train/forwards": FORWARDS.get(cell["optimizer"], 2) * step.astype(float),
        "time/step_s": 0.1,
        "eval/val_accuracy": 1 - line / 2,
        "eval/val_loss": line + 1e-4 * noise.standard_normal(len(step)),
    }
    if cell["optimizer"].startswith("bszo"):
        logged |= {f"optim/{key}": 1 + noise.random(len(step)) for key in POSTERIOR}
    frame = pd.DataFrame({"step": step, **logged})
    frame.loc[step % EVERY > 0, ["eval/val_accuracy", "eval/val_loss"]] = np.nan
    return frame


def _run(cell: dict, status: str, percent: float, steps: int) -> dict[str, Any]:
    """10 points worse per decade from BEST_LR; seed 1 is a point above seed 0, seed 2 a point below."""
    worse = 10 * abs(np.log10(cell["lr"] / BEST_LR)) if cell["lr"] else 0
    shift = (0, 1, -1)[cell["seed"] % 3]
    hard = np.random.default_rng(7).permutation(EXAMPLES) / EXAMPLES  # the same examples for all
    chance = np.random.default_rng(crc32(cell["run_id"].encode()))  # whatever other runs there are
    jitter = chance.normal(0, 0.01, EXAMPLES)
    correct = hard + jitter < (percent + shift - worse) / 100
    pairs = zip(LABELS, correct, strict=True)
    return {
        "run_id": cell["run_id"],
        "group": cell["sweep"],
        "status": status,
        "source": "made",
        "exit_code": 0,
        "fragments": 1,
        "torn": False,
        "duplicates": 0,
        **{f"{name}.name": cell[name] for name in ("model", "task", "optimizer", "precision")},
        "seed": cell["seed"],
        "lr": cell["lr"],
        **json.loads(cell["variant"]),
        "started": "2026-01-31T12:00:00",
        "git_revisions": "1489d1e0000000000000000000000000000000ab",
        "last_step": steps,
        "provenance.device": "cuda: made",
        "provenance.versions.torch": "2.13.0",
        "run/forwards_per_step": FORWARDS.get(cell["optimizer"], 2),
        "run/collapse_step": steps + 1 if status == "collapsed" else np.nan,
        "best/step": steps,
        "best/val_accuracy": (percent - worse) / 100,
        "best/val_n": 500,
        "best/test_accuracy": float(correct.mean()),
        "best/test_n": EXAMPLES,
        "best/test_predictions": "".join(y if ok else str(1 - int(y)) for y, ok in pairs),
        "test/labels": LABELS,
        "time/step_ms_median": 100.0 + 10 * len(cell["optimizer"]),
        "mem/peak_gib": 9.0 + len(cell["optimizer"]),
        "mem/state_mib": 0.0,
    }
