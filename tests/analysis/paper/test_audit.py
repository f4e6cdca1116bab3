"""The audit finds what is wrong, and only that: break a number, and a finding appears that names it."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis.paper.audit import audit
from analysis.paper.printed_numbers import DIRECTORY, load
from analysis.report.audit_page import write


@pytest.fixture(scope="module")
def outcomes() -> pd.DataFrame:
    return audit(load())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(DIRECTORY, tmp_path / "paper")


def located(outcomes: pd.DataFrame, key: str = "what") -> set[tuple[str, str]]:
    failed = outcomes[~outcomes["ok"]]
    return set(zip(failed["location"], failed[key], strict=True))


def test_what_the_paper_has_wrong(copy: Path) -> None:
    """Findings worked out by hand; the last three of statements.csv."""
    write(copy)
    listed = pd.read_csv(copy / "audit.csv")
    found = set(zip(listed["location"], listed["recomputed"], strict=True))
    assert ("Table 12 (c), OPT-1.3B, RTE, k = 1", "63.5379") in found  # 176 of 277
    assert ("section 5.4", "102.00") in found  # LOZO is not under 100 ms
    assert ("Table 9, Mistral-7B, HiZOO", "4 different of 5") in found
    assert ("Table 3, OPT-1.3B, HiZOO, Avg", "69.4733") in found  # 416.84 / 6
    assert ("Table 3, Mistral-7B, LOZO, WSC", "0 better") in found
    assert ("section 5.3, Mistral-7B", "2.19 on the 5 tasks that both have") in found
    assert ("abstract", "18.18") in found  # 73.76 - 55.58
    assert ("section 5.1 and Table 6", "in no table") in found  # BoolQ


@pytest.mark.parametrize(
    ("file", "old", "new", "location", "what"),
    [
        (
            *("table1.csv", "roberta-large,cb,mezo,std,5.56", "roberta-large,cb,mezo,std,4.98"),
            *("Table 1, RoBERTa-large, MeZO, CB", "sample standard deviation (n − 1)"),
        ),
        (
            *("table11.csv", "rte,bszo,2,test_accuracy,68.23", "rte,bszo,2,test_accuracy,68.95"),
            *("Table 1, RoBERTa-large, BSZO, RTE", "mean of 5 runs"),
        ),
        (
            *("table3.csv", "copa,bszo,test_accuracy,79.0", "copa,bszo,test_accuracy,78.0"),
            *("Table 3, OPT-1.3B, BSZO, Avg", "mean over 6 tasks"),
        ),
        (
            *("table3.csv", "rte,mezo,test_accuracy,64.98,bold", "rte,mezo,test_accuracy,64.98,"),
            *("Table 3, OPT-1.3B, MeZO, RTE", "bold for the best two, highest first"),
        ),
        (
            *("prose.csv", 'RoBERTa-large",3.66', 'RoBERTa-large",3.65'),
            *("section 5.2", "lead of BSZO-B over MeZO-Adam, average on RoBERTa-large"),
        ),
        (
            *("table10.csv", "bszo,lr,2,5e-7", "bszo,lr,2,5e-6"),
            *("Table 10, OPT-13B, BSZO", "values of the grid, each once"),
        ),
    ],
)
def test_a_broken_number_is_found(
    copy: Path, outcomes: pd.DataFrame, file: str, old: str, new: str, location: str, what: str
) -> None:
    path = copy / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert (location, what) not in located(outcomes)
    assert (location, what) in located(audit(load(copy)))


def test_a_mended_number_is_not(copy: Path, outcomes: pd.DataFrame) -> None:
    path = copy / "table12.csv"
    path.write_text(path.read_text().replace("63.58", "63.54"))
    gone = located(outcomes) - located(audit(load(copy)))
    assert gone == {("Table 12 (c), OPT-1.3B, RTE, k = 1", "nearest multiple of 1/277")}
