"""A study's numbers as frames: accuracies by method and precision, every learning rate, ablations, larger ε; in %."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.paper.bold import BEST_ONE, BEST_TWO, better
from analysis.paper.names import UNTRAINED, method_label
from analysis.select.cell_runs import over_seeds
from analysis.select.contrast_rows import accuracy_row
from analysis.select.study_runs import (
    EPS,
    M_IS_K,
    M_IS_K_PLUS_1,
    MAIN,
    NOISE,
    REFERENCE,
    Setting,
    Study,
)
from analysis.stats.intervals import NAN, student_interval

AVERAGE = "average"
ENDED = ["finished", "collapsed"]
ACCURACY = [
    *("method", "precision", "lr", "test_mean", "test_std", "student_low", "student_high"),
    *("val_mean", "val_std", "n", "seeds", "collapsed", "status", "at_edge", "remark"),
    *("grid", "grid_collapsed", "grid_lacking", "run_ids"),
]
ABLATION = [
    *("part", "setting", "precision", "k", "lr", "test_mean", "test_std", "val_mean", "n"),
    *("seeds", "collapsed", "status", "at_edge", "grid", "lacking", "bold", "run_ids"),
]
GRID = [
    *("method", "precision", "lr", "chosen", "at_edge", "val_mean", "val_std", "test_mean"),
    *("test_std", "n", "seeds", "collapsed", "lacking", "run_ids"),
]
LARGER_EPS = [
    *("method", "precision", "eps", "lr", "at_edge", "n", "test_mean", "test_std", "last_loss"),
    *("gain", "low", "high", "lacking", "run_ids"),
]
SETTINGS = {
    (M_IS_K, None): ("a", "m = k"),
    (M_IS_K_PLUS_1, None): ("b", "m = k + 1"),
    (NOISE, True): ("c", "with adaptive noise"),
    (NOISE, False): ("c", "without"),
}
"""Sweep's ending, adaptive noise -> part of the paper's Table 5 and what the row shows."""


def accuracy_frame(study: Study) -> pd.DataFrame:
    """A row per method and precision, and one per method for the average over the precisions.

    Returns:
        The columns ACCURACY and `bold`. Standard deviations are of the sample, `student_low` and `student_high` 95 %
        over the seeds, `collapsed` counts seeds at the chosen lr, `grid...` runs of the whole grid. An average has a
        mean where every precision is measured or collapsed, over those that are measured; its `n` counts them.
    """
    means = over_seeds(study.part(MAIN)).to_dict("records")
    found = {(row["optimizer"], row["precision"]): row for row in means}
    rows = []
    for method in study.methods:
        mine = [_accuracy(study, method, p, found.get((method, p), {})) for p in study.precisions]
        rows += [*mine, _average(method, mine)]
    frame = pd.DataFrame(rows, columns=ACCURACY).assign(bold=False)
    trained = frame[~frame["method"].isin(UNTRAINED)]
    whole = trained.assign(test_mean=trained["test_mean"].where(trained["collapsed"] == 0))
    table = whole.pivot(index="method", columns="precision", values="test_mean")
    table = table.drop(columns=AVERAGE).dropna(how="all").dropna(axis=1)
    for precision, column in whole.groupby("precision", sort=False):
        if (column["status"].isin(ENDED) & (column["grid_lacking"] == 0)).all():
            values = column["test_mean"]
            if precision == AVERAGE:  # compared over the precisions that all methods finished
                values = column["method"].map(table.mean(axis=1))
            frame.loc[column.index, "bold"] = (better(values, False) < BEST_TWO) & values.notna()
    return frame


def _percent(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row of `over_seeds`, accuracies in %; without one what is missing."""
    means = ("test_mean", "test_std", "val_mean", "val_std")
    return {
        **{key: 100 * row.get(key, NAN) for key in means},
        **{key: row.get(key, 0) for key in ("n", "seeds", "collapsed")},
        **{key: row[key] for key in ("lr", "at_edge") if key in row},
        "status": row.get("status", "missing"),
        "grid": row.get("n_expected", 0),
        "grid_collapsed": row.get("n_collapsed", 0),
        "grid_lacking": sum(row.get(f"n_{s}", 0) for s in ("missing", "unfinished", "duplicated")),
        "run_ids": row.get("run_ids", ""),
    }


