"""Which of the paper's claims hold at a study's scale: one row per claim, contrast, precision and quantity.

Every estimate has the sign of its claim: positive speaks for it. Accuracies are in percentage points, losses in nats.
`analysis.stats.contrasts` says what the intervals are and how they decide.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import method_label
from analysis.select import contrast_rows as rows
from analysis.select.answers import check_examples
from analysis.select.contrast_rows import Term, accuracy_row, curve_row
from analysis.select.study_runs import (
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
CLAIMS = {
    "i": "BSZO is ahead of each other method in test accuracy, at equal steps",
    "ii": "BSZO is ahead per step in validation loss",
    "iii": "BSZO is ahead at equal numbers of training forward passes",
    "iv": "BSZO is robust in half precision: it loses less from fp32 than other methods",
    "v": "A larger subspace helps (accuracy grows with k), and so does m = k + 1 against m = k",
    "vi": "Adaptive noise helps in bf16",
    "vii": "BSZO-B is ahead of BSZO",
}


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
        for other in others:
            said = _equal(study, other, precision)
            yield accuracy_row(study, "i", _lead(OURS, other, precision), **said)
        for other in trained:
            pair, said = _lead(OURS, other, precision), _equal(study, other, precision)
            yield from _losses(study, "ii", pair, "step", **said)
            for step in rows.common_steps(study, pair) if other == RIVAL else ():
                words, value = f"validation loss at step {step}", rows.at_step(step)
                at_step = said | {"kind": rows.AT_STEP}
                yield curve_row(study, "ii", pair, words, "step", value, **at_step)
            said |= {"claimed": True}
            yield from _losses(study, "iii", pair, "forwards", **said)
            what = rows.VAL_ACCURACY, "forwards", rows.accuracy_at_end, rows.POINTS
            yield curve_row(study, "iii", pair, *what, **said)
    halves = [precision for precision in study.precisions if precision != REFERENCE]
    for precision in halves if REFERENCE in study.precisions else ():
        yield from _robust(study, precision, [*trained, OURS, VARIANT])
    yield from _subspace(study)
    for precision, ks in _ks(study, NOISE).items():
        noise = {
            k: _pair(
                *(
                    Setting(OURS, precision, NOISE, {"k": k, "adaptive_noise": on})
                    for on in (True, False)
                )
            )
            for k in ks
        }
        yield from _each_and_mean(study, "vi", noise, "adaptive noise on against off")
    for precision in study.precisions:
        pair = _lead(VARIANT, OURS, precision)
        yield accuracy_row(study, "vii", pair)
        yield from _losses(study, "vii", pair, "step")


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


def _losses(
    study: Study, claim: str, pair: list[Term], axis: str, **said: Any
) -> Iterator[dict[str, Any]]:
    yield curve_row(study, claim, pair, rows.AREA, axis, rows.area, **said)
    yield curve_row(study, claim, pair, rows.AT_END, axis, rows.at_end, **said)


def _robust(study: Study, precision: str, methods: list[str]) -> Iterator[dict[str, Any]]:
    """Each method's change from fp32, which is no claim, and how much less BSZO loses than each."""
    change = {m: _pair(Setting(m, precision), Setting(m, REFERENCE)) for m in methods}
    about = {"quantity": rows.CHANGE}
    own = about | {"kind": rows.CHANGE, "claimed": False}
    for method in methods:
        what = f"{method_label(method)}, {precision} − {REFERENCE}"
        yield accuracy_row(study, "iv", change[method], what=what, **own)
    for method in methods:
        if method not in (OURS, VARIANT):
            terms = [*change[OURS], *((-weight, setting) for weight, setting in change[method])]
            what = f"{method_label(OURS)} loses less than {method_label(method)}"
            said = _equal(study, method, precision, REFERENCE) | about
            said["short"] = f"against {method_label(method)}"
            yield accuracy_row(study, "iv", terms, what=what, **said)


def _subspace(study: Study) -> Iterator[dict[str, Any]]:
    """Accuracy over k, and m = k + 1 against m = k, in each precision that the sweeps have."""
    for ending, words in ((M_IS_K, "m = k"), (M_IS_K_PLUS_1, "m = k + 1")):
        for precision, ks in _ks(study, ending).items():
            if len(ks) > 1:
                weights = np.linalg.pinv(np.vander(np.log2(ks), 2))[0]  # of a least-squares slope
                settings = [Setting(OURS, precision, ending, {"k": k}) for k in ks]
                terms = list(zip(weights.tolist(), settings, strict=True))
                what = f"slope over log2 k = {', '.join(map(str, ks))}, {words}"
                yield accuracy_row(study, "v", terms, what=what, unit=rows.DOUBLING)
    for precision, ks in _ks(study, M_IS_K).items():
        common = [k for k in ks if k in _ks(study, M_IS_K_PLUS_1).get(precision, ())]
        pairs = {
            k: _pair(
                *(Setting(OURS, precision, ending, {"k": k}) for ending in (M_IS_K_PLUS_1, M_IS_K))
            )
            for k in common
        }
        yield from _each_and_mean(study, "v", pairs, "m = k + 1 against m = k")


def _each_and_mean(
    study: Study, claim: str, pairs: Mapping[int, list[Term]], words: str
) -> Iterator[dict[str, Any]]:
    for k, pair in pairs.items():
        yield accuracy_row(study, claim, pair, what=f"{words}, k = {k}")
    if len(pairs) > 1:
        terms = [(weight / len(pairs), s) for pair in pairs.values() for weight, s in pair]
        yield accuracy_row(study, claim, terms, what=f"{words}, mean over k")


def _ks(study: Study, ending: str) -> dict[str, list[int]]:
    """Precision -> values of k of one of the ablation's sweeps."""
    ks: dict[str, list[int]] = {}
    for precision, cells in study.part(ending).groupby("precision", sort=False):
        ks[str(precision)] = sorted(cells["k"].dropna().astype(int).unique())
    return ks
