"""Functions that a template may put a column through: ``{question:asked}``. Name -> pure function of the text."""

from collections.abc import Callable


def unfinished(text: str) -> str:
    """Returns the text without its full stop, so that it can be carried on."""
    return text.rstrip().removesuffix(".")


def continued(text: str) -> str:
    """Returns the text with its first word in lower case, unless that is "I", to carry a sentence on."""
    first, space, rest = text.partition(" ")
    return (first if first == "I" else first.lower()) + space + rest


def connective(text: str) -> str:
    """Returns COPA's kind of question as the word that asks it.

    Raises:
        ValueError: another kind.
    """
    words = {"effect": "so", "cause": "because"}
    if text not in words:
        raise ValueError(f"{text!r} is neither of {', '.join(words)}")
    return words[text]


def highlights(text: str) -> str:
    """Returns ReCoRD's passage with its summary points as a list."""
    return text.replace("@highlight\n", "- ")


def asked(text: str) -> str:
    """Returns the text with a capital letter and one question mark."""
    return text[:1].upper() + text[1:] + ("" if text.endswith("?") else "?")


FIELDS: dict[str, Callable[[str], str]] = {
    function.__name__: function
    for function in (str.strip, str.lower, unfinished, continued, connective, highlights, asked)
}
"""`strip`: GLUE's sentences end in a space."""
