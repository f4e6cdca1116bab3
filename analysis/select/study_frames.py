"""A study's accuracies at the chosen learning rates: by method and precision, and BSZO's over k."""

import pandas as pd

from analysis.paper.bold import BEST_ONE, BEST_TWO, better
from analysis.paper.names import UNTRAINED, method_label
from analysis.select.cell_runs import over_seeds
from analysis.select.study_runs import M_IS_K, M_IS_K_PLUS_1, MAIN, NOISE, Study

SETTINGS = {
    (M_IS_K, None): ("a", "m = k"),
    (M_IS_K_PLUS_1, None): ("b", "m = k + 1"),
    (NOISE, True): ("c", "with adaptive noise"),
    (NOISE, False): ("c", "without"),
}
"""Sweep's ending, adaptive noise -> part of the paper's Table 5 and what the row shows."""


def accuracy_frame(study: Study) -> pd.DataFrame:
    """The rows of `over_seeds` of the main sweep, by method and precision, with `bold` and `remark`."""
    order = {name: i for i, name in enumerate([*study.methods, *study.precisions])}
    frame = over_seeds(study.part(MAIN)).assign(bold=False)
    frame = frame.sort_values(["optimizer", "precision"], key=lambda names: names.map(order))
    names = frame[["optimizer", "precision"]].itertuples(index=False)
    others = [study.same_as(*name) for name in names]
    said = "same test predictions as {} in every seed"
    frame["remark"] = [said.format(method_label(other)) if other else "" for other in others]
    trained = frame[~frame["optimizer"].isin(UNTRAINED)]
    for _, compared in trained.groupby("precision", sort=False):
        _mark_best(frame, compared, BEST_TWO)
    return frame


def ablation_frame(study: Study) -> pd.DataFrame:
    """BSZO's k, m and adaptive noise: rows of `over_seeds` with `part` of the paper's Table 5, `setting` and `bold`."""
    parts = []
    for (ending, noise), (part, words) in SETTINGS.items():
        mine = study.part(ending)
        mine = mine if noise is None else mine[mine["adaptive_noise"] == noise]
        parts.append(over_seeds(mine).assign(part=part, setting=words, bold=False, remark=""))
    frame = pd.concat(parts, ignore_index=True)
    if len(frame):  # (a) and (b) are compared with each other, as in the paper
        for _, compared in frame.groupby([frame["part"] == "c", "precision", "k"], sort=False):
            _mark_best(frame, compared, BEST_ONE)
    return frame


def _mark_best(frame: pd.DataFrame, compared: pd.DataFrame, best: int) -> None:
    """Mark the best of some rows, once all their runs have ended; a mean that lacks a collapsed seed is none."""
    if not compared["lacking"].any():
        means = compared["test_mean"].where(compared["collapsed"] == 0)
        frame.loc[compared.index, "bold"] = (better(means, lowest=False) < best) & means.notna()
