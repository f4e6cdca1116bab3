"""Which labels are the same to a reader: numbers by value, texts by what of them can be seen."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from zo.tasks.config import TaskError
from zo.tasks.templates import shown

if TYPE_CHECKING:
    from zo.tasks.rows import Rows

DECIMAL = re.compile(r"\s*[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,4})?\s*")

JOINS = re.compile("^(ZERO WIDTH (NON-)?JOINER$|TAG |CANCEL TAG)")


def plain(value: Any) -> str:
    """Returns a cell's visible text without case, width and outer spaces."""
    return unicodedata.normalize("NFKC", _visible(shown(value))).casefold()


def _visible(text: str) -> str:
    """Returns a text under NFC with a plain minus, without what cannot be seen inside or around it."""
    if not (text.isascii() and text.isprintable()):
        text = unicodedata.normalize("NFC", text).replace("\N{MINUS SIGN}", "-")
        text = "".join(of for of in text if of.isspace() or not _unseen(of))
    return text.strip()


def _unseen(of: str) -> bool:
    """Returns whether a character is a control, a format character or a variation selector, and changes no other one.

    Joiners change letters and emojis beside them, and tags are what tells England's flag from Scotland's.
    """
    name, kind = unicodedata.name(of, ""), unicodedata.category(of)
    return ("VARIATION SELECTOR" in name or kind in ("Cc", "Cf")) and not JOINS.search(name)


def same(value: Any) -> Any:
    """Returns what two labels have in common that are the same to a reader: a number's value, or the visible text."""
    text = _visible(shown(value))
    return Decimal(text) if DECIMAL.fullmatch(text) else text


def written_twice(labels: Iterable[Any]) -> tuple[str, str] | None:
    """Returns two texts of labels that are one number, as 3.1 and 3.10; a binary file's have none."""
    found: dict[Any, str] = {}
    for label in labels:
        if type(label) not in (float, bool):
            text = _visible(shown(label))
            if (first := found.setdefault(same(label), text)) != text:
                return first, text
    return None


def alike(labels: Iterable[Any]) -> dict[Any, Any]:
    """Returns the first of the labels that are the same to a reader, whole numbers before others, by `same`."""
    found: dict[Any, Any] = {}
    for label in sorted(dict.fromkeys(labels), key=lambda of: not isinstance(of, int)):
        found.setdefault(same(label), label)
    return found


def is_number(label: Any) -> bool:
    """Returns whether a label is a number, or the text of one; true and false are names."""
    return DECIMAL.fullmatch(shown(label)) is not None


def check_labels(parts: Sequence[Rows], label: str) -> None:
    """Raises TaskError unless labels are names in all files or numbers in all: nothing says which name has a number."""
    kinds: dict[bool, str] = {}
    for rows in parts:
        values = rows.values(label) if rows.column(label) else ()
        given = (v for v in values if v is not None and v != "" and v == v)
        numbers = {*map(is_number, given)}
        if len(numbers) == 1:
            kinds.setdefault(numbers.pop(), rows.source)
    if len(kinds) > 1:
        raise TaskError(
            f"task.label: {label!r} has names in {kinds[False]} and numbers in {kinds[True]}; write the labels alike"
        )
