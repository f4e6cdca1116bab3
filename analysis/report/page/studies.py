"""The studies on the page: accuracies, what is claimed and what holds, curves and roundings."""

import pandas as pd

from analysis.logs.frames import Frames
from analysis.report.figures.drawing import Drawing
from analysis.report.page.content import Section, figure_markup
from analysis.report.page.markup import Markup, code_spans, element, join, text
from analysis.report.page.tables import from_text_table, table_markup
from analysis.report.study.ablation import ablation_frame, ablation_table
from analysis.report.study.accuracy import accuracy_frame, accuracy_table
from analysis.report.study.claims_page import claims_tables, summary
from analysis.report.study.curves import curves_drawing
from analysis.report.study.roundings_figure import roundings_drawing
from analysis.report.study.roundings_page import summaries
from analysis.select import study_runs, study_sweeps
from analysis.select.study_claims import CLAIMS, claims_frame
from analysis.select.study_roundings import Roundings
from analysis.select.study_runs import Study

FIRST = 10_000  # figures of this section count from here: no other section has so many
LEAD = [
    "The paper's comparisons at a scale that could be run whole, and which of its claims hold there. The rules of the "
    "verdicts, every interval and the roundings' tables lie beside this page in `results/<study>/`."
]


def sections(filled: pd.DataFrame, frames: Frames) -> list[Section]:
    """One section, if a run of a study has ended; else none."""
    found = [study_runs.of_filled(name, filled, frames) for name in study_sweeps.names()]
    there = [study for study in found if study.any]
    blocks = [_block(study, FIRST + 10 * i) for i, study in enumerate(there)]
    return [Section("studies", "Studies", LEAD, join(blocks))] if blocks else []


def _block(study: Study, number: int) -> Markup:
    claims, roundings = claims_frame(study), Roundings(study)
    said = [
        element("li", code_spans(f"({claim}) {words}. {summary(claims, claim)}"))
        for claim, words in CLAIMS.items()
    ]
    said += [element("li", text(line)) for line in summaries(roundings)]
    tables = [accuracy_table(study, accuracy_frame(study))]
    tables.append(ablation_table(study, ablation_frame(study)))
    tables += claims_tables(claims)
    written = [
        table_markup(from_text_table(table, f"{study.name}-{i}"))
        for i, table in enumerate(tables)
        if table.rows
    ]
    folded = element(
        "details", element("summary", text("Every claim")), *written[2:], class_="sweep"
    )
    drawings: list[Drawing | None] = [curves_drawing(study), roundings_drawing(roundings)]
    figures = [
        figure_markup(drawing, f"study-{study.name}-{drawing.name}", number + i)
        for i, drawing in enumerate(drawings)
        if drawing is not None
    ]
    heading = element("h3", text(study.name))
    return join([heading, *written[:2], element("ul", *said), folded, *figures])
