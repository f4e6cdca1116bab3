"""The audit finds what is wrong, and only that: break a number, and a finding appears that names it."""

import shutil
from pathlib import Path

import pytest

from analysis.paper.printed_numbers import DIRECTORY, load
from tools.audit_paper import audit_page, statistics_page
from tools.audit_paper.checks import audit


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(DIRECTORY, tmp_path / "paper")


def findings(directory: Path) -> set[str]:
    outcomes = audit(load(directory))
    failed = outcomes[~outcomes["ok"]]
    return set(failed["location"] + ": " + failed["what"])


def test_what_the_paper_has_wrong(copy: Path) -> None:
    """The committed findings and statistics, whose numbers were worked out by hand."""
    written = (*audit_page.write(copy), *statistics_page.write(copy))
    texts = [path for path in written if path.suffix in (".md", ".csv")]  # pictures depend on fonts
    assert len(texts) == 7
    for path in texts:
        assert path.read_bytes() == (DIRECTORY / path.name).read_bytes()


@pytest.mark.parametrize(
    ("file", "old", "new", "finding"),
    [
        ("table1", "cb,mezo,std,5.56", "4.98", "MeZO, CB: sample standard deviation"),
        ("table11", "rte,bszo,2,test_accuracy,68.23", "68.95", "BSZO, RTE: mean of 5 runs"),
        ("table3", "copa,bszo,test_accuracy,79.0", "78.0", "BSZO, Avg: mean over 6 tasks"),
        ("table3", "rte,mezo,test_accuracy,64.98,bold", "", "MeZO, RTE: bold for the best two"),
        ("prose", 'average on RoBERTa-large",3.66', "3.65", "lead of BSZO-B over MeZO-Adam"),
        ("table10", "bszo,lr,2,5e-7", "5e-6", "OPT-13B, BSZO: values of the grid, each once"),
    ],
)
def test_a_broken_number_is_found(copy: Path, file: str, old: str, new: str, finding: str) -> None:
    """`new` replaces what stands behind the last comma of `old`."""
    path = copy / f"{file}.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, f"{old.rpartition(',')[0]},{new}", 1))
    new_findings = findings(copy) - findings(DIRECTORY)
    assert any(finding in found for found in new_findings)
