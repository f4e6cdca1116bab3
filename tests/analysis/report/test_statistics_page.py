from analysis.paper.printed_numbers import load
from analysis.report.statistics_page import write
from analysis.select.method_scores import Family, paper_families, paper_runs


def test_few_cells_have_ranks_and_no_critical_difference(tmp_path) -> None:
    paper = load()
    family = paper_families(paper)[0]
    few = Family(
        "few", family.cells[family.cells["task"].isin(["rte", "sst2"])], family.methods[:4]
    )
    write(tmp_path, "few cells", paper_runs(paper).iloc[:0], [few])
    page = (tmp_path / "statistics.md").read_text()
    assert page.startswith("# Statistics: few cells\n\n> Over up to ")
    assert "no critical difference: Friedman's test does not reject at 5%" in page
