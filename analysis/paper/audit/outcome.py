"""What a check of the paper returns: one outcome per comparison, whether it holds or not."""

from dataclasses import dataclass

from analysis.paper.printed_numbers import digits

OBSERVATION = "observation"
STATEMENTS = "statements of the text"
KINDS = {
    "number": "A printed number that does not follow from the printed numbers it is made of.",
    "last digit": "The same, by no more than one unit of its last digit.",
    "bold": "A cell that is bold and is not among the best, or the other way round.",
    "claim": "A statement of the text that the paper's tables contradict.",
    "basis": "Right arithmetic on numbers that cannot be compared, or beside the number that matters.",
    OBSERVATION: "No contradiction; what a reader of the number should know.",
}


@dataclass(frozen=True)
class Outcome:
    """One comparison.

    Attributes:
        group: what it belongs to, for the counts.
        location: table and cell, or section.
        what: what was compared.
        ok: whether it holds.
        printed: what the paper says.
        recomputed: what follows from its other numbers.
        difference: printed minus recomputed, signed; empty if that means nothing.
        kind: one of KINDS.
        remark: what explains it.
    """

    group: str
    location: str
    what: str
    ok: bool
    printed: str = ""
    recomputed: str = ""
    difference: str = ""
    kind: str = "number"
    remark: str = ""


def claim(
    location: str, what: str, ok: bool, printed: str = "", recomputed: str = "", **more: str
) -> Outcome:
    """The outcome of a statement of the text; unless told otherwise a contradiction."""
    kind = more.pop("kind", "claim")
    return Outcome(STATEMENTS, location, what, ok, printed, recomputed, kind=kind, **more)


def seen(
    location: str, what: str, printed: str, recomputed: str, remark: str = "", ok: bool = False
) -> Outcome:
    """An observation; none if `ok`."""
    return Outcome(
        *(STATEMENTS, location, what, ok, printed, recomputed), kind=OBSERVATION, remark=remark
    )


def number(
    group: str, location: str, what: str, printed: str, exact: float, ok: bool, remark: str = ""
) -> Outcome:
    """The outcome for a printed number and what it should be, one digit more precise than it is printed."""
    places = digits(printed)
    difference = float(printed) - exact
    small = "e" not in printed and abs(difference) <= 10.0**-places + 1e-9
    return Outcome(
        group=group,
        location=location,
        what=what,
        ok=ok,
        printed=printed,
        recomputed=signed(exact, places + 2, plus=False),
        difference=signed(difference, places + 2),
        kind="last digit" if small else "number",
        remark=remark,
    )


def signed(value: float, places: int, plus: bool = True) -> str:
    """A number with a minus sign as printed, without trailing noise."""
    return format(value, f"{'+' if plus else ''}.{places}f").replace("-", "−")
