"""The page: what the reader ran comes first; self-contained, and at work in Debian's chromium, driven by Playwright."""

import json
import os
import re
import shutil
from collections import Counter
from xml.etree import ElementTree

import html5lib
import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from analysis.logs.frames import Frames
from analysis.logs.history import History
from analysis.paper import printed_numbers
from analysis.report.page.build import Material, report
from analysis.select.cells import EDGE, fill
from tests.analysis.make_frames import composed, expected, made_frames
from tests.support.waiting import wait_for

pytestmark = pytest.mark.process  # the page takes seconds, the browser more

XHTML = "{http://www.w3.org/1999/xhtml}"
NASTY = 'cpu: <img src=x onerror=alert(1)> & "co" </script>'
SINGLE = {"gpt2-bszo": 0.0, "llama-bszo": np.nan, "qwen3-bszo": 1.0}
"""Runs without a sweep -> exit code: finished, without an end, failed."""
CHROMIUM = os.environ.get("CHROMIUM", shutil.which("chromium") or shutil.which("chromium-browser"))


def status(cell: dict) -> str:
    """Table 4 is complete, one task of Table 3 has collapses, the quickstart an interrupted run."""
    if cell["sweep"] == "table4":
        return "finished"
    if cell["sweep"] == "table3_mistral_7b" and cell["task"] == "trec":
        return "collapsed" if cell["optimizer"] == "hizoo" else "finished"
    if cell["sweep"] == "quickstart":
        return "unfinished" if cell["optimizer"] == "bszo" and cell["lr"] > 5e-4 else "finished"
    return "missing"


@pytest.fixture(scope="module")
def text():
    """A page with something of everything: cells measured, collapsed, interrupted and missing, and single runs.

    The quickstart is the newest sweep, one device would break a careless page.
    """
    cells = composed("quickstart", "table4")
    grid = {"task": ("sst2", "trec"), "optimizer": ("mezo", "hizoo", "bszo"), "lr": (5e-7, 1e-7)}
    cells = pd.concat([cells, expected("table3_mistral_7b", "mistral-7b", **grid)])
    frames = made_frames(cells, status)
    runs = frames.runs.assign(steps=40.0)
    runs["exit_code"] = runs["exit_code"].astype(float)
    runs.loc[runs["status"] == "unfinished", "exit_code"] = np.nan
    runs.loc[runs["group"] == "quickstart", "started"] = "2026-02-01T12:00:00"
    runs.loc[runs["optimizer.name"] == "zero_shot", "provenance.device"] = NASTY
    bszo = runs[(runs["group"] == "table4") & (runs["optimizer.name"] == "bszo")].iloc[[0, 0, 0]]
    single = bszo.assign(run_id=list(SINGLE), group="", exit_code=list(SINGLE.values()))
    single["status"] = ["finished", "unfinished", "unfinished"]
    source = frames.history.rows
    rows = {**source, **dict.fromkeys(SINGLE, source[bszo["run_id"].iloc[0]])}
    both = Frames(pd.concat([runs, single], ignore_index=True), History(rows), ())
    return report(Material(both, both, fill(cells, both.runs), printed_numbers.load()))


@pytest.fixture(scope="module")
def tree(text):
    parser = html5lib.HTMLParser(strict=True)  # raises at the first error
    return parser.parse(text)


def part(tree: ElementTree.Element, name: str) -> ElementTree.Element:
    (found,) = [node for node in tree.iter() if node.get("id") == name]
    return found


def shown(node: ElementTree.Element) -> str:
    return "".join(node.itertext())


def test_page_is_valid_and_ids_are_unique(tree):
    ids = Counter(node.get("id") for node in tree.iter() if node.get("id"))
    assert [name for name, count in ids.items() if count > 1] == []
    targets = {node.get("href", "")[1:] for node in tree.iter(f"{XHTML}a")}
    assert targets <= set(ids)


def test_page_needs_no_network_and_is_small(text):
    assert len(text) < 5_000_000
    outside = text.partition("<script>")[0]
    assert re.findall(r'(?:src|href)="(?!#|data:,)[^"]*"|url\(|@import', outside) == []


