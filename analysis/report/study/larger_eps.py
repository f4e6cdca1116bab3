"""What a larger ε is worth in half precision: accuracy and loss beside the study's own ε, and beside float32."""

import json
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from analysis.select.contrast_rows import Term, accuracy_row
from analysis.select.study_claims import REFERENCE
from analysis.select.study_runs import Study, right
from analysis.select.study_sweeps import EPS, MAIN


def eps_frame(study: Study) -> pd.DataFrame:
    """A row per method, precision and ε, the study's own ε and float32 first; no rows without a sweep over ε.

    Returns:
        Columns `method`, `precision`, `eps` (NaN is the study's own), `lr`, `at_edge`, `n`, `test_mean`, `test_std`
        (%), `last_loss` (validation, nats, mean over the seeds), `gain`, `low`, `high` (points of test accuracy over
        the study's own ε in this precision, with the 95 % interval of `analysis.stats.contrasts`), `lacking`,
        `run_ids`.
    """
    part = study.part(EPS)
    rows = []
    for method in part["optimizer"].unique():
        for precision in part["precision"].unique():
            rows += [_row(study, method, p, None) for p in (REFERENCE, precision)]
            values = sorted({json.loads(v)["optimizer.eps"] for v in part["variant"]})
            rows += [_row(study, method, precision, eps) for eps in values]
    return pd.DataFrame(rows, columns=list(_columns()))


def _columns() -> tuple[str, ...]:
    return (
        *("method", "precision", "eps", "lr", "at_edge", "n", "test_mean", "test_std", "last_loss"),
        *("gain", "low", "high", "lacking", "run_ids"),
    )


def _row(study: Study, method: str, precision: str, eps: float | None) -> dict[str, Any]:
    ending, variant = (MAIN, {}) if eps is None else (EPS, {"eps": eps})
    runs = study.runs(method, precision, ending, **variant)
    grid = study.cells(method, precision, ending, **variant)
    accuracies = [values.mean() for values in right(runs).values()]
    losses = [run["val_loss"] for run in runs.values()]
    found = {"estimate": float("nan"), "low": float("nan"), "high": float("nan")}
    if eps is not None and runs:
        own = Term(-1, method, precision)
        found = accuracy_row(study, "eps", [Term(1, method, precision, ending, variant), own])
    return {
        "method": method,
        "precision": precision,
        "eps": eps,
        "lr": next((run["lr"] for run in runs.values()), float("nan")),
        "at_edge": any(run["at_edge"] for run in runs.values()),
        "n": len(runs),
        "test_mean": fmean(accuracies) if runs else float("nan"),
        "test_std": stdev(accuracies) if len(runs) > 1 else float("nan"),
        "last_loss": fmean(losses) if runs else float("nan"),
        "gain": found["estimate"],
        "low": found["low"],
        "high": found["high"],
        "lacking": int((~grid["status"].isin(["finished", "collapsed"])).sum()),
        "run_ids": " ".join(run["run_id"] for run in runs.values()),
    }
