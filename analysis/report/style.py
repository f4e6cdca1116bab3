"""How everything looks in every figure: a method's colour and mark, fixed once in names.yaml.

The colours of the paper's six methods are told apart by colour-blind readers and, by lightness, in greyscale. Marks
say the same again.
"""

from dataclasses import dataclass, field

from analysis.paper.names import METHODS


@dataclass(frozen=True)
class Look:
    """How a method's lines and marks look; the defaults are those of a method that names.yaml has not."""

    colour: str = "#777777"
    mark: str = "circle"  # Vega's name or an SVG path
    dash: list[float] = field(default_factory=lambda: [1, 0])  # dash and gap, pixels


MUTED = "#777777"  # remarks
# Sequential, for values of one quantity that have an order (learning rates, k): light to dark.
VARIANT_MARKS = ("circle", "square", "triangle-up", "triangle-down", "diamond", "cross")
RAMP = ("#B9C7D6", "#8FA5BC", "#64829F", "#3A5F83", "#0F3B66", "#061F38")


def look(method: str) -> Look:
    """The look of a method.

    A variant (`variant_name`) gets a place on RAMP: variants have an order.
    """
    name, _, place = method.partition("=")[0].partition(":")
    if place:
        i, of = map(int, place.split("/"))
        spread = (len(RAMP) - 1) / max(of - 1, 1)
        return Look(RAMP[round(i * spread) if of > 1 else -2], VARIANT_MARKS[i])
    return Look(**{key: value for key, value in METHODS.get(name, {}).items() if key != "name"})
