"""Runs as train.py logs them (docs/reference/run-directory.md), written by W&B itself in offline mode."""

from pathlib import Path
from typing import Any

import numpy as np
import wandb

from analysis.logs.run_file import read_run_file
from analysis.paper.names import UNTRAINED
from tests.support.waiting import wait_for

STEPS, EVAL_EVERY, VAL_N, TEST_N = 40, 10, 20, 20
LABELS = "01" * (TEST_N // 2)
SETTINGS = wandb.Settings(silent=True, x_transaction_log_flush_interval=1.0)


def predictions(correct: int) -> str:
    """Predictions of which the first `correct` are right."""
    flipped = LABELS.translate({ord("0"): "1", ord("1"): "0"})
    return LABELS[:correct] + flipped[correct:]


def config(method: str, lr: float, **changes: Any) -> dict[str, Any]:
    return {
        "model": {"name": "reviews-tiny"},
        "task": {"name": "rotten_tomatoes", "label_words": ["terrible", "great"]},
        "optimizer": {"name": method},
        "precision": {"name": "fp32"},
        "seed": 0,
        "lr": lr,
        "steps": 0 if method in UNTRAINED else STEPS,
        "provenance": {
            "git_revision": "1489d1e0000000000000000000000000000000ab",
            "git_dirty": False,
            "versions": {"torch": "2.9.0", "wandb": wandb.__version__},
            "device": "cpu",
            "started": f"2026-01-31T12:{int(100 * lr):02d}:00+00:00",
        },
    } | changes


def history(forwards: int, accuracies: list[float], seed: int = 0) -> list[dict[str, float]]:
    """Rows of a run of 10 steps per evaluation; `accuracies` of steps 0, 10, 20, ..."""
    noise = np.random.default_rng(seed)
    rows: list[dict[str, float]] = [{"step": 0}]
    for step in range(1, (len(accuracies) - 1) * EVAL_EVERY + 1):
        loss = 0.7 - 0.004 * step + 0.05 * noise.standard_normal()
        logged = {"train/loss": loss, "train/forwards": step * forwards, "time/step_s": 0.05}
        rows.append({"step": step, **logged})
    for row, accuracy in zip(rows[::EVAL_EVERY], accuracies, strict=True):
        row["eval/val_accuracy"] = accuracy
    return rows


def summary(forwards: int, accuracies: list[float], correct: int, **changes: Any) -> dict[str, Any]:
    best = int(np.argmax(accuracies))
    return {
        "run/status": "finished",
        "run/forwards_per_step": forwards,
        "best/step": best * EVAL_EVERY,
        "best/val_accuracy": accuracies[best],
        "best/val_n": VAL_N,
        "best/test_accuracy": correct / TEST_N,
        "best/test_n": TEST_N,
        "best/test_predictions": predictions(correct),
        "test/labels": LABELS,
        "time/step_ms_median": 50.0 if forwards else None,
    } | changes


def write_run(
    out: Path,
    run_id: str,
    settings: dict[str, Any],
    rows: list[dict[str, float]],
    final: dict[str, Any],
) -> Path:
    """Log one run, or one fragment of a run; the path of its file."""
    directory = out / run_id
    directory.mkdir(parents=True, exist_ok=True)
    before = set(directory.glob("wandb/offline-run-*"))
    run = wandb.init(
        mode="offline",
        project="zo",
        dir=directory,
        id=run_id,
        group="quickstart",
        config=settings,
        settings=SETTINGS,
    )
    for row in rows:
        run.log({k: v for k, v in row.items() if k != "step"}, step=int(row["step"]))
    run.summary.update(final)
    run.finish()
    (fragment,) = set(directory.glob("wandb/offline-run-*")) - before
    path = fragment / f"run-{run_id}.wandb"
    wait_for(lambda: read_run_file(path).exit_code is not None, f"W&B's process to end {path}", 20)
    return path


def cut_copy(path: Path, out: Path, size: int) -> Path:
    """A copy of a run file below another directory, torn after `size` bytes."""
    copy = out / path.parent.name / path.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(path.read_bytes()[:size])
    return copy


def write_quickstart(out: Path) -> None:
    """A sweep in miniature: zero-shot, mezo at three lr (one collapses), bszo at two that tie."""
    tie = [0.5, 0.6, 0.65, 0.8, 0.7]
    runs: list[tuple[str, str, float, int, list[float], int]] = [
        ("zero", "zero_shot", 0.0, 0, [0.5], 10),
        ("mezo-4", "mezo", 1e-4, 2, [0.5, 0.6, 0.75, 0.7, 0.75], 17),
        ("mezo-5", "mezo", 1e-5, 2, [0.5, 0.55, 0.55, 0.6, 0.65], 19),
        ("bszo-3", "bszo", 1e-3, 4, tie, 20),
        ("bszo-4", "bszo", 1e-4, 4, tie, 16),
    ]
    for seed, (run_id, method, lr, forwards, accuracies, correct) in enumerate(runs):
        rows, final = history(forwards, accuracies, seed), summary(forwards, accuracies, correct)
        write_run(out, run_id, config(method, lr), rows, final)
    rows = history(2, [0.5, 0.4], 3)[:8]
    rows[-1]["train/loss"] = float("nan")
    collapsed = {"run/status": "collapsed", "run/collapse_step": 7}
    write_run(out, "mezo-1", config("mezo", 0.1), rows, summary(2, [0.5], 10, **collapsed))
