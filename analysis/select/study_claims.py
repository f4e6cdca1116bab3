"""Which of the paper's claims hold at a study's scale: one row per claim, contrast, precision and quantity.

Every estimate has the sign of its claim: positive speaks for it. Accuracies are in percentage points, losses in nats.
`analysis.stats.contrasts` says what the intervals are and how they decide.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.names import method_label
from analysis.select.answers import check_examples
from analysis.select.contrast_rows import (
    ACCURACY,
    AREA,
    AT_END,
    AT_STEP,
    CHANGE,
    DOUBLING,
    POINTS,
    VAL_ACCURACY,
    Term,
    accuracy_at_end,
    accuracy_row,
    area,
    at_end,
    at_step,
    common_steps,
    curve_row,
    loss_row,
    negative,
)
from analysis.select.study_runs import Setting, Study
from analysis.select.study_sweeps import M_IS_K, M_IS_K_PLUS_1, MAIN, NOISE
from analysis.stats.contrasts import verdicts

OURS, RIVAL, VARIANT, REFERENCE = "bszo", "mezo", "bszo_b", "fp32"
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
        Columns `claim` (a key of CLAIMS), `what`, `precision`, `quantity`, `unit`, the fields of
        `analysis.stats.contrasts.Estimate`, `p_holm` (over the claim's rows that are claims), `verdict` (see
        `analysis.stats.contrasts.verdicts`), `remark` (which runs lack or collapsed). No claim, in no family, are the
        changes from float32, and the rows about a method whose runs equal another's, but for those per forward pass.

    Raises:
        LogError: runs were tested on different examples, or one contradicts itself.
    """
    check_examples(study.filled)
    frame = pd.DataFrame(list(_rows(study)))
    frame = verdicts(frame, frame.pop("claimed"), ["claim"])
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
            yield from _per_step(study, "ii", pair, each=other == RIVAL, **said)
            yield from _per_forward(study, "iii", pair, **said | {"claimed": True})
    halves = [precision for precision in study.precisions if precision != REFERENCE]
    for precision in halves if REFERENCE in study.precisions else ():
        yield from _robust(study, precision, [*trained, OURS, VARIANT])
    yield from _subspace(study)
    yield from _noise(study)
    for precision in study.precisions:
        pair = _lead(VARIANT, OURS, precision)
        yield accuracy_row(study, "vii", pair)
        yield from _per_step(study, "vii", pair, each=False)


def _equal(study: Study, method: str, *precisions: str) -> dict[str, Any]:
    """That rows about a method are no claims of their own, because its runs equal another's."""
    same = {study.same_as(method, precision) for precision in precisions}
    if len(same) > 1 or None in same:
        return {}
    other = method_label(str(same.pop()))
    return {
        "claimed": False,
        "remark": f"{method_label(method)} has the same test predictions as {other} in every seed",
    }


def _lead(ahead: str, behind: str, precision: str) -> list[Term]:
    return [(1.0, Setting(ahead, precision)), (-1.0, Setting(behind, precision))]


def _per_step(
    study: Study, claim: str, pair: list[Term], each: bool, **said: Any
) -> Iterator[dict[str, Any]]:
    """Area and last value over steps; with `each` every evaluation, too."""
    yield loss_row(study, claim, pair, AREA, "step", area, **said)
    yield loss_row(study, claim, pair, AT_END, "step", at_end, **said)
    for step in common_steps(study, pair) if each else ():
        yield loss_row(study, claim, pair, AT_STEP.format(step), "step", at_step(step), **said)


def _per_forward(
    study: Study, claim: str, pair: list[Term], **said: Any
) -> Iterator[dict[str, Any]]:
    """Over the range of forward passes that all runs of the pair have."""
    yield loss_row(study, claim, pair, AREA, "forwards", area, **said)
    yield loss_row(study, claim, pair, AT_END, "forwards", at_end, **said)
    yield curve_row(study, claim, pair, VAL_ACCURACY, "forwards", accuracy_at_end, POINTS, **said)


def _robust(study: Study, precision: str, methods: list[str]) -> Iterator[dict[str, Any]]:
    """Each method's change from fp32, which is no claim, and how much less BSZO loses than each."""
    change = {
        method: [(1.0, Setting(method, precision)), (-1.0, Setting(method, REFERENCE))]
        for method in methods
    }
    for method in methods:
        what = f"{method_label(method)}, {precision} − {REFERENCE}"
        yield accuracy_row(study, "iv", change[method], what, CHANGE, claimed=False)
    for method in methods:
        if method not in (OURS, VARIANT):
            terms = [*change[OURS], *negative(change[method])]
            what = f"{method_label(OURS)} loses less than {method_label(method)}"
            said = _equal(study, method, precision, REFERENCE)
            yield accuracy_row(study, "iv", terms, what, CHANGE, **said)


def _subspace(study: Study) -> Iterator[dict[str, Any]]:
    """Accuracy over k, and m = k + 1 against m = k, in each precision that the sweeps have."""
    for ending, words in ((M_IS_K, "m = k"), (M_IS_K_PLUS_1, "m = k + 1")):
        for precision, ks in _ks(study, ending).items():
            if len(ks) > 1:
                slope = zip(slope_weights(ks), ks, strict=True)
                terms = [(w, Setting(OURS, precision, ending, {"k": k})) for w, k in slope]
                what = f"slope over log2 k = {', '.join(map(str, ks))}, {words}"
                yield accuracy_row(study, "v", terms, what, ACCURACY, unit=DOUBLING)
    for precision, ks in _ks(study, M_IS_K).items():
        common = [k for k in ks if k in _ks(study, M_IS_K_PLUS_1).get(precision, ())]
        pairs = {
            k: [
                (1.0, Setting(OURS, precision, M_IS_K_PLUS_1, {"k": k})),
                (-1.0, Setting(OURS, precision, M_IS_K, {"k": k})),
            ]
            for k in common
        }
        yield from _each_and_mean(study, "v", pairs, "m = k + 1 against m = k")


def _noise(study: Study) -> Iterator[dict[str, Any]]:
    for precision, ks in _ks(study, NOISE).items():
        pairs = {
            k: [
                (
                    1.0 if on else -1.0,
                    Setting(OURS, precision, NOISE, {"k": k, "adaptive_noise": on}),
                )
                for on in (True, False)
            ]
            for k in ks
        }
        yield from _each_and_mean(study, "vi", pairs, "adaptive noise on against off")


def _each_and_mean(
    study: Study, claim: str, pairs: Mapping[int, list[Term]], words: str
) -> Iterator[dict[str, Any]]:
    for k, pair in pairs.items():
        yield accuracy_row(study, claim, pair, f"{words}, k = {k}")
    if len(pairs) > 1:
        terms = [(weight / len(pairs), s) for pair in pairs.values() for weight, s in pair]
        yield accuracy_row(study, claim, terms, f"{words}, mean over k")


def slope_weights(ks: Sequence[int]) -> list[float]:
    """Weights whose sum with values at these k is their least-squares slope over log2 k."""
    x = np.log2(ks)
    centred = x - x.mean()
    return [float(w) for w in centred / (centred**2).sum()]


def _ks(study: Study, ending: str) -> dict[str, list[int]]:
    """Precision -> values of k of one of the ablation's sweeps."""
    cells = study.part(ending)
    ks: dict[str, list[int]] = {}
    for precision, rows in cells.groupby("precision", sort=False):
        variants = [json.loads(text) for text in rows["variant"].unique()]
        ks[str(precision)] = sorted({v["optimizer.k"] for v in variants if "optimizer.k" in v})
    return ks
