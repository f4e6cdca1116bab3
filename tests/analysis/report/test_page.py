"""The page's text: valid, self-contained, the same for the same logs, and true to its material."""

import json
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import html5lib
import pytest

from analysis.report.page.command_line import main, report
from analysis.report.page.markup import code_spans, element, text
from analysis.report.page.tables import Cell, PageTable, Row, from_text_table, table_markup
from analysis.report.text_table import TextTable, bold
from tests.analysis.report.report_page import empty_material, material

pytestmark = pytest.mark.xdist_group("page")  # one process makes the page
XHTML = "{http://www.w3.org/1999/xhtml}"


@pytest.fixture(scope="module")
def page() -> str:
    return report(material())


@pytest.fixture(scope="module")
def tree(page: str) -> ElementTree.Element:
    parser = html5lib.HTMLParser(strict=True)  # raises at the first error
    return parser.parse(page)


def rows_of(tree: ElementTree.Element, table: str) -> list[ElementTree.Element]:
    (found,) = [node for node in tree.iter(f"{XHTML}table") if node.get("id") == table]
    return list(found.find(f"{XHTML}tbody") or [])


def shown(node: ElementTree.Element) -> str:
    return "".join(node.itertext())


def test_page_is_valid_and_ids_are_unique(tree: ElementTree.Element) -> None:
    ids = Counter(node.get("id") for node in tree.iter() if node.get("id"))
    assert [name for name, count in ids.items() if count > 1] == []
    targets = {node.get("href", "")[1:] for node in tree.iter(f"{XHTML}a")}
    assert targets <= set(ids)


def test_page_needs_no_network(page: str) -> None:
    assert len(page) < 5_000_000
    assert re.findall(r'(?:src|href)="(?!#|data:,)[^"]*"', page) == []
    assert re.findall(r"url\((?!#)[^)]*\)", page) == []
    assert "@import" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_markup_of_logs_is_text(page: str, tree: ElementTree.Element) -> None:
    assert "<img" not in page
    facts = json.loads(
        next(n.text for n in tree.iter(f"{XHTML}script") if n.get("id") == "provenance")
    )
    devices = {run.get("device") for run in facts.values()}
    assert 'cpu: <img src=x onerror=alert(1)> & "co" </script>' in devices


def test_paper_and_measured_stand_side_by_side(tree: ElementTree.Element) -> None:
    rows = {tuple(map(shown, list(row)[:6])): row for row in rows_of(tree, "paper-measured")}
    row = rows["4", "OPT-13B", "–", "HiZOO", "bf16", "memory, GB"]
    paper, measured, difference, n, _ = list(row)[6:]
    assert shown(paper) == "58.9"
    assert shown(measured) == f"{14 * 2**30 / 1e9:.2f}"
    assert shown(difference) == f"{14 * 2**30 / 1e9 - 58.9:+.2f}".replace("-", "−")
    assert shown(n) == "1"
    button = measured.find(f"{XHTML}button")
    assert button is not None
    assert button.get("data-runs", "").startswith("hizoo-")
    missing = list(rows["1", "RoBERTa-large", "SST-2", "MeZO", "fp32", "accuracy, %"])[7]
    assert shown(missing) == "–"
    button = missing.find(f"{XHTML}button")
    assert button is not None
    note = button.get("data-note", "")
    assert "python -m launch.submit sweep=table1 task=sst2 optimizer=mezo" in note
    collapsed = list(rows["3", "Mistral-7B", "TREC", "HiZOO", "fp16", "accuracy, %"])[7]
    assert shown(collapsed) == "*"


def test_commands_for_missing_cells_name_what_the_sweep_varies(tree: ElementTree.Element) -> None:
    notes = [b.get("data-note", "") for b in tree.iter(f"{XHTML}button")]
    assert any(
        note.endswith("sweep=table5_c optimizer.k=4 optimizer.adaptive_noise=false")
        for note in notes
    )
    assert any(
        note.endswith("sweep=table5_d task=wic optimizer.adaptive_noise=false") for note in notes
    )


