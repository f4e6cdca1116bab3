"""BSZO's k, m and adaptive noise, in the form of the paper's Table 5 (a), (b) and (c)."""

import json
from typing import Any

import pandas as pd

from analysis.paper.bold import BEST_ONE, better
from analysis.report.study.accuracy import LACK
from analysis.select.cell_runs import over_seeds
from analysis.select.study_runs import Study
from analysis.select.study_sweeps import M_IS_K, M_IS_K_PLUS_1, NOISE

SETTINGS = {
    (M_IS_K, None): ("a", "m = k"),
    (M_IS_K_PLUS_1, None): ("b", "m = k + 1"),
    (NOISE, True): ("c", "with adaptive noise"),
    (NOISE, False): ("c", "without"),
}
"""Sweep's ending, adaptive noise -> part of Table 5 and what the row shows."""


def ablation_frame(study: Study) -> pd.DataFrame:
    """A row per part, setting and k: test accuracies in %.

    Returns:
        Columns `part`, `setting`, `precision`, `k`, `lr`, `test_mean`, `test_std`, `val_mean`, `n`, `seeds`,
        `collapsed`, `status`, `at_edge`, `grid`, `lacking`, `bold`, `run_ids`; no rows where conf/sweep has none of
        the sweeps.
    """
    rows = []
    for (ending, noise), (part, words) in SETTINGS.items():
        mine = study.chosen[study.chosen["sweep"] == study.name + ending]
        for row in over_seeds(mine).to_dict("records"):
            varied = json.loads(row["variant"])
            if noise is None or varied.get("optimizer.adaptive_noise") is noise:
                rows.append(_row(row, part, words, varied["optimizer.k"]))
    frame = pd.DataFrame(rows, columns=list(_row({}, "", "", 0)))
    for _, compared in frame.groupby([frame["part"] == "c", "precision", "k"], sort=False):
        if (
            compared["lacking"].sum() == 0
        ):  # (a) and (b) are compared with each other, as in the paper
            best = better(compared["test_mean"], lowest=False) < BEST_ONE
            frame.loc[compared.index, "bold"] = best & compared["test_mean"].notna()
    return frame


def _row(row: dict[Any, Any], part: str, words: str, k: int) -> dict[str, Any]:
    nan = float("nan")
    return {
        "part": part,
        "setting": words,
        "precision": row.get("precision", ""),
        "k": k,
        "lr": row.get("lr", nan),
        **{key: 100 * row.get(key, nan) for key in ("test_mean", "test_std", "val_mean")},
        **{key: row.get(key, 0) for key in ("n", "seeds", "collapsed")},
        "status": row.get("status", ""),
        "at_edge": row.get("at_edge", False),
        "grid": row.get("n_expected", 0),
        "lacking": sum(row.get(key, 0) for key in LACK),
        "bold": False,
        "run_ids": row.get("run_ids", ""),
    }