def test_what_was_run_comes_first(tree):
    """The newest sweep with its table, its curves and what has no end, before anything of the paper."""
    names = [node.get("id") for node in tree.iter(f"{XHTML}section")]
    assert names[:3] == ["newest", "sweeps", "single"]
    assert names.index("paper") > names.index("runs")
    assert shown(next(tree.iter(f"{XHTML}h1"))) == "quickstart"
    newest = part(tree, "newest")
    rows = part(tree, "sweep-quickstart").iter(f"{XHTML}tr")
    bszo = next(row for row in rows if shown(row[0]) == "BSZO")
    assert [shown(bszo[i]) for i in (1, 4)] == ["0.0003ᵇᵃ", "65.2"]
    assert EDGE in shown(newest)
    assert "running or killed" in shown(newest)
    assert len([n for n in newest.iter(f"{XHTML}div") if n.get("class") == "plot"]) > 5
    assert "6 finished, 1 running or killed" in shown(next(tree.iter(f"{XHTML}header")))


def test_text_of_logs_is_text(text, tree):
    assert "<img" not in text.replace("\\u003c", "<").partition("<script>")[0].replace(NASTY, "")
    assert NASTY in shown(part(tree, "runs-table"))


def test_a_figure_says_what_each_line_is(tree):
    specs = [node.get("data-spec") for node in part(tree, "newest").iter() if node.get("data-spec")]
    rows = [row for spec in specs for of in json.loads(spec)["datasets"].values() for row in of]
    assert any("BSZO, lr 0.0001, run bszo-" in row.get("series", "") for row in rows)


@pytest.fixture(scope="module")
def address(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, address):
    """The page; whatever the browser complains about, or asks the network for, fails the test."""
    page = browser.new_page(viewport={"width": 1600, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: r.url.startswith(("file:", "data:")) or complaints.append(r.url))
    page.goto(address)
    yield page
    page.close()
    assert complaints == []


def column(page: Page, table: str, i: int) -> list[str]:
    return page.eval_on_selector_all(
        f"#{table} tbody tr",
        f"rows => rows.filter(row => row.offsetParent).map(row => row.cells[{i}].innerText)",
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_page_fits_its_window(page, width, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    page.locator("#newest .plot").first.scroll_into_view_if_needed()  # plots are drawn when seen
    page.wait_for_selector("#newest .plot.drawn svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.eval_on_selector_all(
        "body p, body td", "all => all.map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 12
    drawn = page.locator("#newest .plot.drawn svg").first.bounding_box()
    assert drawn["width"] > 280
    ink, ground = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert ink != ground


def test_a_table_of_runs_fits_a_laptop_and_an_id_takes_two_lines_at_most(page):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.evaluate("document.querySelectorAll('#runs details').forEach(part => part.open = true)")
    for table in ("single-runs", "runs-table"):
        found = page.locator(f"#{table}")
        wide, there = found.evaluate("e => [e.scrollWidth, e.parentElement.clientWidth]")
        assert wide <= there
        names = found.locator("tbody th").all()[:20]
        ranges = "e => { const r = document.createRange(); r.selectNodeContents(e); return r.getClientRects().length }"
        assert max(name.evaluate(ranges) for name in names) <= 2


def test_tables_sort(page):
    page.evaluate("document.querySelectorAll('#runs details').forEach(part => part.open = true)")
    numbers = sorted(map(float, column(page, "runs-table", 9)))
    header = page.locator("#runs-table thead th").nth(9)  # validation accuracy
    for order, rows in (("ascending", numbers), ("descending", numbers[::-1])):
        header.locator("button").press("Enter")
        expect(header).to_have_attribute("aria-sort", order)
        wait_for(lambda of=rows: [*map(float, column(page, "runs-table", 9))] == of, order, 10)


def test_filters_work_together_without_a_script(page):
    page.evaluate("document.querySelectorAll('#runs details').forEach(part => part.open = true)")
    everything = len(column(page, "runs-table", 0))
    page.select_option("#filter-model", label="OPT-13B")
    of_model = column(page, "runs-table", 4)
    page.select_option("#filter-method", label="HiZOO")
    both = column(page, "runs-table", 4)
    assert set(both) == {"HiZOO"}
    assert 0 < len(both) < len(of_model) < everything
    page.click("#filters button")
    assert len(column(page, "runs-table", 0)) == everything
