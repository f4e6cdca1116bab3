"""How everything looks in every figure: a method's name, colour, marker and line, fixed once.

The colours of the paper's six methods are told apart by colour-blind readers and, by lightness, in
greyscale: tests/analysis/test_style.py simulates both. Marker and line say the same again.
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
    "mezo": Look("MeZO", "#00326B", "o", "-"),
    "mezo_adam": Look("MeZO-Adam", "#4FA3DC", "s", (0, (5, 1.5))),
    "hizoo": Look("HiZOO", "#1B7F3B", "^", (0, (7, 2, 1.5, 2))),
    "lozo": Look("LOZO", "#8A2A73", "v", (0, (3, 1.5))),
    "bszo": Look("BSZO", "#D55E00", "D", (0, (6, 1.5))),
    "bszo_b": Look("BSZO-B", "#F0B93A", "P", (0, (4, 1.5, 1, 1.5))),
    "adam": Look("Adam", "#555555", "X", (0, (9, 2))),
    "sgd": Look("SGD", "#999999", "*", (0, (2, 1))),
}
PAPER_METHODS = ("mezo", "mezo_adam", "hizoo", "lozo", "bszo", "bszo_b")
SPARE = (
    ("#882255", "<", (0, (8, 2, 2, 2))),
    ("#44AA99", ">", (0, (6, 3))),
    ("#999933", "h", (0, (3, 3))),
    ("#332288", "p", (0, (5, 2, 1, 2, 1, 2))),
)
TASKS = {
    "sst2": "SST-2",
    "rte": "RTE",
    "cb": "CB",
    "wic": "WiC",
    "wsc": "WSC",
    "trec": "TREC",
    "copa": "COPA",
    "boolq": "BoolQ",
    "rotten_tomatoes": "Rotten Tomatoes",
    "phrases": "film phrases",
}
MODELS = {
    "roberta-large": "RoBERTa-large",
    "opt-1.3b": "OPT-1.3B",
    "opt-13b": "OPT-13B",
    "mistral-7b": "Mistral-7B",
    "smollm2-135m": "SmolLM2-135M",
}
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


def variant_name(method: str, i: int, of: int, words: str) -> str:
    """The name of the i-th of several variants of one method, from which `look` makes a look of its own."""
    return f"{method}:{i}/{of}:{words}"


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
    if method in LOOKS:
        return LOOKS[method]
    return Look(method, *SPARE[crc32(method.encode()) % len(SPARE)])


def plain(method: str) -> str:
    """The method that a variant is of."""
    return method.partition(":")[0]


def task_label(task: str) -> str:
    """A task's name in print."""
    return TASKS.get(task, task)


def model_label(model: str) -> str:
    """A model's name in print."""
    return MODELS.get(model, model)


def method_order(method: str) -> tuple[int, str]:
    """Sorts methods as the tables do: zero-shot, the paper's, the others by name."""
    names = list(LOOKS)
    own = plain(method)
    return (names.index(own) if own in names else len(names), method)