def test_headline_counts_what_is_there(tree: ElementTree.Element) -> None:
    heading = shown(next(tree.iter(f"{XHTML}h1")))
    rows = rows_of(tree, "paper-measured")
    measured = [row for row in rows if "measured" in list(row)[7].get("class", "")]
    assert 30 < len(measured) < len(rows)
    assert heading == f"{len(measured)} of the paper's {len(rows)} cells have been measured here"


def test_coverage_says_what_lacks(tree: ElementTree.Element) -> None:
    rows = {shown(row[0]): [shown(cell) for cell in row] for row in rows_of(tree, "coverage-table")}
    assert rows["table4"][3:] == ["15", "15", "0", "0", "0", "complete"]
    assert rows["quickstart"][3:8] == ["7", "6", "0", "1", "1"]
    assert rows["table1"][3:] == [
        "750",
        "0",
        "0",
        "0",
        "750",
        "python -m launch.submit sweep=table1",
    ]


def test_every_run_is_listed(tree: ElementTree.Element) -> None:
    assert {shown(row[0]) for row in rows_of(tree, "runs-table")} == set(
        material().frames.runs["run_id"]
    )


def test_every_table_of_the_paper_is_there(tree: ElementTree.Element) -> None:
    ids = {node.get("id", "") for node in tree.iter(f"{XHTML}table")}
    assert {f"table-{n}-0" for n in range(1, 13)} <= ids
    assert {"audit-table", "tests-table", "devices-table"} <= ids


def test_page_without_a_run_says_so_and_is_the_same_every_time() -> None:
    page = report(empty_material())
    assert report(empty_material()) == page
    assert "None of the paper" in page
    assert "No run has been read." in page
    html5lib.HTMLParser(strict=True).parse(page)


def test_table_sorts_by_numbers_and_wraps_long_text() -> None:
    rows = [
        Row([Cell("b<c"), Cell("−1,200.5"), Cell("x" * 60)], {"method": "mezo"}),
        Row([Cell("a"), Cell("92.22 ± 0.42", bold=True), Cell("")]),
    ]
    markup = table_markup(PageTable("t", "T", ("name", "value", "words"), rows))
    assert 'data-sort="-1200.5"' in markup
    assert 'data-sort="92.22"' in markup
    assert "b&lt;c" in markup
    assert '<tr data-method="mezo">' in markup
    assert 'class="long"' in markup
    assert "<strong>92.22 ± 0.42</strong>" in markup


def test_text_tables_keep_bold_and_filter_by_their_labels() -> None:
    table = TextTable("T", ["model", "method", "SST-2"], names=2)
    table.rows.append(["OPT-13B", "BSZO-B", bold("91.86")])
    table.rows.append(["", "", "–ᵃ"])
    page_table = from_text_table(table, "t")
    row, continued = page_table.rows
    assert continued.facet == row.facet
    assert [cell.shown for cell in continued.cells] == ["OPT-13B", "BSZO-B", "–ᵃ"]
    assert '<td class="number">91.86' in table_markup(page_table).replace("<strong>", "")
    assert row.facet == {"model": "opt-13b", "method": "bszo_b"}
    assert row.cells[2] == Cell("91.86", bold=True)


def test_markup_escapes() -> None:
    assert (
        element("p", text("<&>"), title='"', hidden=True, id=None)
        == '<p title="&quot;" hidden>&lt;&amp;&gt;</p>'
    )
    assert code_spans("run `a<b`") == "run <code>a&lt;b</code>"


def test_command(quickstart: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", str(quickstart), "--results", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "mezo-4" in page
    assert "Inconsistencies" in page
    capsys.readouterr()
    assert main(["--runs", str(tmp_path / "nowhere"), "--results", str(tmp_path)]) == 2
    assert "nowhere" in capsys.readouterr().err
