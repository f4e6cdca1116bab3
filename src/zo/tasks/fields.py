"""Functions that a template may put a column through: ``{question:asked}``. Name -> pure function of the text."""

from collections.abc import Callable


def strip(text: str) -> str:
    """Without white space around it: GLUE's sentences end in a space."""
    return text.strip()


def lower(text: str) -> str:
    """In lower case."""
    return text.lower()


def unfinished(text: str) -> str:
    """Without its full stop, so that it can be carried on."""
    return text.rstrip().removesuffix(".")


def continued(text: str) -> str:
    """Beginning in lower case, to carry a sentence on: its first word, unless that is "I"."""
    first, space, rest = text.partition(" ")
    return (first if first == "I" else first.lower()) + space + rest


def connective(text: str) -> str:
    """COPA's kind of question as the word that asks it.

    Raises:
        ValueError: another kind.
    """
    words = {"effect": "so", "cause": "because"}
    if text not in words:
        raise ValueError(f"{text!r} is neither of {', '.join(words)}")
    return words[text]


def asked(text: str) -> str:
    """With a capital letter and one question mark."""
    return text[:1].upper() + text[1:] + ("" if text.endswith("?") else "?")


FIELDS: dict[str, Callable[[str], str]] = {
    function.__name__: function
    for function in (strip, lower, unfinished, continued, connective, asked)
}
