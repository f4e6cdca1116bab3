"""The page of the roundings: levels, what exactness brings, and BSZO's lead over MeZO."""

from itertools import product
from typing import Any

import pandas as pd

from analysis.paper.names import method_label
from analysis.report.markdown import page
from analysis.report.study.claims_page import known
from analysis.report.table import ABSENT, COLLAPSED, Cell, Table, number
from analysis.select import study_roundings as factorial
from analysis.select.contrast_rows import NATS
from analysis.select.study_roundings import GAIN, GAP, LEAD, LEVEL, MAIN_EFFECT, QUANTITIES
from analysis.select.study_runs import ROUNDINGS, Study
from analysis.stats.contrasts import CONTRADICTED, HOLDS

SHOWN = [factorial.FLOAT32, factorial.NOTHING, *factorial.ALONE.values()]
RATES = {
    factorial.OWN: "each at its own learning rate",
    factorial.COMMON: "all at one learning rate",
}
CAPTIONS = {
    LEVEL: [
        "Means over the seeds; the learning rate in brackets. "
        f"{COLLAPSED} every run collapsed, {ABSENT} no number yet."
    ],
    GAP: ["A share stands only where the loss's interval lies above 0."],
}


def roundings_markdown(study: Study, frame: pd.DataFrame) -> str:
    """The whole page; without a run, what is missing."""
    lacks, tables = study.lacks(ROUNDINGS), roundings_tables(frame)
    return page("roundings", study=study, summaries=summaries(frame), lacks=lacks, tables=tables)


def summaries(frame: pd.DataFrame) -> list[str]:
    """One sentence per precision and quantity: which rounding matters, over the methods.

    Main effects where a method has all eight combinations, else what each thing exact alone gains.
    """
    if frame.empty:
        return ["Nothing of this has been run."]
    said = []
    mine = frame[(frame["method"] == factorial.ALL) & (frame["rates"] == factorial.OWN)]
    for (precision, quantity), rows in mine.groupby(["precision", "quantity"], sort=False):
        there = rows[rows["estimate"].notna()].sort_values("estimate", ascending=False)
        kinds = [there[there["kind"] == kind] for kind in (MAIN_EFFECT, GAIN)]
        best = next((some for some in kinds if len(some)), None)
        if best is None:
            said.append(f"{precision}, {quantity}: nothing has been made exact yet.")
            continue
        parts = [f"the {row['what']} {_with_interval(row)}" for row in best.to_dict("records")]
        said.append(
            f"{precision}, {quantity}: exactness gains, on average over the methods that have it, in "
            f"{best['unit'].iloc[0]}: {', '.join(parts)}."
        )
    return said


def roundings_tables(frame: pd.DataFrame) -> list[Table]:
    """Levels, effects, shares and leads for each quantity; none without a run."""
    tables = []
    for rates, quantity in product(RATES, QUANTITIES) if len(frame) else ():
        rows = frame[(frame["quantity"] == quantity) & (frame["rates"] == rates)]
        unit, at = QUANTITIES[quantity], f", {RATES[rates]}"
        gain, back = f"gain in {quantity} ({unit})", "% of it that exactness brings back"
        titles = {
            (LEVEL,): f"{quantity} ({'nats' if quantity.endswith('loss') else '%'})",
            (GAIN,): f"{gain} over all rounded by what alone is made exact",
            (MAIN_EFFECT, factorial.INTERACTION): f"{gain}, all eight combinations",
            (GAP, factorial.EXPLAINED): f"{quantity}: loss from fp32 ({unit}) and {back}",
            (LEAD,): f"BSZO's lead over MeZO in {quantity} ({unit})",
        }
        tables += [_table(rows[rows["kind"].isin(k)], k[0], t + at) for k, t in titles.items()]
    return [table for table in tables if table.rows]


def _table(rows: pd.DataFrame, kind: str, title: str) -> Table:
    """A row per precision and method that has a number, or for levels any; a column per level or contrast."""
    whats = SHOWN if kind == LEVEL else list(dict.fromkeys(rows["what"]))
    heads = ["precision", "method", *whats]
    content = Table(title, heads, names=2, caption=CAPTIONS.get(kind, []))
    for (precision, method), of_method in rows.groupby(["precision", "method"], sort=False):
        if kind == LEVEL or of_method["estimate"].notna().any():
            by_what = {row["what"]: row for row in of_method.to_dict("records")}
            label = str(method) if method == factorial.ALL else method_label(str(method))
            cells = [(_level if kind == LEVEL else _contrast)(by_what[what]) for what in whats]
            content.rows.append([str(precision), label, *cells])
    return content


def _contrast(row: dict[Any, Any]) -> Cell:
    return known(row["estimate"], _with_interval(row))


def _level(row: dict[Any, Any]) -> Cell:
    if pd.isna(row["estimate"]):
        return Cell(COLLAPSED if row["status"] == "collapsed" else ABSENT)
    notes = (f"{row['n']} seeds only",) if row["n"] < 3 else ()
    form = ".4f" if row["unit"] == NATS else ".2f"
    return number(row["estimate"], form, tail=f" ({row['lr']:g})", notes=notes)


def _with_interval(row: Any) -> str:
    """`+1.20 [+0.30, +2.10]!`."""
    form = {NATS: "+.4f", "%": "+.0f"}.get(row["unit"], "+.2f")
    shown = [number(row[key], form).text for key in ("estimate", "low", "high")]
    if pd.isna(row["low"]):
        return shown[0]
    firm = "!" if row["verdict"] in (HOLDS, CONTRADICTED) else ""
    return f"{shown[0]} [{shown[1]}, {shown[2]}]{firm}"
