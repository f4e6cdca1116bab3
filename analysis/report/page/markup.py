"""HTML elements as text: names, attributes and escaping in one place."""

from html import escape
from typing import NewType

Markup = NewType("Markup", str)
VOID = ("br", "hr", "input", "meta", "col")


def text(value: object) -> Markup:
    """Text as it is to be read: every sign with a meaning in HTML escaped."""
    return Markup(escape(str(value), quote=False))


def element(tag: str, /, *content: Markup, **attributes: object) -> Markup:
    """An element.

    Args:
        tag: its name.
        content: its children.
        attributes: names with `_` for `-` and a trailing `_` dropped; None and False leave one out, True sets it
            bare.
    """
    written = ""
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        written += f" {key}" if value is True else f' {key}="{escape(str(value))}"'
    if tag in VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{''.join(content)}</{tag}>")


def join(parts: list[Markup], between: str = "") -> Markup:
    """Several pieces of markup as one."""
    return Markup(between.join(parts))


def code_spans(line: str) -> Markup:
    """A sentence in which what stands between backticks is code."""
    parts = line.split("`")
    return join([element("code", text(p)) if i % 2 else text(p) for i, p in enumerate(parts)])
