"""The methods' looks, as colour-blind readers and a black-and-white printer see them."""

from itertools import combinations

import matplotlib.colors
import numpy as np
import pytest

from analysis.paper.names import PAPER_METHODS, plain, variant_name
from analysis.report.page.vega import DARK_GROUND, contrast, on_dark
from analysis.report.style import LOOKS, SPARE, look

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISION = {
    "full": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, vision: str = "full") -> np.ndarray:
    """CIE L*a*b* of a colour as somebody sees it."""
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    xyz = XYZ @ seen / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_colours_differ_for_every_eye(vision: str) -> None:
    """A difference of 2.3 is just visible side by side; lines want several times that."""
    for one, other in combinations(PAPER_METHODS, 2):
        difference = np.linalg.norm(lab(look(one).colour, vision) - lab(look(other).colour, vision))
        assert difference > 9, (vision, one, other, difference)


def test_lightness_alone_tells_the_papers_methods_apart() -> None:
    lightness = sorted(lab(look(method).colour)[0] for method in PAPER_METHODS)
    assert min(np.diff(lightness)) > 7


def test_marker_and_line_say_it_again() -> None:
    looks = [*LOOKS.values(), *(("", *spare) for spare in SPARE)]
    for position in (2, 3):
        values = [style[position] for style in looks]
        assert len(set(values)) == len(values)


def test_dark_theme_lightens_until_it_can_be_seen() -> None:
    for method in PAPER_METHODS:
        assert contrast(on_dark(look(method).colour), DARK_GROUND) >= 3
    assert on_dark("#ffffff") == "#ffffff"
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def test_unknown_methods_have_a_look_of_their_own() -> None:
    assert look("nesterov_zo").label == "nesterov_zo"
    assert look("nesterov_zo").colour not in {style.colour for style in LOOKS.values()}


def test_variants_keep_their_order_in_lightness() -> None:
    names = [variant_name("bszo", i, 4, f"k = {2**i}") for i in range(4)]
    lightness = [lab(look(name).colour)[0] for name in names]
    assert lightness == sorted(lightness, reverse=True)
    assert min(-np.diff(lightness)) > 7
    assert look(names[2]).label == "k = 4"
    assert plain(names[2]) == "bszo"
