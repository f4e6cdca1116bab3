"""How every method looks in every figure: name, colour, marker and line, fixed once.

Colours are told apart by colour-blind readers (after Okabe & Ito and Paul Tol) and the methods that
share a figure most often differ in lightness too; marker and line carry the difference in greyscale.
"""

from typing import Any, NamedTuple
from zlib import crc32


class Look(NamedTuple):
    """A method's name in print and its line."""

    label: str
    colour: str
    marker: str
    line: Any  # a matplotlib linestyle: a name, or (offset, (on, off, ...)) in points


LOOKS = {
    "zero_shot": Look("zero-shot", "#000000", "", (0, (1, 2))),
    "mezo": Look("MeZO", "#004488", "o", "-"),
    "mezo_adam": Look("MeZO-Adam", "#56B4E9", "s", (0, (5, 1.5))),
    "hizoo": Look("HiZOO", "#117733", "^", (0, (7, 2, 1.5, 2))),
    "lozo": Look("LOZO", "#AA4499", "v", (0, (3, 1.5))),
    "bszo": Look("BSZO", "#D55E00", "D", (0, (6, 1.5))),
    "bszo_b": Look("BSZO-B", "#E69F00", "P", (0, (4, 1.5, 1, 1.5))),
    "adam": Look("Adam", "#555555", "X", (0, (9, 2))),
    "sgd": Look("SGD", "#999999", "*", (0, (2, 1))),
}
SPARE = (
    ("#882255", "<", (0, (8, 2, 2, 2))),
    ("#44AA99", ">", (0, (6, 3))),
    ("#999933", "h", (0, (3, 3))),
    ("#332288", "p", (0, (5, 2, 1, 2, 1, 2))),
)

# Type 42 fonts and no text paths: a pdf whose words can be found and edited.
RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}


def look(method: str) -> Look:
    """The look of a method; an unknown one gets a spare look that depends on its name alone."""
    if method in LOOKS:
        return LOOKS[method]
    return Look(method, *SPARE[crc32(method.encode()) % len(SPARE)])
