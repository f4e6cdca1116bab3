"""python -m benchmarks.steps, from the command line to table and figure, on a model of two layers."""

import csv

import pandas as pd
import pytest
import torch

from benchmarks.steps import __main__ as command
from benchmarks.steps import measure, rows
from benchmarks.steps.cases import FORWARD, cases, split
from benchmarks.steps.measure import Peak, Times, in_turns
from benchmarks.steps.rows import COLUMNS, Records
from zo.config import register

pytestmark = pytest.mark.process

LINE = ["--device", "cpu", "--threads", "1", "--shapes", "opt-tiny", "--examples", "sst2"]
LINE += ["--methods", "bszo", "--restores", "subtract", "snapshot", "--noises", "torch"]
LINE += ["--rounds", "1", "--batch-size", "2"]
COMMON = {"batch_size": 16, "batches": 1, "device": "cpu", "threads": 1}


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_from_the_command_line_to_table_and_figure(tmp_path, monkeypatch, capsys):
    assert command.main([*LINE, "--out", str(tmp_path)]) == 0
    found = read(tmp_path / "steps.csv")
    assert [(r["method"], r["restore"]) for r in found] == [
        (FORWARD, "subtract"),
        ("bszo", "subtract"),
        ("bszo", "snapshot"),
    ]
    forward, subtract, snapshot = found
    for row in found:
        parts = float(row["forward_ms"]) + float(row["weights_ms"])
        assert 0 < parts <= 1.001 * float(row["step_ms"])
        assert 0 < float(row["before_gib"]) < float(row["peak_gib"])
        assert row["code"] != row["revision"] != ""
        assert row["machine"].startswith("cpu")
    assert (forward["plain_ms"], float(forward["weights_ms"])) == ("", 0)
    assert float(subtract["weights_ms"]) > 0
    assert float(subtract["plain_ms"]) == float(snapshot["plain_ms"]) > 0, "one plain step for both"
    weights_gib = int(subtract["values"]) * 4 / 2**30
    more = float(snapshot["peak_gib"]) - float(subtract["peak_gib"])
    assert 0.5 * weights_gib < more < 2 * weights_gib, "a snapshot is one more copy of the weights"
    assert "| BSZO | snapshot | torch |" in (tmp_path / "steps.md").read_text()
    assert (tmp_path / "step_times.png").stat().st_size > 5_000
    assert (tmp_path / "step_times.pdf").read_bytes().startswith(b"%PDF")

    written = (tmp_path / "steps.csv").read_bytes()
    monkeypatch.setattr(command, "loaded", None)  # whatever is measured now fails
    assert command.main([*LINE, "--out", str(tmp_path)]) == 0
    assert "0 to measure, 3 in the csv" in capsys.readouterr().out
    assert (tmp_path / "steps.csv").read_bytes() == written


def test_a_case_that_fails_is_named_and_the_others_are_measured(monkeypatch, tmp_path):
    register()

    def peak(case):
        if case.restore == "snapshot":
            raise torch.OutOfMemoryError("no room for a copy")
        return Peak(1.0, 0.5)

    monkeypatch.setattr(measure, "peak_of_child", peak)
    common = COMMON | {"batch_size": 2, "threads": torch.get_num_threads()}
    pairs = [("subtract", "torch"), ("snapshot", "torch")]
    wanted = cases(["opt-tiny"], None, ["sst2"], ["mezo"], pairs, **common)
    records = Records(tmp_path / "steps.csv")
    failed = command.measure(split(wanted)[0], 1, (), records)
    assert list(failed.values()) == ["no room for a copy"]
    assert list(records.rows["method"]) == [FORWARD, "mezo"]


def row(**changes):
    texts = {"machine": "m", "device": "cpu", "shape": "opt-125m", "dtype": "float32"}
    texts |= {"examples": "sst2", "method": "bszo", "restore": "subtract", "noise": "torch"}
    texts |= {"code": "c", "revision": "r", "versions": "v", "date": "2026-01-01"}
    counts = dict.fromkeys(("threads", "batches", "rounds"), 1)
    counts |= {"batch_size": 16, "forwards": 3, "values": 1000}
    times = {"step_ms": 50.0, "forward_ms": 20.0, "weights_ms": 25.0, "processor_ms": 50.0}
    times |= {"peak_gib": 1.5, "before_gib": 0.5}
    times |= {"passes": 5.0, "state_bytes": 0}
    return texts | counts | times | changes


def cells(measured, i):
    (table,) = rows.tables(pd.DataFrame(measured, columns=COLUMNS))
    shown = zip(table.columns, table.frame.to_numpy()[i], strict=True)
    return {head: cell.text for head, cell in shown}


def test_a_newer_row_takes_the_place_of_the_same_case_s_older_one(tmp_path):
    records = Records(tmp_path / "steps.csv")
    records.add([row(state_bytes=None), row(restore="snapshot")])
    records.add([row(step_ms=123.4567891, state_bytes=2**40)])
    again = Records(tmp_path / "steps.csv").rows
    assert again["step_ms"].tolist() == records.rows["step_ms"].tolist() == [50.0, 123.457]
    assert again["state_bytes"].tolist() == [0, 2**40]


def test_a_row_is_compared_with_the_released_step_forward_mezo_and_the_paper():
    forward = row(method=FORWARD, step_ms=7.0, weights_ms=0.0, peak_gib=1.25)
    mezo = row(method="mezo", peak_gib=1.45, step_ms=40.0)
    measured = [row(plain_ms=200.0), row(plain_ms=200.0, restore="snapshot"), mezo, forward]
    assert cells(measured, 0)["step"] == "one forward pass"
    found = cells(measured, 2)
    assert (found["step"], found["restore"], found["rest"]) == ("BSZO", "subtract", "5.0")
    assert (found["released"], found["× faster"], found["passes"]) == ("200.0", "4.0", "5")
    ratios = [
        found[f"{name}"] for name in ("memory × forward's", "memory × MeZO's", "time × MeZO's")
    ]
    assert ratios == ["1.33", "1.05", "1.25"]  # 1.0 / 0.75, 1.0 / 0.95, 50 / 40
    assert cells(measured, 3)["memory × MeZO's"] == "–", "MeZO was not measured under snapshot"
    (paper,) = rows.tables(pd.DataFrame([row(shape="opt-1.3b")], columns=COLUMNS))
    assert "paper, ms" in paper.columns


def test_cases_are_timed_in_turns_and_the_first_round_does_not_count():
    order = []

    class Fake:
        def __init__(self, name, seconds):
            self.name, self.seconds = name, iter(seconds)

        def step(self):
            order.append(self.name)
            return Times(next(self.seconds), 1.0)

    found = in_turns([Fake("a", [99, 1, 5, 2]), Fake("b", [99, 7, 7, 8])], rounds=3)
    assert order == ["a", "b"] * 4
    assert [times.step for times in found] == [2, 7]
