"""The page of the claims: for each a sentence in plain words, then every contrast with its interval and verdict."""

from typing import Any

import pandas as pd

from analysis.report.markdown import page
from analysis.report.table import ABSENT, Cell, Column, Table, number
from analysis.select.contrast_rows import ACCURACY, AREA, CHANGE, NATS
from analysis.select.study_claims import CLAIMS
from analysis.select.study_runs import Study
from analysis.stats.contrasts import CONTRADICTED, HOLDS, NONE, OPEN


def claims_markdown(study: Study, frame: pd.DataFrame) -> str:
    """The whole page."""
    summaries = {claim: summary(frame, claim) for claim in CLAIMS}
    tables = claims_tables(frame)
    return page("claims", study=study, claims=CLAIMS, summaries=summaries, tables=tables)


def summary(frame: pd.DataFrame, claim: str) -> str:
    """What the numbers say about one claim, a clause per precision."""
    rows = frame[frame["claim"] == claim]
    if claim in ("ii", "iii", "vii"):
        rows = rows[rows["kind"].isin([AREA, ACCURACY])]
    clauses = []
    for precision, of_precision in rows.groupby("precision", sort=False):
        claimed = of_precision[of_precision["kind"] != CHANGE]
        parts = []  # `holds: against MeZO (+1.20 points), LOZO (+0.30 points)`
        for verdict in (HOLDS, CONTRADICTED, OPEN):
            found = claimed[claimed["verdict"] == verdict].to_dict("records")
            named = ", ".join(f"{row['short']} ({_value(row)})" for row in found)
            parts += [f"{verdict}: {named}"] if found else []
        none = claimed[(claimed["verdict"] == NONE) & claimed["p_value"].isna()]
        if len(none):
            reasons = ", ".join(dict.fromkeys(none["short"]))
            named = f": {reasons}" if len(none) < len(claimed) else ""
            parts.append(f"nothing can be said yet{named}")
        clauses.append(f"{precision}: {'; '.join(parts)}.")
    return " ".join(clauses) or "Nothing has been run for it."


def claims_tables(frame: pd.DataFrame) -> list[Table]:
    """A table per claim."""
    columns: dict[str, Column] = {
        "contrast": lambda row: Cell(row["what"], notes=(row["remark"],) * bool(row["remark"])),
        "precision": "precision",
        "quantity": "quantity",
        "estimate": lambda row: (
            Cell(_value(row), row["estimate"]) if pd.notna(row["estimate"]) else Cell(ABSENT)
        ),
        "95 %": lambda row: Cell(_interval(row) if pd.notna(row["low"]) else ABSENT),
        "seeds": ("n", ".0f"),
        "p": ("p_value", ".2g"),
        "Holm": ("p_holm", ".2g"),
        "verdict": "verdict",
    }
    return [
        Table.of(f"({claim}) {CLAIMS[str(claim)]}", rows.to_dict("records"), columns, names=3)
        for claim, rows in frame.groupby("claim", sort=False)
    ]


def _shown(row: Any, key: str) -> str:
    return number(row[key], "+.4f" if row["unit"] == NATS else "+.2f").text


def _value(row: Any) -> str:
    return f"{_shown(row, 'estimate')} {row['unit']}"


def _interval(row: Any) -> str:
    return f"{_shown(row, 'low')} to {_shown(row, 'high')}"
