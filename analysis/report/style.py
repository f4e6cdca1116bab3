"""How everything looks in every figure: a method's name, colour, marker and line, fixed once.

The colours of the paper's six methods are told apart by colour-blind readers and, by lightness, in
greyscale: tests/analysis/report/test_style.py simulates both. Marker and line say the same again.
"""

from typing import Any, NamedTuple
from zlib import crc32

from analysis.paper.names import METHODS


class Look(NamedTuple):
    """A method's name in print and its line."""

    label: str
    colour: str
    marker: str
    line: Any  # a matplotlib linestyle: a name, or (offset, (on, off, ...)) in points


_LINES: dict[str, tuple[str, str, Any]] = {
    "zero_shot": ("#000000", "", (0, (1, 2))),
    "icl": ("#2B2B2B", "1", (0, (4, 2))),
    "linear_probe": ("#404040", "2", (0, (4, 2, 1, 2))),
    "mezo": ("#00326B", "o", "-"),
    "mezo_adam": ("#4FA3DC", "s", (0, (5, 1.5))),
    "hizoo": ("#1B7F3B", "^", (0, (7, 2, 1.5, 2))),
    "lozo": ("#8A2A73", "v", (0, (3, 1.5))),
    "bszo": ("#D55E00", "D", (0, (6, 1.5))),
    "bszo_b": ("#F0B93A", "P", (0, (4, 1.5, 1, 1.5))),
    "adam": ("#555555", "X", (0, (9, 2))),
    "sgd": ("#999999", "*", (0, (2, 1))),
}
LOOKS = {method: Look(METHODS[method], *line) for method, line in _LINES.items()}
REFERENCE = Look(
    "", "#777777", "D", "-"
)  # what a figure compares with; it has no entry in the legend
SPARE = (
    ("#882255", "<", (0, (8, 2, 2, 2))),
    ("#44AA99", ">", (0, (6, 3))),
    ("#999933", "h", (0, (3, 3))),
    ("#332288", "p", (0, (5, 2, 1, 2, 1, 2))),
)
INK, MUTED, RULE = "#222222", "#777777", "#DDDDDD"  # text and axes; remarks; grid
WIDTH = 7.0  # inches: a page's text
# Sequential, for values of one quantity that have an order (learning rates, k): light to dark.
VARIANT_MARKS = ("o", "s", "^", "v", "D", "P")
VARIANT_LINES = ("-", (0, (6, 1.5)), (0, (3, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1.5, 1)), (0, (9, 2)))
RAMP = ("#B9C7D6", "#8FA5BC", "#64829F", "#3A5F83", "#0F3B66", "#061F38")

# Type 42 fonts and no text paths: a pdf whose words can be found and edited.
RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "figure.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "zo",
    "savefig.dpi": 200,
}


def named(method: str, words: str) -> str:
    """A name that looks like a method and is called something else in the legend."""
    return f"{method}={words}"


def look(method: str) -> Look:
    """The look of a method; an unknown one gets a spare look that depends on its name alone.

    A variant (`variant_name`) gets a place on RAMP: variants have an order.
    """
    if ":" in method:
        _, place, words = method.split(":", 2)
        i, of = map(int, place.split("/"))
        spread = (len(RAMP) - 1) / max(of - 1, 1)
        return Look(
            words, RAMP[round(i * spread) if of > 1 else -2], VARIANT_MARKS[i], VARIANT_LINES[i]
        )
    method, _, words = method.partition("=")
    if words:
        return look(method)._replace(label=words)
    if method in LOOKS:
        return LOOKS[method]
    if method == "reference":
        return REFERENCE
    return Look(method, *SPARE[crc32(method.encode()) % len(SPARE)])
