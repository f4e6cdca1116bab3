"""Test accuracy of every method in every precision, in the form of the paper's Tables 1 and 3, and its grid."""

from typing import Any

import pandas as pd

from analysis.paper.bold import BEST_TWO, better
from analysis.paper.names import method_label
from analysis.select.cell_runs import over_seeds
from analysis.select.study_runs import Study
from analysis.select.study_sweeps import MAIN
from analysis.select.sweep_selection import ZERO_SHOT
from analysis.stats.intervals import student_interval

AVERAGE = "average"
LACK = ("n_missing", "n_unfinished", "n_duplicated")


def accuracy_frame(study: Study) -> pd.DataFrame:
    """A row per method and precision, and one per method for the average over the precisions; in %.

    Returns:
        Columns `method`, `precision`, `lr`, `test_mean`, `test_std` (sample), `student_low`, `student_high` (95 %, over
        the seeds), `val_mean`, `val_std`, `n`, `seeds`, `collapsed` (seeds at the chosen lr), `status`, `at_edge`,
        `remark` (a method whose runs have the same test predictions), `grid`,
        `grid_collapsed`, `grid_lacking` (runs of the whole grid), `bold`, `run_ids`. An average has a mean where every
        precision is measured or collapsed, over those that are measured; its `n` counts them.
    """
    means = over_seeds(study.chosen[study.chosen["sweep"] == study.name])
    rows = []
    for method in study.methods:
        of_method = [_row(study, means, method, precision) for precision in study.precisions]
        rows += [*of_method, _average(method, of_method)]
    frame = pd.DataFrame(rows)
    frame["bold"] = False
    trained = frame[frame["method"] != ZERO_SHOT]
    common = _over_common_precisions(trained[trained["precision"] != AVERAGE])
    for precision, column in trained.groupby("precision", sort=False):
        whole = column["status"].isin(["finished", "collapsed"]) & (column["grid_lacking"] == 0)
        if whole.all():
            values = column["test_mean"].where(column["collapsed"] == 0)
            values = column["method"].map(common) if precision == AVERAGE else values
            frame.loc[column.index, "bold"] = (better(values, False) < BEST_TWO) & values.notna()
    return frame


def _over_common_precisions(trained: pd.DataFrame) -> pd.Series:
    """Each method's mean over the precisions that all methods finished, those without any left out."""
    values = trained.assign(test_mean=trained["test_mean"].where(trained["collapsed"] == 0))
    table = values.pivot(index="method", columns="precision", values="test_mean")
    return table[table.dropna(how="all").dropna(axis=1).columns].mean(axis=1)


def _row(study: Study, means: Any, method: str, precision: str) -> dict[str, Any]:
    found = means[(means["optimizer"] == method) & (means["precision"] == precision)]
    if found.empty:
        return _empty(method, precision)
    row = found.iloc[0]
    values = [100 * run["test_accuracy"] for run in study.runs(method, precision).values()]
    low, high = student_interval(values) if len(values) > 1 else (float("nan"),) * 2
    return {
        "method": method,
        "precision": precision,
        "lr": row["lr"],
        **{key: 100 * row[key] for key in ("test_mean", "test_std")},
        "student_low": low,
        "student_high": high,
        **{key: 100 * row[key] for key in ("val_mean", "val_std")},
        **{key: row[key] for key in ("n", "seeds", "collapsed", "status", "at_edge")},
        "remark": _same(study, method, precision),
        "grid": row["n_expected"],
        "grid_collapsed": row["n_collapsed"],
        "grid_lacking": sum(row[key] for key in LACK),
        "run_ids": row["run_ids"],
    }


def _same(study: Study, method: str, precision: str) -> str:
    other = study.same_as(method, precision)
    return f"same test predictions as {method_label(other)} in every seed" if other else ""


def _empty(method: str, precision: str) -> dict[str, Any]:
    counts = dict.fromkeys(("n", "seeds", "collapsed", "grid", "grid_collapsed", "grid_lacking"), 0)
    return {
        "method": method,
        "precision": precision,
        "status": "missing",
        "remark": "",
        "run_ids": "",
    } | counts


def _average(method: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Over the precisions; the accuracies of which are fractions of one set of examples."""
    done = [row for row in rows if row["status"] == "finished"]
    known = all(row["status"] in ("finished", "collapsed") for row in rows)
    mean = sum(row["test_mean"] for row in done) / len(done) if done and known else float("nan")
    status = "missing" if not known else "finished" if done else "collapsed"
    sums = {
        key: sum(row[key] for row in rows) for key in ("grid", "grid_collapsed", "grid_lacking")
    }
    return _empty(method, AVERAGE) | {
        "test_mean": mean,
        "status": status,
        "n": len(done) if known else 0,
        "seeds": len(rows),
        **sums,
    }


def grid_frame(study: Study) -> pd.DataFrame:
    """A row per method, precision and learning rate of the main sweep; accuracies in %, of the finished runs."""
    chosen = study.chosen.groupby(["sweep", "optimizer", "precision"])["lr"].first()
    edges = study.chosen.groupby(["sweep", "optimizer", "precision"])["at_edge"].any()
    rows = []
    keys = ["optimizer", "precision", "lr"]
    for (method, precision, lr), cells in study.part(MAIN).groupby(keys, sort=False):
        done = cells[cells["status"] == "finished"]
        counts = cells["status"].value_counts()
        collapsed = int(counts.get("collapsed", 0))
        rows.append(
            {
                "method": method,
                "precision": precision,
                "lr": lr,
                "chosen": bool(lr == chosen.get((study.name, method, precision))),
                "at_edge": bool(edges.get((study.name, method, precision)))
                and bool(lr == chosen.get((study.name, method, precision))),
                "val_mean": 100 * done["val_accuracy"].mean(),
                "val_std": 100 * done["val_accuracy"].std(ddof=1),
                "test_mean": 100 * done["test_accuracy"].mean(),
                "test_std": 100 * done["test_accuracy"].std(ddof=1),
                "n": len(done),
                "seeds": len(cells),
                "collapsed": collapsed,
                "lacking": len(cells) - len(done) - collapsed,
                "run_ids": " ".join(done["run_id"]),
            }
        )
    frame = pd.DataFrame(rows)
    order = {name: i for i, name in enumerate([*study.methods, *study.precisions])}
    places = frame[["method", "precision"]].map(order.__getitem__).assign(lr=frame["lr"])
    index = places.sort_values(["method", "precision", "lr"], kind="stable").index
    return frame.loc[index].reset_index(drop=True)
