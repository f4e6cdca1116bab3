"""The page of the roundings: levels, what exactness brings, and BSZO's lead over MeZO."""

from itertools import product
from typing import Any

import pandas as pd

from analysis.paper.names import method_label
from analysis.report.study.claims_page import known
from analysis.report.table import ABSENT, COLLAPSED, Cell, Table, markdown, number
from analysis.select.contrast_rows import NATS
from analysis.select.study_roundings import (
    ALL,
    COMBINATIONS,
    COMMON,
    EVERYTHING,
    EXPLAINED,
    FACTORS,
    FLOAT32,
    GAIN,
    GAP,
    INTERACTION,
    LEAD,
    LEVEL,
    MAIN_EFFECT,
    NOTHING,
    OWN,
    QUANTITIES,
    Roundings,
    name,
)
from analysis.select.study_sweeps import ROUNDINGS
from analysis.stats.contrasts import CONTRADICTED, HOLDS

SHOWN = [FLOAT32, name(NOTHING), *(f"{factor} exact" for factor in FACTORS), name(EVERYTHING)]
RATES = {OWN: "each at its own learning rate", COMMON: "all at one learning rate"}
CAPTIONS = {
    LEVEL: [
        "Means over the seeds; the learning rate in brackets. "
        f"{COLLAPSED} every run collapsed, {ABSENT} no number yet."
    ],
    GAP: ["A share stands only where the loss's interval lies above 0."],
}
HOW = [
    "Exact: the loss computed in float32 (`precision.loss=float32`); θ never moved for a probe, so that nothing has to "
    "be restored (`precision.restore=streamed`); what rounding an update loses kept for the next one "
    "(`precision.rounding=compensated`). Rounded: as in the released code.",
    "First each of the eight combinations, and fp32, at its own learning rate, chosen by validation accuracy over the "
    "seeds: what one gets who tunes (fp32 out of the whole grid of accuracy.md). Then all eight and fp32 at one common "
    "rate, chosen over all of a method's runs in a precision: what a rounding does when nothing else changes.",
    "Effects and leads: positive means that exactness helps, or BSZO is ahead (a loss counts with its sign turned). A "
    "main effect is the mean gain over the four combinations of the other factors, an interaction half the difference "
    "of gains. 95 % intervals in brackets, ! where they exclude 0: as in claims.md, over seeds and, for accuracies, "
    "test examples.",
]


def roundings_markdown(roundings: Roundings) -> str:
    """The whole page; without a run, what is missing."""
    study, frame = roundings.study, roundings.frame
    lines = [f"# {study.name}: where half precision hurts", ""]
    lines += [f"- {line}" for line in summaries(roundings)]
    lines += ["", *(f"{line}\n" for line in HOW), *(f"{s}.\n" for s in study.lacks(ROUNDINGS))]
    tables = [] if frame.empty else roundings_tables(frame)
    return "\n".join(lines) + "\n" + "\n".join(map(markdown, tables))


def summaries(roundings: Roundings) -> list[str]:
    """One sentence per precision and quantity: which rounding matters, over the methods.

    Main effects where a method has all eight combinations, else what each thing exact alone gains.
    """
    frame = roundings.frame
    if frame.empty:
        return ["Nothing of this has been run."]
    said = []
    over_methods = frame[(frame["method"] == ALL) & (frame["rates"] == OWN)]
    for (precision, quantity), rows in over_methods.groupby(["precision", "quantity"], sort=False):
        known = rows[(rows["kind"] == MAIN_EFFECT) & rows["estimate"].notna()]
        if known.empty:
            known = rows[(rows["kind"] == GAIN) & rows["estimate"].notna()]
        if known.empty:
            said.append(f"{precision}, {quantity}: nothing has been made exact yet.")
            continue
        known = known.sort_values("estimate", ascending=False)
        parts = [f"the {row['what']} {_with_interval(row)}" for row in known.to_dict("records")]
        unit = known["unit"].iloc[0]
        said.append(
            f"{precision}, {quantity}: exactness gains, on average over the methods that have it, in {unit}: "
            f"{', '.join(parts)}."
        )
    return said


def roundings_tables(frame: pd.DataFrame) -> list[Table]:
    """Levels, effects, shares and leads for each quantity."""
    tables = []
    for rates, quantity in product((OWN, COMMON), QUANTITIES):
        rows = frame[(frame["quantity"] == quantity) & (frame["rates"] == rates)]
        unit, at = QUANTITIES[quantity], f", {RATES[rates]}"
        back = f"{quantity}: loss from fp32 ({unit}) and % of it that exactness brings back{at}"
        titles = {
            (LEVEL,): f"{quantity} ({'nats' if quantity.endswith('loss') else '%'}){at}",
            (
                GAIN,
            ): f"gain in {quantity} ({unit}) over all rounded by what alone is made exact{at}",
            (MAIN_EFFECT, INTERACTION): f"gain in {quantity} ({unit}), all eight combinations{at}",
            (GAP, EXPLAINED): back,
            (LEAD,): f"BSZO's lead over MeZO in {quantity} ({unit}){at}",
        }
        tables += [_table(rows[rows["kind"].isin(kinds)], kinds, t) for kinds, t in titles.items()]
    return [table for table in tables if table.rows]


def _table(rows: pd.DataFrame, kinds: tuple[str, ...], title: str) -> Table:
    """A row per precision and method that has a number, or for levels any; a column per level or contrast."""
    whats = list(dict.fromkeys(rows["what"]))
    whats = {LEVEL: SHOWN, LEAD: [FLOAT32, *map(name, COMBINATIONS)]}.get(kinds[0], whats)
    content = Table(
        title, ["precision", "method", *whats], names=2, caption=CAPTIONS.get(kinds[0], [])
    )
    for (precision, method), of_method in rows.groupby(["precision", "method"], sort=False):
        if kinds == (LEVEL,) or of_method["estimate"].notna().any():
            by_what = {row["what"]: row for row in of_method.to_dict("records")}
            label = str(method) if method == ALL else method_label(str(method))
            cells = [
                _level(by_what[w]) if kinds == (LEVEL,) else _contrast(by_what[w]) for w in whats
            ]
            content.rows.append([str(precision), label, *cells])
    return content


def _contrast(row: Any) -> Cell:
    return known(row["estimate"], _with_interval(row))


def _level(row: dict[Any, Any]) -> Cell:
    if pd.isna(row["estimate"]):
        return Cell(COLLAPSED if row["status"] == "collapsed" else ABSENT)
    notes = (f"{row['n']} seeds only",) if row["n"] < 3 else ()
    form = ".4f" if row["unit"] == NATS else ".2f"
    return number(row["estimate"], form, tail=f" ({row['lr']:g})", notes=notes)


def _with_interval(row: Any) -> str:
    """`+1.20 [+0.30, +2.10]!`."""
    places = {NATS: 4, "%": 0}.get(row["unit"], 2)

    def number(value: float) -> str:
        return f"{value:+.{places}f}".replace("-", "−")

    if pd.isna(row["low"]):
        return number(row["estimate"])
    firm = "!" if row["verdict"] in (HOLDS, CONTRADICTED) else ""
    return f"{number(row['estimate'])} [{number(row['low'])}, {number(row['high'])}]{firm}"
