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
from analysis.paper import names
from analysis.paper.names import method_order
from analysis.paper.printed_numbers import TABLES, Paper
from analysis.report.comparison import comparison
from analysis.report.figures.beside_paper import EFFICIENCY, efficiency
from analysis.report.figures.curves import single_run_figure, sweep_figures
from analysis.report.figures.drawing import Figure, library, specification
from analysis.report.paper_tables import build as paper_tables
from analysis.report.sweep import method_frame, method_table
from analysis.report.table import ABSENT, Cell, Column, Row, Table, number
from analysis.select.paper_cells import BEHIND
from analysis.select.paper_cells import wanted as wanted_runs
from analysis.select.provenance import revisions
from zo.extras import progress

HERE = Path(__file__).parent
Block: TypeAlias = Any
"""A `Table`, or a mapping with what page.html needs of another kind of block."""
LABELS = names.LABELS | {"precision": str}
"""What the page filters by, and its words."""
COLUMNS = {key: f"{'optimizer' if key == 'method' else key}.name" for key in LABELS}
RUNNING = "running or killed"


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
    head = headline(material.frames, material.filled, wanted)
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
            others.append(folded(sweep, counted(frames.of(sweep)), blocks))
    yield section("sweeps", "Earlier sweeps", others)
    single = frames.single
    title = "Single runs, the newest first"
    listed = [runs_table(single, title, "single-runs")] if len(single) else []
    yield section("single", "Single runs", [*listed, *figures(single_run_figure(frames))])
    every = runs_table(runs, "Every run that was read", "runs-table")
    listed = [folded("Every run", counted(runs), [every])] if len(runs) else []
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
        blocks.append(runs_table(going, f"{sweep}: running, killed or failed"))
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
    for key, words in LABELS.items():
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


def headline(frames: Frames, filled: pd.DataFrame, wanted: int) -> dict[str, Any]:
    """The page's title, sentence, tiles (words, number, words, words) and foot, as the template wants them.

    `wanted`: how many runs the paper's tables have.
    """
    runs, sweeps = frames.runs, frames.sweeps
    asked = filled[filled["sweep"].isin(BEHIND)]
    known = int((asked["status"] == "finished").sum())
    tiles = [
        ("Runs", len(runs), "read for this page", counted(runs)),
        ("The paper's runs", known, f"of {wanted:,} finished", ""),
    ]
    title = "Nothing has been run yet"
    summary = (
        "Make runs with `zo train -m sweep=quickstart`, then this page again with `make report`."
    )
    footer = "Made by `zo report`."
    if len(runs):
        title = sweeps[0] if sweeps else "Single runs"
        mine = frames.of(title) if sweeps else frames.single
        missing = int((filled.loc[filled["sweep"] == title, "status"] == "missing").sum())
        finished = int((mine["status"] == "finished").sum())
        words = counted(mine) + (f", {missing:,} not started" if missing else "")
        summary = f"The newest {'sweep' if sweeps else 'runs'}: {words}. What was run comes first, the paper after it."
        tiles.insert(0, ("Newest", finished, f"of {len(mine) + missing:,} finished", words))
        footer += f" Runs made at git {', '.join(revisions(runs)) or 'unknown'}."
    return {"title": title, "summary": summary, "tiles": tiles, "footer": footer}


def counted(runs: pd.DataFrame) -> str:
    """How many runs finished, collapsed, failed, or have no end."""
    if runs.empty:
        return "none"
    words = pd.Series([_state(row) for row in runs.to_dict("records")]).value_counts()
    order = ("finished", "collapsed", RUNNING, "failed")
    return ", ".join(f"{words[word]:,} {word}" for word in order if word in words)


RUN: dict[str, Column] = {
    "run": "run_id",
    "sweep": lambda row: row["group"] or ABSENT,
    **{k: (lambda row, k=k: LABELS[k](row[k]) or ABSENT) for k in LABELS},  # type: ignore[misc]
    "lr": ("lr", "g"),
    "seed": ("seed", ".0f"),
    "status": lambda row: _status(row),
    "val. %": ("best/val_accuracy", ".1f", 100),
    "test %": ("best/test_accuracy", ".1f", 100),
    "steps": lambda row: number(row.get("last_step"), ",.0f", tail=_of(row)),
    "ms per step": ("time/step_ms_median", ",.1f"),
    "peak GiB": ("mem/peak_gib", ".2f"),
    "started (UTC)": lambda row: str(row["started"])[:16].replace("-", "\u2011").replace("T", " "),
    "device": lambda row: str(row.get("provenance.device") or ""),
}


def runs_table(runs: pd.DataFrame, title: str, name: str = "") -> Table:
    """One row per run, whatever became of it."""
    named = runs.reindex(columns=list(COLUMNS.values())).fillna("")
    frame = runs.assign(**named.set_axis(list(COLUMNS), axis=1))
    facets = frame[[*LABELS]].to_dict("records")
    caption = [
        "A run without an exit code goes on, or was killed. `ms per step` is the median; on a CPU, memory is the whole "
        "process's."
    ]
    return Table.of(title, frame, RUN, name=name, caption=caption, facets=facets)


def _status(row: Row) -> Cell:
    """What became of a run, in words, with the step of a collapse and the exit code of a failure."""
    word, step, code = _state(row), row.get("run/collapse_step"), row.get("exit_code")
    more = f" at step {step:.0f}" if word == "collapsed" and pd.notna(step) else ""
    more = f" (exit code {code:.0f})" if word == "failed" else more
    kinds = {"collapsed": "collapsed", "failed": "collapsed", RUNNING: "missing"}
    return Cell(word + more, kind=kinds.get(word, ""))


def _state(row: Row) -> str:
    if row["status"] != "unfinished":
        return str(row["status"])
    code = row.get("exit_code")
    return "failed" if pd.notna(code) and code != 0 else RUNNING


def _of(row: Row) -> str:
    """The steps that an unfinished run was to make."""
    steps = row.get("steps")
    return f" of {steps:,.0f}" if row["status"] == "unfinished" and pd.notna(steps) else ""
