"""The page's text: what the reader ran comes first, self-contained, the same for the same logs."""

import json
import re
from collections import Counter
from xml.etree import ElementTree

import html5lib
import pytest

from analysis.report.page.build import report
from analysis.select.cell_runs import EDGE
from tests.analysis.report.report_page import NASTY, material

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


def section(tree: ElementTree.Element, name: str) -> ElementTree.Element:
    (found,) = [node for node in tree.iter(f"{XHTML}section") if node.get("id") == name]
    return found


def shown(node: ElementTree.Element) -> str:
    return "".join(node.itertext())


def test_page_is_valid_and_ids_are_unique(tree: ElementTree.Element) -> None:
    ids = Counter(node.get("id") for node in tree.iter() if node.get("id"))
    assert [name for name, count in ids.items() if count > 1] == []
    targets = {node.get("href", "")[1:] for node in tree.iter(f"{XHTML}a")}
    assert targets <= set(ids)


def test_page_needs_no_network_and_is_small(page: str) -> None:
    assert len(page) < 5_000_000
    outside = page.partition("<script>")[0]
    assert re.findall(r'(?:src|href)="(?!#|data:,)[^"]*"', outside) == []
    assert "url(" not in outside
    assert "@import" not in outside


def test_what_was_run_comes_first(tree: ElementTree.Element) -> None:
    """The newest sweep with its table, its curves and what has no end, before anything of the paper."""
    names = [node.get("id") for node in tree.iter(f"{XHTML}section")]
    assert names[:3] == ["newest", "sweeps", "single"]
    assert names.index("paper") > names.index("runs")
    assert shown(next(tree.iter(f"{XHTML}h1"))) == "quickstart"
    newest = section(tree, "newest")
    bszo = next(row for row in rows_of(tree, "sweep-quickstart") if shown(row[0]) == "BSZO")
    assert [shown(bszo[i]) for i in (1, 4)] == ["0.0001ᵇᵃ", "75.0"]
    assert EDGE in shown(newest)
    assert "running or killed" in shown(newest)
    assert len([n for n in newest.iter(f"{XHTML}div") if n.get("class") == "plot"]) > 5
    assert "6 finished, 1 running or killed" in shown(next(tree.iter(f"{XHTML}header")))


def test_text_of_logs_is_text(page: str, tree: ElementTree.Element) -> None:
    assert "<img" not in page.replace("\\u003c", "<").partition("<script>")[0].replace(NASTY, "")
    assert any(NASTY in shown(row) for row in rows_of(tree, "runs-table"))


def test_a_figures_data_have_the_pages_colours_and_say_what_each_line_is(
    tree: ElementTree.Element,
) -> None:
    found = [node.get("data-panel") for node in section(tree, "newest").iter()]
    series = [one for panel in found if panel for one in json.loads(panel)["s"]]
    mine = [one for one in series if one["m"] == "bszo"]
    assert any("BSZO, lr 0.0001, run bszo-" in one["t"] for one in mine)
    assert {one["c"] for one in mine if one["k"] == "line"} >= {"var(--m-bszo)"}
