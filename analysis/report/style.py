"""How everything looks in every figure: a method's name, colour and mark, fixed once in names.yaml.

The colours of the paper's six methods are told apart by colour-blind readers and, by lightness, in greyscale. Marks
say the same again.
"""

from typing import NamedTuple

from analysis.paper.names import METHODS


class Look(NamedTuple):
    """A method's name in print, and how its lines and marks look."""

    label: str
    colour: str
    mark: str  # Vega's name or an SVG path
    dash: list[float]  # dash and gap, pixels


LOOKS = {
    method: Look(one["name"], one["colour"], one["mark"], one.get("dash", [1, 0]))
    for method, one in METHODS.items()
}
UNKNOWN = Look("", "#777777", "circle", [1, 0])
"""Of a method that names.yaml has not, as one of your own."""

MUTED = "#777777"  # remarks
# Sequential, for values of one quantity that have an order (learning rates, k): light to dark.
VARIANT_MARKS = ("circle", "square", "triangle-up", "triangle-down", "diamond", "cross")
RAMP = ("#B9C7D6", "#8FA5BC", "#64829F", "#3A5F83", "#0F3B66", "#061F38")


def look(method: str) -> Look:
    """The look of a method.

    A variant (`variant_name`) gets a place on RAMP: variants have an order.
    """
    key, _, words = method.partition("=")
    name, _, place = key.partition(":")
    if place:
        i, of = map(int, place.split("/"))
        spread = (len(RAMP) - 1) / max(of - 1, 1)
        return Look(words, RAMP[round(i * spread) if of > 1 else -2], VARIANT_MARKS[i], [1, 0])
    return LOOKS.get(name, UNKNOWN._replace(label=name))
