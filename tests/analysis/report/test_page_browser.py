"""The page in a real browser: Debian's package chromium, headless, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.analysis.report.report_page import write_page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
WIDTHS = (400, 1600)
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here: apt install chromium"),
    pytest.mark.xdist_group("page"),  # one process starts the browser
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page(tmp_path_factory.mktemp("page") / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator["sync_api.Browser"]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: "sync_api.Browser", address: str) -> Iterator["sync_api.Page"]:
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


def column(page: "sync_api.Page", table: str, i: int) -> list[str]:
    return page.eval_on_selector_all(
        f"#{table} tbody tr:not([hidden])", f"rows => rows.map(row => row.cells[{i}].innerText)"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_page_fits_its_window(page: "sync_api.Page", width: int, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    page.wait_for_selector("#newest .plot.drawn svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.eval_on_selector_all(
        "body p, body td", "all => all.map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 12
    panel = page.locator("#newest .plot.drawn svg").first.bounding_box()
    assert panel is not None
    assert panel["width"] > 280
    ink, ground = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert ink != ground


def test_tables_sort_and_come_back(page: "sync_api.Page") -> None:
    page.evaluate("document.querySelectorAll('#runs details').forEach(part => part.open = true)")
    before = column(page, "runs-table", 9)
    header = page.locator("#runs-table thead th").nth(9)  # validation accuracy
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    numbers = [float(value) for value in column(page, "runs-table", 9)]
    assert numbers == sorted(numbers)
    header.locator("button").press("Enter")
    assert [float(v) for v in column(page, "runs-table", 9)] == sorted(numbers, reverse=True)
    header.locator("button").click()
    assert column(page, "runs-table", 9) == before


def test_filters_work_together_and_live_in_the_address(page: "sync_api.Page", address: str) -> None:
    everything = len(column(page, "runs-table", 0))
    page.select_option("#filter-model", "opt-13b")
    page.select_option("#filter-method", "hizoo")
    assert page.evaluate("location.hash") == "#model=opt-13b&method=hizoo"
    assert "rows" in page.locator("#count").inner_text()
    assert page.locator("#newest .legend [data-method=bszo].off").count() > 0
    page.goto("about:blank")
    page.goto(f"{address}#task=trec&precision=fp16")
    assert page.input_value("#filter-task") == "trec"
    assert 0 < len(column(page, "runs-table", 0)) < everything
    page.evaluate("location.hash = '#method=nobody'")  # a stale address filters nothing
    page.wait_for_function("document.getElementById('filter-task').value === ''")
    assert len(column(page, "runs-table", 0)) == everything
    page.select_option("#filter-task", "sst2")
    page.click("#reset")
    page.wait_for_function("location.hash === ''")
    assert len(column(page, "runs-table", 0)) == everything
