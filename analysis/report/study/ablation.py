"""BSZO's k, m and adaptive noise, in the form of the paper's Table 5 (a), (b) and (c)."""

import json
from typing import Any

import pandas as pd

from analysis.paper.bold import BEST_ONE, better
from analysis.report.study.accuracy import LACK
from analysis.report.text_table import ABSENT, COLLAPSED, TextTable, bold
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
        `collapsed`, `status`, `grid`, `lacking`, `bold`, `run_ids`; no rows where conf/sweep has none of the sweeps.
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
        "grid": row.get("n_expected", 0),
        "lacking": sum(row.get(key, 0) for key in LACK),
        "bold": False,
        "run_ids": row.get("run_ids", ""),
    }


def ablation_table(study: Study, frame: pd.DataFrame) -> TextTable:
    """The page of `ablation_frame`."""
    ks = sorted(frame["k"].unique())
    lacks = [line for part in (M_IS_K, M_IS_K_PLUS_1, NOISE) for line in study.lacks(part)]
    table = TextTable(
        title=f"{study.name}: test accuracy (%) of BSZO over k, in the form of Table 5",
        columns=["part", "setting", "precision", *(f"k = {k}" for k in ks)],
        names=3,
        caption=[
            "Mean ± sample standard deviation over the seeds (their number), at equal numbers of steps; a step makes "
            "k + 1 forward passes. The learning rate is chosen by validation for every cell. Bold: the better of (a) "
            f"and (b), and of (c)'s rows, for each k. {COLLAPSED} every run collapsed, {ABSENT} no number yet.",
            *(f"{line}." for line in lacks),
        ],
    )
    for names, rows in frame.groupby(["part", "setting", "precision"], sort=False):
        by_k = {row["k"]: row for row in rows.to_dict("records")}
        part, setting, precision = map(str, names)
        cells = [_cell(by_k.get(k), table) for k in ks]
        table.rows.append([f"({part})", setting, precision, *cells])
    return table


def _cell(row: dict[Any, Any] | None, table: TextTable) -> str:
    if row is None:
        return ""
    lack = f"{row['lacking']} of the {row['grid']} runs of this grid lack"
    if row["status"] == "collapsed":
        return COLLAPSED
    if row["status"] != "finished":
        return ABSENT + table.note(lack)
    spread = ABSENT if pd.isna(row["test_std"]) else f"{row['test_std']:.2f}"
    text = f"{row['test_mean']:.2f} ± {spread} ({int(row['n'])})"
    text = bold(text) if row["bold"] else text
    if row["collapsed"]:
        text += table.note(f"{int(row['collapsed'])} of {int(row['seeds'])} seeds collapsed")
    return text + (
        table.note(f"chosen among the runs that there are: {lack}") if row["lacking"] else ""
    )
