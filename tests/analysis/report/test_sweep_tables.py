import csv
from pathlib import Path

import pytest

from analysis.report.command import main
from tests.analysis.make_logs import config, history, summary, write_run


def make(logs: Path, results: Path, *more: str) -> Path:
    assert (
        main(["tables", "quickstart", "--runs", str(logs), "--results", str(results), *more]) == 0
    )
    return results / "quickstart"


@pytest.fixture(scope="module")
def made(quickstart: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the miniature sweep, to be read only."""
    return make(quickstart, tmp_path_factory.mktemp("results"))


def records(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


def test_values_by_hand(made: Path) -> None:
    """zero-shot gets examples 1-10 right, mezo 1-17, bszo 1-16: discordant 7 and 6, all one way."""
    zero, mezo, bszo = records(made / "table.csv")
    assert (zero["method"], zero["lr"], zero["gain_points"], zero["p_mcnemar"]) == (
        *("zero_shot", ""),
        *("", ""),
    )
    assert (mezo["method"], float(mezo["lr"]), mezo["best_step"]) == ("mezo", 1e-4, "20")
    assert (mezo["val_accuracy"], mezo["val_n"], mezo["test_accuracy"]) == ("0.75", "20", "0.85")
    assert float(mezo["gain_points"]) == 35.0
    assert float(mezo["p_mcnemar"]) == 2 / 2**7
    assert (mezo["step_ms"], mezo["forwards_per_step"], mezo["forwards_to_best"]) == (
        *("50", "2"),
        "40",
    )
    # Wilson, 17 of 20, z = 1.95996: (0.85 + z^2/40 -+ z sqrt(0.1275/20 + z^2/1600)) / (1 + z^2/20)
    assert float(mezo["test_low"]) == pytest.approx(0.63958, abs=1e-5)
    assert float(mezo["test_high"]) == pytest.approx(0.94763, abs=1e-5)
    assert (bszo["run_id"], float(bszo["gain_points"])) == ("bszo-4", 30.0)
    assert float(bszo["p_mcnemar"]) == 2 / 2**6
    assert bszo["forwards_to_best"] == "120"


def test_unfinished_runs_are_marked(logs: Path, tmp_path: Path) -> None:
    """hizoo has only an unfinished run, lozo has collapsed, mezo lacks one learning rate."""
    running = history(3, [0.5, 0.6])
    write_run(logs, "hizoo-4", config("hizoo", 1e-4), running, {})
    gone = {"run/status": "collapsed", "run/collapse_step": 3}
    write_run(logs, "lozo-4", config("lozo", 1e-4), running[:4], gone)
    write_run(logs, "mezo-6", config("mezo", 1e-6), history(2, [0.5, 0.5]), {})
    write_run(logs, "bszo-6", config("bszo", 1e-6), [], {})
    directory = make(logs, tmp_path)
    page = (directory / "table.md").read_text()
    rows = {cells(line)[0]: cells(line) for line in page.splitlines() if line.startswith("| ")}
    assert rows["HiZOO"][1:6] == ["–", "–", "–", "–ᵇ", "–"]
    assert rows["LOZO"][1:6] == [r"\*", r"\*", r"\*", r"\*ᶜ", r"\*"]
    assert rows["MeZO"][1] == "0.0001ᵃ"
    assert "ᵃ chosen without lr 1e−06 (stopped at step 10), which has not finished" in page
    assert "lr 1e−06 (stopped before its first step)" in page
    assert "ᵇ no run of HiZOO has finished (hizoo-4); `python train.py sweep=quickstart`" in page
    assert "ᶜ every run of LOZO collapsed (non-finite loss): lr 0.0001 at step 3" in page
    assert (
        "| HiZOO | 0.0001 | – | – | – | – stopped at step 10 |"
        in (directory / "grid.md").read_text()
    )
    found = {row["method"]: row for row in records(directory / "table.csv")}
    assert (found["hizoo"]["status"], found["hizoo"]["test_accuracy"]) == ("unfinished", "")
    assert found["lozo"]["status"] == "collapsed"
    latex = (directory / "table.tex").read_text()
    assert r"--\textsuperscript{b}" in latex
    assert r"\texttt{python train.py sweep=quickstart}" in latex


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence that the command says when it stops with exit code 2."""
    assert main(["tables", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_accuracy_must_agree_with_predictions(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    final = summary(2, [0.5, 0.9], 12, **{"best/test_accuracy": 0.65})
    write_run(logs, "liar", config("mezo", 3e-4), history(2, [0.5, 0.9]), final)
    said = fails(capsys, "quickstart", "--runs", str(logs), "--results", str(tmp_path))
    assert "run liar logs a test accuracy of 0.650000, but its predictions have 0.600000" in said
    assert not (tmp_path / "quickstart").exists()
