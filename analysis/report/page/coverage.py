"""How much of each sweep has been run, and the command for the rest."""

from collections.abc import Mapping

import pandas as pd

from analysis.report.page.markup import Markup, code_spans, element, text
from analysis.report.page.tables import bar
from analysis.select import sweep_cells
from analysis.select.cell_runs import command
from analysis.select.study_sweeps import PREFIX

SHOWN = {
    "table1": "Table 1, 11",
    "table3_opt_1_3b": "Table 3, OPT-1.3B",
    "table3_mistral_7b": "Table 3, Mistral-7B",
    "table3_opt_13b": "Table 3, OPT-13B",
    "table4": "Table 4, Figure 2",
    "table4_fast": "ours: Table 4 with streamed probes and philox noise",
    "table4_factors": "ours: LOZO of Table 4 with factors",
    "table5_a": "Table 5 (a), 12 (a)",
    "table5_b": "Table 5 (b), 12 (b)",
    "table5_c": "Table 5 (c)",
    "table5_d": "Table 5 (d)",
    "table12_c": "Table 12 (c)",
    "figure1": "Figure 1",
    "quickstart": "ours, not the paper's",
    **{name: "ours: a study" for name in sweep_cells.sweep_names() if name.startswith(PREFIX)},
}


def counts(filled: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Sweep -> status -> number of its cells; `all` of them, too."""
    found: dict[str, dict[str, int]] = {}
    for sweep, rows in filled.groupby("sweep", sort=False):
        statuses = rows["status"].value_counts()
        found[str(sweep)] = {"all": len(rows), **{str(k): int(v) for k, v in statuses.items()}}
    return found


def distinct(filled: pd.DataFrame) -> dict[str, int]:
    """As `counts`, over all sweeps of the paper; a run that several sweeps share counts once."""
    ours = [s for s in filled["sweep"].unique() if SHOWN.get(s, "ours").startswith("ours")]
    rows = filled[~filled["sweep"].isin(ours)].drop_duplicates("run_id")
    return {"all": len(rows), **{str(k): int(v) for k, v in rows["status"].value_counts().items()}}


def coverage_markup(by_sweep: Mapping[str, Mapping[str, int]]) -> Markup:
    """A table with a bar per sweep."""
    rows = []
    for sweep, number in by_sweep.items():
        done, dead = number.get("finished", 0), number.get("collapsed", 0)
        lacking = number["all"] - done - dead
        label = f"{done} of {number['all']} finished, {dead} collapsed"
        rows.append(
            element(
                "tr",
                element("th", text(sweep), scope="row"),
                element("td", text(SHOWN.get(sweep, ""))),
                element(
                    "td", bar(done, dead, number["all"], label), data_sort=done / number["all"]
                ),
                *(
                    element("td", text(value), class_="number")
                    for value in (number["all"], done, dead, number.get("unfinished", 0), lacking)
                ),
                element("td", code_spans(f"`{command(sweep)}`") if lacking else text("complete")),
            )
        )
    heads = (
        "sweep",
        "stands for",
        "progress",
        "cells",
        "finished",
        "collapsed",
        "interrupted",
        "lacking",
        "to run the rest",
    )
    written = element(
        "table",
        element("caption", text("Cells of every sweep")),
        element(
            "thead", element("tr", *(_head(head, 3 <= i <= 7) for i, head in enumerate(heads)))
        ),
        element("tbody", *rows),
        id="coverage-table",
    )
    region = element(
        "div",
        written,
        class_="scroll",
        role="region",
        aria_label="Cells of every sweep",
        tabindex="0",
    )
    nothing = element("p", text("No row matches the filters."), class_="nothing", hidden=True)
    return element("div", region, nothing, class_="table")


def _head(words: str, number: bool) -> Markup:
    button = element("button", text(words), type="button", class_="sort")
    return element("th", button, scope="col", class_="number" if number else None, aria_sort="none")
