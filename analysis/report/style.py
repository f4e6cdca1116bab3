"""How everything looks in every figure: a method's name, colour, marker and line, fixed once in names.yaml.

The colours of the paper's six methods are told apart by colour-blind readers and, by lightness, in greyscale. Marker
and line say the same again.
"""

from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from analysis.paper.names import METHODS


class Look(NamedTuple):
    """A method's name in print and its line."""

    label: str
    colour: str
    marker: str
    line: Any  # a matplotlib linestyle: a name, or (offset, (on, off, ...)) in points


LOOKS = {
    method: Look(
        one["name"],
        one["colour"],
        one["marker"],
        one["line"] if isinstance(one["line"], str) else (0, tuple(one["line"])),
    )
    for method, one in METHODS.items()
}
REFERENCE = Look("", "#777777", "D", "-")  # no method: it has no entry in the legend
SPARE = (
    ("#882255", "<", (0, (8, 2, 2, 2))),
    ("#44AA99", ">", (0, (6, 3))),
    ("#999933", "h", (0, (3, 3))),
    ("#332288", "p", (0, (5, 2, 1, 2, 1, 2))),
)
MUTED = "#777777"  # remarks
RC = Path(__file__).with_name("figures.mplstyle")  # fonts, axes and lines of every figure
WIDTH = 7.0  # inches: a page's text
# Sequential, for values of one quantity that have an order (learning rates, k): light to dark.
VARIANT_MARKS = ("o", "s", "^", "v", "D", "P")
VARIANT_LINES = ("-", (0, (6, 1.5)), (0, (3, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1.5, 1)), (0, (9, 2)))
RAMP = ("#B9C7D6", "#8FA5BC", "#64829F", "#3A5F83", "#0F3B66", "#061F38")


def look(method: str) -> Look:
    """The look of a method; an unknown one gets a spare look that depends on its name alone.

    A variant (`variant_name`) gets a place on RAMP: variants have an order.
    """
    key, _, words = method.partition("=")
    name, _, place = key.partition(":")
    if place:
        i, of = map(int, place.split("/"))
        spread = (len(RAMP) - 1) / max(of - 1, 1)
        colour = RAMP[round(i * spread) if of > 1 else -2]
        return Look(words, colour, VARIANT_MARKS[i], VARIANT_LINES[i])
    known = REFERENCE if name == "reference" else LOOKS.get(name)
    known = known or Look(name, *SPARE[crc32(name.encode()) % len(SPARE)])
    return known._replace(label=words) if words else known
