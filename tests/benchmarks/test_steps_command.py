"""python -m benchmarks.steps, from the command line to table and figure, on a small model."""

import pandas as pd
import pytest
import torch

from benchmarks.steps import __main__ as command
from benchmarks.steps import measure
from benchmarks.steps.cases import FORWARD
from benchmarks.steps.measure import Peak
from benchmarks.steps.rows import COLUMNS, add, read, tables

pytestmark = pytest.mark.process

LINE = ["--device", "cpu", "--threads", "1", "--shapes", "reviews-tiny", "--examples", "sst2"]
LINE += ["--methods", "bszo", "--restores", "subtract", "snapshot", "--noises", "torch"]
LINE += ["--rounds", "1", "--batch-size", "2"]


def test_from_the_command_line_to_table_and_figure(tmp_path, monkeypatch, capsys):
    assert command.main([*LINE, "--out", str(tmp_path)]) == 0
    found = read(tmp_path / "steps.csv")
    assert list(found["method"]) == [FORWARD, "bszo", "bszo"]
    assert list(found["restore"]) == ["subtract", "subtract", "snapshot"]
    forward, subtract, snapshot = found.to_dict("records")
    assert (found["forward_ms"] + found["weights_ms"] <= 1.001 * found["step_ms"]).all()
    assert (found["before_gib"].between(0, found["peak_gib"], inclusive="neither")).all()
    assert found["machine"].str.startswith("cpu").all()
    assert forward["weights_ms"] == 0
    assert subtract["weights_ms"] > 0
    weights_gib, more = subtract["values"] * 4 / 2**30, snapshot["peak_gib"] - subtract["peak_gib"]
    assert 0.5 * weights_gib < more < 2 * weights_gib, "a snapshot is one more copy of the weights"
    assert "| BSZO | snapshot | torch |" in (tmp_path / "steps.md").read_text()
    assert (tmp_path / "step_times.png").stat().st_size > 5_000

    written = (tmp_path / "steps.csv").read_bytes()
    monkeypatch.setattr(command, "loaded", None)  # whatever is measured now fails
    assert command.main([*LINE, "--out", str(tmp_path)]) == 0
    assert "0 to measure, 3 in the csv" in capsys.readouterr().out
    assert (tmp_path / "steps.csv").read_bytes() == written


def test_a_case_that_fails_is_named_and_the_others_are_measured(monkeypatch, tmp_path, capsys):
    def peak(case):
        if case.restore == "snapshot":
            raise torch.OutOfMemoryError("no room for a copy")
        return Peak(1.0, 0.5)

    monkeypatch.setattr(measure, "peak_of_child", peak)
    assert command.main([*LINE, "--out", str(tmp_path)]) == 1
    assert "bszo snapshot torch: no room for a copy" in " ".join(capsys.readouterr().out.split())
    assert list(read(tmp_path / "steps.csv")["restore"]) == ["subtract", "subtract"]


def row(**changes):
    texts = {"machine": "m", "device": "cpu", "shape": "opt-125m", "dtype": "float32"}
    texts |= {"examples": "sst2", "method": "bszo", "restore": "subtract", "noise": "torch"}
    texts |= {"code": "c", "versions": "v", "date": "2026-01-01"}
    numbers = {"threads": 1, "batches": 1, "rounds": 1, "batch_size": 16, "values": 1000}
    numbers |= {"step_ms": 50.0, "forward_ms": 20.0, "weights_ms": 25.0, "passes": 5.0}
    return texts | numbers | {"peak_gib": 1.5, "before_gib": 0.5} | changes


def test_a_newer_row_takes_the_place_of_the_same_case_s_older_one(tmp_path):
    path = tmp_path / "steps.csv"
    add(path, [row(state_bytes=None), row(restore="snapshot", state_bytes=0)])
    add(path, [row(step_ms=123.4567891, state_bytes=2**40)])
    assert read(path)["step_ms"].tolist() == [50.0, 123.457]
    assert read(path)["state_bytes"].tolist() == [0, 2**40]


def test_a_row_is_compared_with_the_paper_s_way_forward_and_mezo():
    forward = row(method=FORWARD, step_ms=7.0, weights_ms=0.0, peak_gib=1.25)
    mezo = row(method="mezo", peak_gib=1.45, step_ms=40.0)
    measured = [row(), row(restore="snapshot", step_ms=12.5, forward_ms=5.0, weights_ms=2.5)]
    measured += [mezo, forward]
    (table,) = tables(pd.DataFrame(measured, columns=COLUMNS))
    shown = table.frame.map(lambda cell: cell.text)
    assert list(shown["step"]) == ["one forward pass", "MeZO", "BSZO", "BSZO"]
    wanted = {"restore": "subtract", "rest": "5.0", "× faster": "1.0"}
    wanted |= {"passes": "5", "time × MeZO's": "1.25"}  # 50 / 40
    wanted |= {"memory × forward's": "1.33", "memory × MeZO's": "1.05"}  # 1.0 / 0.75, 1.0 / 0.95
    assert dict(shown.iloc[2][list(wanted)]) == wanted
    assert shown["× faster"][3] == "4.0"
    assert shown["memory × MeZO's"][3] == "–", "MeZO was not measured under snapshot"
