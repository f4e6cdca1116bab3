"""Which of the paper's claims hold at a study's scale: one row per claim, contrast, precision and quantity.

Every estimate has the sign of its claim: positive speaks for it. Accuracies are in percentage points, losses in nats.
`analysis.stats.contrasts` says what the intervals are and how they decide.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import method_label
from analysis.select import contrast_rows as rows
from analysis.select.answers import check_examples
from analysis.select.contrast_rows import Term, accuracy_row, curve_row
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
from analysis.stats.contrasts import verdicts

OURS, RIVAL, VARIANT = "bszo", "mezo", "bszo_b"
LOSSES = (rows.AREA, rows.AT_END)
CLAIMS = {
    "i": "BSZO is ahead of each other method in test accuracy, at equal steps",
    "ii": "BSZO is ahead per step in validation loss",
    "iii": "BSZO is ahead at equal numbers of training forward passes",
    "iv": "BSZO is robust in half precision: it loses less from fp32 than other methods",
    "v": "A larger subspace helps (accuracy grows with k), and so does m = k + 1 against m = k",
    "vi": "Adaptive noise helps in bf16",
    "vii": "BSZO-B is ahead of BSZO",
    "viii": "A larger ε helps in half precision (not claimed by the paper)",
}

ByK = dict[str, dict[int, Setting]]
"""Precision -> k -> setting."""


def claims_frame(study: Study) -> pd.DataFrame:
    """All rows.

    Returns:
        Columns `claim` (a key of CLAIMS), `what`, those of `contrast_rows.HIDDEN`, `precision`, `quantity`, `unit`, the
        fields of `analysis.stats.contrasts.Estimate`, `p_holm` (over the claim's rows that are claims), `verdict` (see
        `analysis.stats.contrasts.verdicts`), `remark` (which runs lack or collapsed). No claim, in no family, are the
        changes from float32, and the rows about a method whose runs equal another's, but for those per forward pass.
    """
    check_examples(study.filled)
    frame = pd.DataFrame(list(_rows(study)))
    frame = verdicts(frame, frame.pop("claimed"))
    frame["remark"] = frame.pop("remark")
    return frame


def _rows(study: Study) -> Iterator[dict[str, Any]]:
    others = [method for method in study.methods if method not in (OURS, VARIANT)]
    others.sort(key=lambda method: method != RIVAL)
    cells = study.part(MAIN)
    trains = set(cells.loc[cells["steps"] > 0, "optimizer"])
    trained = [method for method in others if method in trains]
    for precision in study.precisions:
        said = {other: _equal(study, other, precision) for other in others}
        leads = {other: _lead(OURS, other, precision) for other in others}
        for other, pair in leads.items():
            yield accuracy_row(study, "i", pair, **said[other])
        for other in trained:
            pair = leads[other]
            for kind in LOSSES:
                yield curve_row(study, "ii", pair, kind, "step", **said[other])
            for step in _common_steps(study, pair) if other == RIVAL else ():
                yield curve_row(study, "ii", pair, rows.AT_STEP, "step", step, **said[other])
            for kind in (*LOSSES, rows.VAL_ACCURACY):
                claimed = said[other] | {"claimed": True}
                yield curve_row(study, "iii", pair, kind, "forwards", **claimed)
    halves = [precision for precision in study.precisions if precision != REFERENCE]
    for precision in halves if REFERENCE in study.precisions else ():
        yield from _robust(study, precision, [*trained, OURS, VARIANT])
    yield from _subspace(study)
    on, off = (_by_k(study, NOISE, adaptive_noise=noise) for noise in (True, False))
    yield from _each_and_mean(study, "vi", on, off, "adaptive noise on against off")
    for precision in study.precisions:
        pair = _lead(VARIANT, OURS, precision)
        yield accuracy_row(study, "vii", pair)
        for kind in LOSSES:
            yield curve_row(study, "vii", pair, kind, "step")
    keys = ["optimizer", "precision", "eps"]
    for row in study.part(EPS).drop_duplicates(keys).to_dict("records"):
        method, precision, eps = (row[key] for key in keys)
        larger = Setting(method, precision, EPS, {"eps": eps})
        what = f"{method_label(method)}, ε = {eps:g} against its own"
        yield accuracy_row(study, "viii", _pair(larger, Setting(method, precision)), what=what)


def _equal(study: Study, method: str, *precisions: str) -> dict[str, Any]:
    """That rows about a method are no claims of their own, because its runs equal another's."""
    same = {study.same_as(method, precision) for precision in precisions}
    if len(same) > 1 or None in same:
        return {}
    other = method_label(str(same.pop()))
    said = f"{method_label(method)} has the same test predictions as {other} in every seed"
    return {"claimed": False, "remark": said}


