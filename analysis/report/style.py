"""How everything looks in every figure: a method's name, colour, marks and dashes, fixed once in names.yaml.

The colours of the paper's six methods are told apart by colour-blind readers and, by lightness, in greyscale. Marks
and dashes say the same again.
"""

from typing import NamedTuple
from zlib import crc32

from analysis.paper.names import METHODS


class Look(NamedTuple):
    """A method's name in print and its line."""

    label: str
    colour: str
    shape: str  # of marks, in Vega's words; empty for none
    dash: list[float]  # dash and gap, pixels; empty for a whole line


LOOKS = {
    method: Look(one["name"], one["colour"], one["shape"], one["dash"])
    for method, one in METHODS.items()
}
REFERENCE = Look("", "#777777", "diamond", [])  # no method: it has no entry in the legend
SPARE: tuple[tuple[str, str, list[float]], ...] = (
    ("#882255", "triangle-left", [8, 2, 2, 2]),
    ("#44AA99", "triangle-right", [6, 3]),
    ("#999933", "circle", [3, 3]),
    ("#332288", "square", [5, 2, 1, 2, 1, 2]),
)
MUTED = "#777777"  # remarks
# Sequential, for values of one quantity that have an order (learning rates, k): light to dark.
VARIANT_SHAPES = ("circle", "square", "triangle-up", "triangle-down", "diamond", "cross")
VARIANT_DASHES: tuple[list[float], ...] = ([], [6, 1.5], [3, 1.5], [7, 2, 1.5, 2], [1.5, 1], [9, 2])
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
        return Look(words, colour, VARIANT_SHAPES[i], VARIANT_DASHES[i])
    known = REFERENCE if name == "reference" else LOOKS.get(name)
    known = known or Look(name, *SPARE[crc32(name.encode()) % len(SPARE)])
    return known._replace(label=words) if words else known
