"""A panel of a figure as inline SVG: small, with the page's own colours, and told what its lines are.

Matplotlib draws it as it draws the png. Then ids are made unique on the page, colours become CSS variables (so that the
page's dark theme holds for figures, too), and the names that the drawing code gave to lines and bars become
`data-` attributes, from which page.js makes tooltips. The axes' scales go along, so that it can turn a place
back into numbers.
"""

import io
import json
import re
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.report.figures.drawing import Panel
from analysis.report.style import INK, LOOKS, MUTED, RAMP, RC, RULE

SIZE = (3.1, 2.2)  # inches of a panel; the page scales it
KEY_SIZE = (0.42, 0.14)
SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
VARIABLES = {
    **{colour.lower(): f"var(--ramp-{i})" for i, colour in enumerate(RAMP)},
    **{look.colour.lower(): f"var(--m-{name})" for name, look in LOOKS.items()},
    INK.lower(): "var(--ink)",
    MUTED.lower(): "var(--muted)",
    RULE.lower(): "var(--rule)",
    "#ffffff": "var(--card)",
    "white": "var(--card)",
}
KINDS = ("line", "band", "bar", "key")  # first word of a name that drawing code gives


def panel_svg(panel: Panel, prefix: str) -> str:
    """A panel, without its title, as an svg element.

    Args:
        panel: what to draw.
        prefix: of ids; unique on the page.
    """
    with mpl.rc_context(RC):
        figure = Figure(figsize=SIZE, layout="tight")
        axes = figure.subplots()
        panel.draw(axes)
        root = _drawn(figure)
        scales = json.dumps(_scales(axes, figure), ensure_ascii=False)
    label = f"{panel.title}: {axes.get_ylabel()}" + (
        f" over {axes.get_xlabel()}" if axes.get_xlabel() else ""
    )
    root.set("role", "img")
    root.set("aria-label", label)
    root.set("tabindex", "0")
    root.set("class", "panel")
    root.set("data-axes", scales)
    return _page_svg(root, prefix)


def key_svg(handle: Artist, prefix: str) -> str:
    """A legend entry's sign as a small svg element."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=KEY_SIZE)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        if isinstance(handle, Line2D):
            line = Line2D([0.06, 0.94], [0.5, 0.5]) if handle.get_linestyle() != "None" else None
            if line is not None:
                line.update_from(handle)
                line.set_marker("")
                line.set_transform(axes.transData)
                axes.add_line(line)
            (mark,) = axes.plot([0.5], [0.5])
            mark.update_from(handle)
            mark.set_linestyle("")
            mark.set_transform(axes.transData)
        else:
            colour = handle.get_facecolor()  # type: ignore[attr-defined]
            edge = handle.get_edgecolor()  # type: ignore[attr-defined]
            axes.bar([0.5], [0.8], bottom=0.1, width=0.6, facecolor=colour, edgecolor=edge)
        root = _drawn(figure)
    root.set("class", "key")
    root.set("aria-hidden", "true")
    return _page_svg(root, prefix)


def _drawn(figure: Figure) -> ElementTree.Element:
    """The figure as matplotlib writes it, without its background."""
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return ElementTree.fromstring(buffer.getvalue())


def _scales(axes: Axes, figure: Figure) -> dict[str, object]:
    """What turns a place in the svg into numbers: the axes' box in svg units and their limits."""
    box = axes.get_window_extent()
    unit, height = 72 / figure.dpi, figure.get_figheight() * 72
    corners = (box.x0 * unit, height - box.y0 * unit, box.x1 * unit, height - box.y1 * unit)
    return {
        "box": [round(float(value), 1) for value in corners],
        "x": [float(value) for value in axes.get_xlim()],
        "y": [float(value) for value in axes.get_ylim()],
        "logx": axes.get_xscale() == "log",
        "logy": axes.get_yscale() == "log",
        "xlabel": axes.get_xlabel(),
        "ylabel": axes.get_ylabel(),
    }


def _page_svg(root: ElementTree.Element, prefix: str) -> str:
    """Make an element tree fit for the page, and text."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("metadata") or child.tag == f"{SVG}style":
                parent.remove(child)
    found = re.findall(r"#([\w.-]+)", ElementTree.tostring(root, encoding="unicode"))
    used = {name: f"{prefix}{i}" for i, name in enumerate(dict.fromkeys(found))}
    for node in root.iter():
        _name(node, used)
        for key, value in list(node.attrib.items()):
            node.set(key, _restyled(value, used) if key in ("style", "clip-path") else value)
        if LINK in node.attrib:
            node.set("href", f"#{used[node.attrib.pop(LINK)[1:]]}")
        for key in ("d", "transform", "x", "y", "width", "height", "points"):
            if key in node.attrib:
                node.set(key, _shortened(node.attrib[key]))
    _share_styles(root)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    written = ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)
    written = re.sub(r"\s*\n\s*", " ", written)
    return re.sub(r"(</?)\w+:", r"\1", re.sub(r' xmlns(:\w+)?="[^"]*"', "", written)).replace(
        "> <", "><"
    )


def _share_styles(root: ElementTree.Element) -> None:
    """Write the style of a line's markers once, and drop rotations by nothing."""
    for node in root.iter():
        uses = [child for child in node if child.tag == f"{SVG}use"]
        styles = {use.get("style") for use in uses}
        if len(styles) == 1 and len(uses) == len(node):
            style = styles.pop()
            if style and "style" not in node.attrib:
                node.set("style", style)
                for use in uses:
                    del use.attrib["style"]
        if node.get("transform", "").startswith("rotate(-0 "):
            del node.attrib["transform"]


def _name(node: ElementTree.Element, used: dict[str, str]) -> None:
    """Turn a name into data attributes; keep an id only where something refers to it."""
    name = node.attrib.pop("id", None)
    if name is None:
        return
    kind, *rest = name.split("|")
    if kind in KINDS and rest:
        node.set("class", kind)
        node.set("data-method", rest[0])
        if len(rest) > 1:
            node.set("data-words", rest[1])
    elif name in used:
        node.set("id", used[name])


def _restyled(style: str, used: dict[str, str]) -> str:
    """Colours as variables, fonts without family, references to ids as they are on the page."""
    style = re.sub(r"#[0-9a-fA-F]{6}\b", lambda m: VARIABLES.get(m[0].lower(), m[0]), style)
    style = style.replace("'DejaVu Sans'", "var(--font)").replace("DejaVu Sans", "var(--font)")
    return re.sub(r"url\(#([\w.-]+)\)", lambda m: f"url(#{used[m[1]]})", style)


def _shortened(numbers: str) -> str:
    """One digit behind the point: a tenth of a 72nd of an inch."""
    short = re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), numbers)
    short = " ".join(short.split())
    return re.sub(r" L ", " ", short) if short.startswith("M ") and "C" not in short else short
