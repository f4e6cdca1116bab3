"""The page: what was run first, the newest sweep on top; the paper's numbers after it, folded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from analysis.logs.frames import Frames
from analysis.logs.run_file import LogError
from analysis.paper.names import method_order
from analysis.paper.printed_numbers import TABLES, Paper
from analysis.report.comparison import comparison
from analysis.report.figures.beside_paper import EFFICIENCY, efficiency
from analysis.report.figures.curves import single_run_figure, sweep_figures
from analysis.report.figures.drawing import Figure, library, specification
from analysis.report.page import rows
from analysis.report.paper_tables import build as paper_tables
from analysis.report.sweep import method_frame, method_table
from analysis.report.table import Table
from analysis.select.paper_cells import wanted as wanted_runs
from zo.extras import progress

HERE = Path(__file__).parent
Block: TypeAlias = Any
"""A `Table`, or a mapping with what page.html needs of another kind of block."""


@dataclass(frozen=True)
class Material:
    """What the page is made of: runs, these and committed ones, the filled cells of all sweeps, printed numbers."""

    frames: Frames
    known: Frames
    filled: pd.DataFrame
    paper: Paper


def figures(some: Sequence[Figure]) -> list[Block]:
    """Several figures as a block; none without figures."""
    drawn = [
        {
            "title": one.title,
            "spec": specification(one, words=False),
            "panels": ", ".join(dict.fromkeys(one.frame["panel"])),
            "notes": one.notes,
        }
        for one in some
    ]
    return [{"kind": "figures", "figures": drawn}] if drawn else []


def folded(title: str, small: str, blocks: Sequence[Block]) -> Block:
    """Blocks below a line that unfolds them."""
    return {"kind": "folded", "title": title, "small": small, "blocks": list(blocks)}


def report(material: Material) -> str:
    """The page as text; the same logs give the same text."""
    sections = [*_own(material), *_paper(material)]
    wanted = sum(wanted_runs(material.paper).values())
    head = rows.headline(material.frames, material.filled, wanted)
    loader = jinja2.FileSystemLoader(HERE)
    environment = jinja2.Environment(autoescape=True, loader=loader)
    environment.filters["code"] = code_spans
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment.get_template("page.html").render(
        **head,
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        scripts=[library(), (HERE / "sortable.min.js").read_text(encoding="utf-8")],
        sections=[section for section in sections if section["blocks"]],
        filters=_filters(sections),
    )


def section(name: str, title: str, blocks: Sequence[Block]) -> Block:
    """A section; one without blocks is not shown."""
    return {"id": name, "title": title, "blocks": list(blocks)}


def _own(material: Material) -> Iterator[Block]:
    """What the reader has run: the newest sweep, the others, single runs."""
    frames = material.frames
    runs, others = frames.runs, []
    for i, sweep in enumerate(progress(frames.sweeps, "sweeps")):
        try:
            blocks = _sweep(material, sweep)
        except LogError as error:  # the others are shown as they are
            blocks = [Table(sweep, ["run"], caption=[f"This sweep cannot be shown: {error}."])]
        if i == 0:
            yield section("newest", sweep, blocks)
        else:
            others.append(folded(sweep, rows.counted(frames.of(sweep)), blocks))
    yield section("sweeps", "Earlier sweeps", others)
    single = frames.single
    title = "Single runs, the newest first"
    listed = [rows.runs_table(single, title, "single-runs")] if len(single) else []
    yield section("single", "Single runs", [*listed, *figures(single_run_figure(frames))])
    every = rows.runs_table(runs, "Every run that was read", "runs-table")
    listed = [folded("Every run", rows.counted(runs), [every])] if len(runs) else []
    yield section("runs", "Every run", listed)


def _sweep(material: Material, sweep: str) -> list[Block]:
    """A sweep's table, what of it goes on or failed, and its figures."""
    mine = material.frames.of(sweep)
    cells = material.filled[material.filled["sweep"] == sweep]
    if (cells["line"] != "").any():
        _, table, drawn = comparison(sweep, material.filled, material.known)
        return [table, *figures(drawn)]
    blocks = [method_table(cells, method_frame(cells), material.known, f"sweep-{sweep}")]
    going = mine[mine["status"] == "unfinished"]
    if len(going):
        blocks.append(rows.runs_table(going, f"{sweep}: running, killed or failed"))
    drawn = [*sweep_figures(cells, material.known.history), *efficiency(cells)]
    return [*blocks, *figures(drawn)]


def _paper(material: Material) -> Iterator[Block]:
    """The paper's tables beside what was measured."""
    results = paper_tables(TABLES, material.paper, material.known.runs, material.filled)
    blocks = [folded(f"Table {one.number}", one.summary, one.pages) for one in results]
    if EFFICIENCY not in material.frames.sweeps:
        cells = material.filled[material.filled["sweep"] == EFFICIENCY]
        drawn = figures(efficiency(cells, EFFICIENCY))
        blocks.append(folded("Figure 2", "memory and time", drawn))
    yield section("paper", "The paper's tables", blocks)


def _filters(sections: Sequence[Block]) -> dict[str, list[tuple[int, str, str]]]:
    """Every filter with the values that occur on the page, each with a number and its words."""

    def facets(blocks: Sequence[Block]) -> Iterator[Mapping[str, str]]:
        for block in blocks:
            if isinstance(block, Table):
                yield from block.facets
            else:
                yield from facets(block.get("blocks", ()))

    found = list(facets(sections))
    filters = {}
    for key, words in rows.LABELS.items():
        values = {facet[key] for facet in found if facet.get(key, "-") not in ("", "-")}
        ordered = sorted(values, key=method_order if key == "method" else lambda v: (0, v))
        filters[key] = [(n, value, words(value)) for n, value in enumerate(ordered, 1)]
    return filters


def code_spans(line: str) -> Markup:
    """A sentence in which what stands between backticks is code, between double stars bold."""
    text = str(escape(line))
    for sign, tag in (("`", "code"), ("**", "strong")):
        parts = text.split(sign)
        text = "".join(f"<{tag}>{part}</{tag}>" if i % 2 else part for i, part in enumerate(parts))
    return Markup(text)