def _accuracy(study: Study, method: str, precision: str, row: Mapping[Any, Any]) -> dict[str, Any]:
    runs = study.runs(Setting(method, precision)).values()
    values = [100 * run["test_accuracy"] for run in runs]
    low, high = student_interval(values) if len(values) > 1 else (NAN, NAN)
    other = study.same_as(method, precision) if row else None
    said = f"same test predictions as {method_label(other)} in every seed" if other else ""
    known = {"method": method, "precision": precision, "remark": said}
    return known | _percent(row) | {"student_low": low, "student_high": high}


def _average(method: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Over the precisions, the accuracies of which are fractions of one set of examples."""
    done = [row["test_mean"] for row in rows if row["status"] == "finished"]
    sums = {key: sum(r[key] for r in rows) for key in ("grid", "grid_collapsed", "grid_lacking")}
    row = {"method": method, "precision": AVERAGE, "remark": ""} | _percent({}) | sums
    if all(row["status"] in ENDED for row in rows):
        row |= {"status": "finished" if done else "collapsed", "n": len(done)}
        row["test_mean"] = sum(done) / len(done) if done else NAN
    return row | {"seeds": len(rows)}


def grid_frame(study: Study) -> pd.DataFrame:
    """A row per method, precision and learning rate of the main sweep, with columns GRID: means of finished runs."""
    part = study.part(MAIN)
    rows = []
    for row in over_seeds(part.assign(chosen=True, here=part["chosen"]), "lr", "here").to_dict(
        "records"
    ):
        known = {"method": row["optimizer"], "precision": row["precision"], "chosen": row["here"]}
        known |= _percent(row) | {"at_edge": row["here"] and row["at_edge"], "lr": row["lr"]}
        rows.append(known | {"lacking": known["grid_lacking"]})
    order: dict[Any, int] = {name: i for i, name in enumerate([*study.methods, *study.precisions])}
    rows.sort(key=lambda row: (order[row["method"]], order[row["precision"]], row["lr"]))
    return pd.DataFrame(rows, columns=GRID)


def ablation_frame(study: Study) -> pd.DataFrame:
    """BSZO's k, m and adaptive noise: a row per part of the paper's Table 5, setting and k, with columns ABLATION."""
    rows = []
    for (ending, noise), (part, words) in SETTINGS.items():
        mine = study.part(ending)
        mine = mine if noise is None else mine[mine["adaptive_noise"] == noise]
        for row in over_seeds(mine).to_dict("records"):
            known = {"part": part, "setting": words, "precision": row["precision"]}
            known |= {"k": int(row["k"]), "bold": False} | _percent(row)
            rows.append(known | {"lacking": known["grid_lacking"]})
    frame = pd.DataFrame(rows, columns=ABLATION)
    # (a) and (b) are compared with each other, as in the paper
    for _, compared in frame.groupby([frame["part"] == "c", "precision", "k"], sort=False):
        if compared["lacking"].sum() == 0:
            best = better(compared["test_mean"], lowest=False) < BEST_ONE
            frame.loc[compared.index, "bold"] = best & compared["test_mean"].notna()
    return frame


def eps_frame(study: Study) -> pd.DataFrame:
    """What a larger ε is worth in half precision; no rows without a sweep over ε.

    Returns:
        A row per method, precision and ε, the study's own ε (NaN) and float32 first, with the columns LARGER_EPS.
        `last_loss`: of validation, nats, mean over the seeds. `gain`, `low`, `high`: points of test accuracy over the
        study's own ε in this precision, with the 95 % interval of `analysis.stats.contrasts`.
    """
    part = study.part(EPS)
    values = sorted(part["eps"].unique())
    rows = []
    for method in part["optimizer"].unique():
        for precision in part["precision"].unique():
            rows += [_eps_row(study, method, p, None) for p in (REFERENCE, precision)]
            rows += [_eps_row(study, method, precision, eps) for eps in values]
    return pd.DataFrame(rows, columns=LARGER_EPS)


def _eps_row(study: Study, method: str, precision: str, eps: float | None) -> dict[str, Any]:
    own = Setting(method, precision)
    setting = own if eps is None else Setting(method, precision, EPS, {"eps": eps})
    (row,) = over_seeds(study.cells(setting)).to_dict("records") or [{}]
    found: dict[str, Any] = {}
    if eps is not None and row.get("n"):
        found = accuracy_row(study, "eps", [(1.0, setting), (-1.0, own)])
    known = {"method": method, "precision": precision, "eps": eps} | _percent(row)
    known |= {"last_loss": row.get("val_loss", NAN), "gain": found.get("estimate", NAN)}
    known |= {end: found.get(end, NAN) for end in ("low", "high")}
    return known | {"lacking": known["grid_lacking"]}
