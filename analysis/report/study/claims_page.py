"""The page of the claims: for each a sentence in plain words, then every contrast with its interval and verdict."""

from typing import Any

import pandas as pd

from analysis.paper.names import method_label
from analysis.report.table import ABSENT, Cell, Column, Table, markdown
from analysis.select.contrast_rows import ACCURACY, CHANGE, NATS
from analysis.select.study_claims import AREA, CLAIMS, OURS, VARIANT
from analysis.select.study_runs import Study
from analysis.stats.contrasts import CONTRADICTED, HOLDS, NONE, OPEN

RULE = [
    "Every estimate has the sign of its claim: positive speaks for it. Verdict: *holds* if the 95 % interval lies "
    "above 0 and p after Holm's correction is below 5 %, *contradicted* likewise below 0, else *open*; – where too few "
    "runs have ended, all seeds have the same value, or nothing is claimed.",
    "Learning rates are chosen by validation accuracy alone, for each method and precision over all seeds. Runs of one "
    "seed see the same mini-batches, so that differences are taken seed by seed.",
    "Interval of a test accuracy: from Student's interval over the seeds and the percentile bootstrap over the test "
    "examples (10,000 resamples, seed 0, the runs held fixed), each side's half-widths combined as the root of the sum "
    "of their squares: never narrower than either. It also covers the bootstrap in which every resample of the seeds "
    "chooses its learning rates anew. claims.csv has all of them. Interval of a loss, or of validation accuracy: "
    "Student's over the seeds, given these validation examples and the chosen learning rates. Between evaluations a "
    "curve is straight; two are compared from the first to the last evaluation that both have.",
    "p: two-sided, of Student's paired t test over the seeds alone; behind it, p after Holm's correction over the rows "
    "of the claim. Rows that claim nothing are in no family: changes from fp32, and a method whose runs equal "
    "another's.",
    "A collapsed run gets no example right. Where a loss is not finite there is no estimate; the remark counts who is "
    "ahead, a collapse being last.",
]
WORDS = {HOLDS: "holds", CONTRADICTED: "contradicted", OPEN: "open"}


def claims_markdown(study: Study, frame: pd.DataFrame) -> str:
    """The whole page."""
    lines = [f"# {study.name}: which of the paper's claims hold at this scale", ""]
    lines += [
        f"- **({claim}) {words}.** {summary(frame, claim)}" for claim, words in CLAIMS.items()
    ]
    lines += ["", *(f"{rule}\n" for rule in RULE), *(f"{line}.\n" for line in study.lacks())]
    return "\n".join(lines) + "\n" + "\n".join(map(markdown, claims_tables(frame)))


def summary(frame: pd.DataFrame, claim: str) -> str:
    """What the numbers say about one claim, a clause per precision."""
    rows = frame[frame["claim"] == claim]
    if claim in ("ii", "iii", "vii"):
        rows = rows[rows["quantity"].str.startswith(AREA) | (rows["quantity"] == ACCURACY)]
    clauses = []
    for precision, of_precision in rows.groupby("precision", sort=False):
        claimed = of_precision[~of_precision["what"].str.contains(" − ", regex=False)]
        parts = [_verdicts(claimed, verdict) for verdict in WORDS]
        parts.append(_unsaid(claimed))
        said = "; ".join(part for part in parts if part)
        changes = _changes(of_precision) if claim == "iv" else ""
        steps = _steps(frame, str(precision)) if claim == "ii" else ""
        clauses.append(f"{precision}: {said}{changes}{steps}.")
    return " ".join(clauses) or "Nothing has been run for it."


def _verdicts(rows: pd.DataFrame, verdict: str) -> str:
    """`holds against MeZO (+1.20 points), LOZO (+0.30 points)`."""
    found = rows[rows["verdict"] == verdict]
    if found.empty:
        return ""
    named = [f"{short(row['what'])} ({_value(row)})" for row in found.to_dict("records")]
    return f"{WORDS[verdict]}: " + ", ".join(named)


def short(what: str) -> str:
    """A contrast without what every one of its claim begins with."""
    for name in (OURS, VARIANT):
        label = method_label(name)
        for words in (" against ", " loses less than "):
            if what.startswith(label + words):
                return "against " + what.removeprefix(label + words)
    return what


def _unsaid(rows: pd.DataFrame) -> str:
    none = rows[(rows["verdict"] == NONE) & rows["p_value"].isna()]
    if none.empty:
        return ""
    reasons = ", ".join(dict.fromkeys(short(what) for what in none["what"]))
    return (
        f"nothing can be said yet: {reasons}"
        if len(none) < len(rows)
        else "nothing can be said yet"
    )


def _changes(rows: pd.DataFrame) -> str:
    """What each of the two methods loses, with its interval."""
    labels = [method_label(name) for name in (OURS, "mezo")]
    said = []
    for row in rows[rows["quantity"] == CHANGE].to_dict("records"):
        label = row["what"].partition(",")[0]
        if label in labels and " − " in row["what"] and pd.notna(row["low"]):
            said.append(f"{label} changes by {_value(row)} ({_interval(row)})")
    return ". From fp32 " + ", ".join(said) if said else ""


def _steps(frame: pd.DataFrame, precision: str) -> str:
    """At how many evaluations BSZO is ahead of MeZO."""
    rows = frame[
        (frame["claim"] == "ii")
        & (frame["precision"] == precision)
        & frame["quantity"].str.startswith("validation loss at step")
    ]
    if (rows["verdict"] == NONE).all():
        return ""
    counts = {verdict: int((rows["verdict"] == verdict).sum()) for verdict in WORDS}
    return (
        f". Against MeZO at the {len(rows)} evaluations: ahead at {counts[HOLDS]}, "
        f"behind at {counts[CONTRADICTED]}, open at {counts[OPEN]}"
    )


def claims_tables(frame: pd.DataFrame) -> list[Table]:
    """A table per claim."""
    return [_table(claim, rows) for claim, rows in frame.groupby("claim", sort=False)]


def _table(claim: Any, rows: pd.DataFrame) -> Table:
    columns: dict[str, Column] = {
        "contrast": lambda row: Cell(row["what"], notes=(row["remark"],) * bool(row["remark"])),
        "precision": "precision",
        "quantity": "quantity",
        "estimate": lambda row: known(row["estimate"], _value(row)),
        "95 %": lambda row: Cell(_interval(row) if pd.notna(row["low"]) else ABSENT),
        "seeds": ("n", ".0f"),
        "p": ("p_value", ".2g"),
        "Holm": ("p_holm", ".2g"),
        "verdict": "verdict",
    }
    return Table.of(f"({claim}) {CLAIMS[claim]}", rows.to_dict("records"), columns, names=3)


def known(value: float, text: str) -> Cell:
    """A number in words; a dash without one."""
    return Cell(ABSENT) if pd.isna(value) else Cell(text, float(value))


def _value(row: Any) -> str:
    return f"{_number(row['estimate'], row['unit'])} {row['unit']}"


def _interval(row: Any) -> str:
    return f"{_number(row['low'], row['unit'])} to {_number(row['high'], row['unit'])}"


def _number(value: float, unit: str) -> str:
    return format(value, "+.4f" if unit == NATS else "+.2f").replace("-", "−")
