"""The paper's statements about BSZO, checked on quadratics that are known: python -m benchmarks.theory [--help].

Written: theory.csv, theory.md and a figure. docs/theory.md explains them. Takes half a minute on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from analysis.report.figures.drawing import draw as draw_chart
from analysis.report.table import Column, Table, markdown
from benchmarks.theory.statements import GROUPS
from zo.run.provenance import git_revision

ROOT = Path(__file__).resolve().parents[2]
SIGNS = {"equal": "", "at most": "≤ ", "at least": "≥ "}
COLUMNS: dict[str, Column] = {
    "statement": "statement",
    "in the paper": "where",
    "simulated": "condition",
    "predicted": lambda row: f"{SIGNS[row['kind']]}{row['predicted']:.4g}",
    "measured": ("measured", ".4g"),
    "99 %": lambda row: f"± {row['half_width']:.2g}",
    "verdict": "verdict",
}


def page(frame: pd.DataFrame, samples: int, seed: int) -> str:
    """Returns the statements as a table in Markdown, with what makes the same numbers again."""
    caption = [
        "n = 100, H from 0.1 to 1; seen: the prediction lies in the interval of what was measured, or the bound holds;"
        " ratios of speeds count as equal within 5 %.",
        f"--samples {samples} --seed {seed}; numpy {np.__version__}, revision {git_revision()[:12]}.",
    ]
    records = frame.to_dict("records")
    return markdown(Table.of("The paper's theory", records, COLUMNS, caption=caption, names=3))


def draw(frame: pd.DataFrame, path: Path) -> None:
    """Draws what was measured over what is predicted or over its bound, with 99 % intervals."""
    ratio, half = (frame[of] / frame["predicted"] for of in ("measured", "half_width"))
    named = frame.assign(name=frame["statement"] + "; " + frame["condition"], ratio=ratio)
    named = named.assign(low=(ratio - half).clip(lower=1e-3), high=ratio + half)
    shown = named[["name", "verdict", "ratio", "low", "high"]]
    axis = alt.Axis(format="~g", values=[0.01, 0.1, 1, 10, 100])
    words, scale = "measured over predicted, or over the bound", alt.Scale(type="log")
    base = alt.Chart(shown).encode(
        alt.Y("name:N", sort=None, title=None), color=alt.Color("verdict:N", sort=None)
    )
    bars = base.mark_errorbar(ticks={"size": 5}).encode(
        alt.X("low:Q", title=words, scale=scale, axis=axis), alt.X2("high")
    )
    marks = base.mark_point(filled=True, size=20, opacity=1).encode(alt.X("ratio:Q", scale=scale))
    one = alt.Chart(pd.DataFrame({"x": [1.0]})).mark_rule(color="#888888").encode(alt.X("x:Q"))
    draw_chart(alt.layer(one, bars, marks, width=230, height=alt.Step(11)), path)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = argparse.ArgumentParser("python -m benchmarks.theory", description=__doc__)
    made.add_argument("--samples", type=int, default=20_000, help="steps behind a mean (20000)")
    made.add_argument("--seed", type=int, default=0, help="of all draws (0)")
    made.add_argument("--results", type=Path, default=ROOT / "results" / "local" / "theory")
    args = made.parse_args(argv)
    if args.samples < 100:
        made.error("--samples: at least 100")
    groups = track(GROUPS, "simulating", console=Console(stderr=True), transient=True)
    found = [row for group in groups for row in group(args.samples, args.seed)]
    args.results.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame([{**asdict(row), "verdict": row.verdict} for row in found])
    frame.to_csv(args.results / "theory.csv", index=False, float_format="%.6g")
    text = page(frame, args.samples, args.seed)
    (args.results / "theory.md").write_text(text, encoding="utf-8")
    draw(frame, args.results / "theory.png")
    print(f"{text}\nwritten: {args.results}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