def _pair(ahead: Setting, behind: Setting) -> list[Term]:
    return [(1.0, ahead), (-1.0, behind)]


def _lead(ahead: str, behind: str, precision: str) -> list[Term]:
    return _pair(Setting(ahead, precision), Setting(behind, precision))


def _common_steps(study: Study, terms: list[Term]) -> list[int]:
    """Evaluations after the first step that all runs of the contrast have."""
    curves = [study.curve(run["run_id"]) for _, s in terms for run in study.runs(s).values()]
    steps = [set(curve["step"].astype(int)) for curve in curves]
    return sorted(set.intersection(*steps) - {0}) if steps else []


def _robust(study: Study, precision: str, methods: list[str]) -> Iterator[dict[str, Any]]:
    """Each method's change from fp32, which is no claim, and how much less BSZO loses than each."""
    change = {m: _pair(Setting(m, precision), Setting(m, REFERENCE)) for m in methods}
    own = {"quantity": rows.CHANGE, "kind": rows.CHANGE, "claimed": False}
    for method in methods:
        what = f"{method_label(method)}, {precision} − {REFERENCE}"
        yield accuracy_row(study, "iv", change[method], what=what, **own)
    for method in methods:
        if method not in (OURS, VARIANT):
            terms = [*change[OURS], *((-weight, setting) for weight, setting in change[method])]
            said = _equal(study, method, precision, REFERENCE) | {"quantity": rows.CHANGE}
            said["what"] = f"{method_label(OURS)} loses less than {method_label(method)}"
            yield accuracy_row(study, "iv", terms, **said)


def _subspace(study: Study) -> Iterator[dict[str, Any]]:
    """Accuracy over k, and m = k + 1 against m = k, in each precision that the sweeps have."""
    same, more = _by_k(study, M_IS_K), _by_k(study, M_IS_K_PLUS_1)
    for settings, words in ((same, "m = k"), (more, "m = k + 1")):
        for by_k in settings.values():
            if len(by_k) > 1:
                slope = np.linalg.pinv(np.vander(np.log2(list(by_k)), 2))[0]  # of least squares
                terms = list(zip(slope.tolist(), by_k.values(), strict=True))
                what = f"slope over log2 k = {', '.join(map(str, by_k))}, {words}"
                yield accuracy_row(study, "v", terms, what=what, unit=rows.DOUBLING)
    yield from _each_and_mean(study, "v", more, same, "m = k + 1 against m = k")


def _each_and_mean(
    study: Study, claim: str, ahead: ByK, behind: ByK, words: str
) -> Iterator[dict[str, Any]]:
    """Pairs of settings that share precision and k, and the mean of several."""
    for precision, by_k in behind.items():
        others = ahead.get(precision, {})
        pairs = {k: _pair(others[k], setting) for k, setting in by_k.items() if k in others}
        for k, pair in pairs.items():
            yield accuracy_row(study, claim, pair, what=f"{words}, k = {k}")
        if len(pairs) > 1:
            terms = [(weight / len(pairs), s) for pair in pairs.values() for weight, s in pair]
            yield accuracy_row(study, claim, terms, what=f"{words}, mean over k")


def _by_k(study: Study, ending: str, **more: Any) -> ByK:
    """Our settings in one of the ablation's sweeps."""
    return {
        str(precision): {
            k: Setting(OURS, str(precision), ending, {"k": k, **more})
            for k in sorted(cells["k"].dropna().astype(int).unique())
        }
        for precision, cells in study.part(ending).groupby("precision", sort=False)
    }
