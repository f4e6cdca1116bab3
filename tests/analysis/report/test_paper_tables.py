"""The command that rebuilds the paper's tables, on cells of the real sweeps and on runs that W&B wrote."""

import csv
import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from analysis.paper.printed_numbers import TABLES, PaperError, load
from analysis.report import paper_settings
from analysis.report.command import main
from analysis.report.table import markdown, show
from analysis.select import sweep_cells
from tests.analysis.make_logs import config, cut_copy, history, summary, write_run

ACCURACIES = [0.5, 0.6]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cells of the sweeps are kept, so that they are asked for once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def table4(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Runs of sweep table4 on OPT-1.3B: two finished, one collapsed, one torn, one that ended twice."""
    cells = sweep_cells.cells(["table4"], cache).set_index(["model", "optimizer"])["run_id"]
    out = tmp_path_factory.mktemp("table4") / "out"

    def write(where: Path, method: str, **changes: Any) -> Path:
        final = summary(2, ACCURACIES, 12, **{"mem/peak_gib": 9.0, "mem/state_mib": 0.0} | changes)
        settings = config(method, 1e-7, model={"name": "opt-1.3b"})
        settings["provenance"] |= {"parameters": 1_315_758_080, "device": "test machine"}
        return write_run(where, cells["opt-1.3b", method], settings, history(2, ACCURACIES), final)

    write(out, "mezo", **{"time/step_ms_median": 110.0})
    write(out, "mezo_adam", **{"mem/peak_gib": 19.0, "mem/state_mib": 10_038.4375})  # 2 x 4 bytes
    write(out, "hizoo", **{"run/status": "collapsed", "run/collapse_step": 3})
    whole = write(out.parent / "whole", "lozo")
    cut_copy(whole, out, whole.stat().st_size // 2)
    write(out, "bszo")
    write(out, "bszo", **{"best/test_accuracy": 0.9})
    return out


def rebuild(cache: Path, results: Path, *arguments: str) -> int:
    return main(["paper", "--cache", str(cache), "--results", str(results), *arguments])


@pytest.fixture(scope="module")
def made(cache: Path, table4: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    assert rebuild(cache, results, "--runs", str(table4), "--only", "2", "4", "6", "7", "9") == 0
    return results / "tables"


def records(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_table_4_says_what_each_cell_is(made: Path) -> None:
    rows = {
        (row["method"], row["quantity"]): row
        for row in records(made / "table4.csv")
        if row["model"] == "opt-1.3b"
    }
    states = {
        method: row["here"] for (method, quantity), row in rows.items() if quantity == "step_ms"
    }
    assert states == {
        "mezo": "finished",
        "mezo_adam": "finished",
        "hizoo": "collapsed",
        "lozo": "unfinished",
        "bszo": "duplicated",
    }
    assert float(rows["mezo", "step_ms"]["difference"]) == pytest.approx(110.0 - 109.7)
    assert float(rows["mezo_adam", "memory_gb"]["measured"]) == pytest.approx(19 * 2**30 / 1e9)
    page = (made / "table4.md").read_text()
    assert "12 of 15 runs of table4 lack (1 unfinished, 10 missing, 1 duplicated)" in page
    assert "`python -m launch.submit sweep=table4` makes them" in page
    assert "on test machine" in page
    listed = {row["status"] for row in records(made / "table4.runs.csv")}
    assert listed == {"finished", "collapsed", "unfinished", "missing", "duplicated"}


def test_table_2_measures_bytes_per_parameter(made: Path) -> None:
    rows = {row["method"]: row for row in records(made / "table2.csv")}
    assert float(rows["mezo_adam"]["bytes_per_parameter"]) == pytest.approx(8.0, rel=1e-6)
    assert float(rows["mezo"]["bytes_per_parameter"]) == 0.0
    assert (rows["lozo"]["runs"], rows["lozo"]["bytes_per_parameter"]) == ("0", "")
    page = (made / "table2.md").read_text()
    assert "| MeZO-Adam | O(n) | O(n) | opt-1.3b | fp32 | 1,315,758,080 | 1e+04 | 8 | 1 |" in page


def test_one_line_per_table(
    cache: Path, table4: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rebuild(cache, tmp_path, "--runs", str(table4), "--only", "4", "6", "8") == 0
    shown = capsys.readouterr().out.splitlines()
    lines = [line for line in shown if line.startswith("Table ") and "from" in line]
    assert lines == [
        "Table  4  6 of 30 numbers from 3 of 15 runs  (Memory (GB) and time per step (ms))"
    ]
    assert any("OPT-1.3B" in line and "Mistral-7B" in line for line in shown)  # the table itself
    assert any("16 of 16 sizes as printed" in line for line in shown)
    assert any("49 of 49 numbers of conf/ as printed" in line for line in shown)


def test_strict_writes_nothing(
    cache: Path, table4: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    assert rebuild(cache, results, "--runs", str(table4), "--only", "4", "--strict") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: 12 of 15 runs of table4 lack")
    assert error.count("\n") == 1
    assert not results.exists()
    assert rebuild(cache, results, "--runs", str(table4), "--only", "2", "--strict") == 2
    assert "no finished run has logged the state of HiZOO, LOZO" in capsys.readouterr().err
    assert rebuild(cache, results, "--only", "7", "--strict") == 0  # needs no runs


def test_wrong_places_are_named(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rebuild(cache, tmp_path, "--only", "4", "--runs", "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err
    with pytest.raises(SystemExit) as refused:
        rebuild(cache, tmp_path, "--only", "13")
    assert refused.value.code == 2


def test_no_runs_at_all(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a directory out every cell is missing, and the paper's numbers stand."""
    monkeypatch.chdir(tmp_path)
    assert rebuild(cache, tmp_path / "r", "--only", "2", "4", "6") == 0
    assert "0 of 30 numbers from 0 of 15 runs" in capsys.readouterr().out
    assert "| MeZO | paper | 9.1 | 109.7 |" in (tmp_path / "r" / "tables" / "table4.md").read_text()


def test_latex_is_well_formed(made: Path) -> None:
    """Balanced groups and rows of one length."""
    for path in made.glob("table*.tex"):
        text = path.read_text()
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") > 0
        assert text.replace(r"\{", "").replace(r"\}", "").count("{") == text.replace(
            r"\{", ""
        ).replace(r"\}", "").count("}")
        for part in text.split(r"\begin{tabular}")[1:]:
            body = part.split(r"\toprule")[1].split(r"\bottomrule")[0].replace(r"\midrule", "")
            lines = [line for line in body.splitlines() if line.strip()]
            assert len({line.replace(r"\&", "").count("&") for line in lines}) == 1
            assert all(line.endswith(r"\\") for line in lines)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex here")
def test_latex_compiles(made: Path) -> None:
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=shutil.copytree(made, made.parent / "compiled"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def test_conf_is_what_tables_7_to_10_print() -> None:
    frame = paper_settings.settings(load())
    assert len(frame) == 49 + 49 + 42 + 49
    assert (frame["difference"].abs() <= 1e-12).all()
    bszo_b = frame[(frame["method"] == "bszo_b") & (frame["quantity"] == "m")]
    assert set(bszo_b["measured"]) == {3.0}  # k + 1, and k comes from bszo.yaml


def test_another_conf_is_found_out(tmp_path: Path) -> None:
    conf = shutil.copytree(paper_settings.CONF, tmp_path / "conf")
    for file, old, new in (
        ("optimizer/lozo.yaml", "rank: 2", "rank: 3"),
        ("model/opt-13b.yaml", "hizoo: [1.0e-5,", "hizoo: [2.0e-5,"),
        ("config.yaml", "patience: 8", "patience: 9"),
    ):
        path = conf / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    frame = paper_settings.settings(load(), conf)
    wrong = frame[frame["difference"].abs() > 1e-12]
    found = wrong.groupby("quantity").size().to_dict()
    assert found == {"rank": 4, "lr": 1, "patience_steps": 4}
    page = markdown(paper_settings.settings_table(10, frame))
    assert (
        "| HiZOO | learning rates | 1e-5, 5e-6, 1e-6, 5e-7, 1e-7 | 2e-5, 5e-6, 1e-6, 5e-7, 1e-7 | no |"
        in page
    )
    (conf / "model" / "opt-13b.yaml").unlink()
    with pytest.raises(PaperError, match=r"there is no file .*opt-13b\.yaml"):
        paper_settings.settings(load(), conf)


def test_sizes_prefer_what_runs_logged() -> None:
    runs = pd.DataFrame(
        {"task.name": ["cb", "cb"], "best/val_n": [50.0, 49.0], "best/test_n": [56.0, None]}
    )
    frame = paper_settings.splits(load(), runs).set_index(["task", "quantity"])
    assert frame.loc[("cb", "validation_size"), "runs"] == 50
    assert frame.loc[("cb", "test_size"), "measured"] == 56
    assert frame.loc[("cb", "train_size"), "run_count"] == 0
    assert frame.loc[("cb", "train_size"), "measured"] == 200
    wrong = paper_settings.splits(load(), runs.assign(**{"best/val_n": 40.0}))
    assert wrong[wrong["difference"] < 0]["task"].tolist() == ["cb"]


def test_narrow_terminal_is_told(made: Path) -> None:
    """A table that does not fit says so; one that does, does not."""
    frame = paper_settings.settings(load())
    table = paper_settings.settings_table(7, frame)
    for width, cut in ((120, False), (60, True)):
        console = Console(width=width, record=True, file=io.StringIO())
        show(table, console)
        assert ("Cut: this table needs" in console.export_text()) == cut


def test_numbers_of_tables(made: Path) -> None:
    assert list(TABLES) == list(range(1, 13))
    assert {path.name for path in made.glob("table*.md")} == {
        f"table{n}.md" for n in (2, 4, 6, 7, 9)
    }


def test_residuals_of_compensated_rounding_are_no_methods_memory():
    runs = pd.DataFrame(
        {
            "status": "finished",
            "optimizer.name": "mezo",
            "model.name": "opt-1.3b",
            "precision.name": "bf16",
            "precision.rounding": ["nearest", "compensated", "compensated"],
            "mem/state_mib": [0.0, 5_000.0, 5_000.0],
            "provenance.parameters": 1.3e9,
        }
    )
    (mezo,) = paper_settings.state(load(), runs).query("method == 'mezo'").to_dict("records")
    assert (mezo["state_mib"], mezo["runs"]) == (0.0, 1)
