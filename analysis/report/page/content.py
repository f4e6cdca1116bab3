"""The page's sections, and how they are put together."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.paper.names import method_order, model_label, task_label
from analysis.report.figures.drawing import Drawing
from analysis.report.page.markup import Markup, code_spans, element, join, text
from analysis.report.page.svg import key_svg, panel_svg
from analysis.report.page.tables import FILTERS, Cell, PageTable, Row
from analysis.report.style import LOOKS, look

HERE = Path(__file__).parent
LABELS = {"model": model_label, "task": task_label, "method": lambda name: look(name).label}
DARK_GROUND = "#191d22"


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Attributes:
        name: id.
        title: heading; the navigation shows it.
        lead: sentences below it.
        content: the rest.
    """

    name: str
    title: str
    lead: Sequence[str]
    content: Markup


def page(
    headline: Markup,
    sections: Sequence[Section],
    choices: Mapping[str, Sequence[str]],
    provenance: Mapping[str, Mapping[str, str]],
    footer: Markup,
) -> str:
    """The whole page.

    Args:
        headline: its top.
        sections: in order.
        choices: filter -> the values that occur.
        provenance: run id -> facts.
        footer: its foot.
    """
    links = [
        element("li", element("a", text(section.title), href=f"#{section.name}"))
        for section in sections
    ]
    main, classes = _with_classes(join([_section(section) for section in sections]))
    parts = {
        "css": colours() + (HERE / "page.css").read_text(encoding="utf-8") + classes,
        "js": (HERE / "page.js").read_text(encoding="utf-8"),
        "headline": headline,
        "filters": filters(choices),
        "sections": join(links),
        "main": main,
        "provenance": json.dumps(provenance, ensure_ascii=False).replace("<", "\\u003c"),
        "footer": footer,
    }
    written = (HERE / "page.html").read_text(encoding="utf-8")
    pieces = written.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def filters(choices: Mapping[str, Sequence[str]]) -> Markup:
    """A menu per filter."""
    menus = []
    for key in FILTERS:
        label = LABELS.get(key, str)
        values = sorted(
            set(choices.get(key, ())), key=method_order if key == "method" else lambda v: (0, v)
        )
        options = [element("option", text(f"any {key}"), value="")]
        options += [element("option", text(label(value)), value=value) for value in values]
        menus.append(
            element(
                "label",
                element("span", text(key)),
                element("select", *options, name=key, id=f"filter-{key}"),
            )
        )
    return join(menus)


def figure_markup(drawing: Drawing, name: str, number: int) -> Markup:
    """A figure: its panels one by one, its legend, its notes.

    Args:
        drawing: what to draw.
        name: its id on the page.
        number: of figures before it on the page: makes ids unique.
    """
    prefix = f"f{number}-"
    panels = []
    for i, panel in enumerate(drawing.panels):
        data: dict[str, object] = {
            f"data_{key}": panel.facet[key] for key in FILTERS if panel.facet.get(key)
        }
        drawn = Markup(panel_svg(panel, f"{prefix}{i}-"))
        panels.append(
            element("div", element("h4", text(panel.title)), drawn, class_="facet", **data)
        )
    keys = []
    for i, handle in enumerate(drawing.legend):
        sign = Markup(key_svg(handle, f"{prefix}k{i}-"))
        method = str(handle.get_gid() or "").partition("|")[2]
        keys.append(element("li", sign, text(handle.get_label()), data_method=method or None))
    legend = element("ul", *keys, class_="legend")
    notes = [element("p", text(note)) for note in drawing.notes]
    caption = element(
        "figcaption", element("h3", text(drawing.title)), legend if keys else Markup("")
    )
    return element(
        "figure",
        caption,
        element("div", *panels, class_="panels"),
        element("div", *notes, class_="notes"),
        id=name,
    )


def csv_table(frame: pd.DataFrame, name: str, title: str) -> PageTable:
    """A csv file as it is."""
    rows = [
        Row([Cell("–" if pd.isna(value) else str(value)) for value in row], _facet(row, frame))
        for row in frame.itertuples(index=False)
    ]
    return PageTable(name, title, tuple(map(str, frame.columns)), rows)


def colours() -> str:
    """The methods' colours as CSS variables; in the dark theme as much lighter as they must be."""
    pairs = {name: (style.colour, on_dark(style.colour)) for name, style in LOOKS.items()}
    return (
        ":root{" + "".join(f"--m-{n}:light-dark({a},{b});" for n, (a, b) in pairs.items()) + "}\n"
    )


def on_dark(colour: str, least: float = 3.6) -> str:
    """A colour mixed with white until its contrast with the dark ground suffices."""
    mixed = colour
    for share in range(0, 100, 4):
        parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        mixed = "#" + "".join(f"{round(p + (255 - p) * share / 100):02x}" for p in parts)
        if contrast(mixed, DARK_GROUND) >= least:
            break
    return mixed


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours, 1 to 21."""
    low, high = sorted(luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """WCAG's relative luminance, 0 to 1."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _with_classes(markup: Markup) -> tuple[str, str]:
    """The markup with each figure's style named by a class, and the rules of these classes.

    Hundreds of panels have the same few styles; written out, they would be a third of the page.
    """
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return f' class="{names.setdefault(found[1], f"s{len(names)}")}"'

    written = re.sub(r' style="([^"]*(?:stroke|font|fill)[^"]*)"', name, markup)
    rules = "".join(f".{short}{{{style}}}\n" for style, short in names.items())
    return written, rules


def _facet(row: tuple, frame: pd.DataFrame) -> dict[str, str]:
    values = dict(zip(frame.columns, row, strict=True))
    return {key: str(values[key]) for key in FILTERS if isinstance(values.get(key), str)}


def _section(section: Section) -> Markup:
    lead = [element("p", code_spans(line), class_="lead") for line in section.lead]
    heading = element("h2", text(section.title))
    return element("section", heading, *lead, section.content, id=section.name)
