"""python -m benchmarks.steps, from the command line to table and figure, on a model of two layers."""

import csv
import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.steps import __main__ as command
from benchmarks.steps import ceilings, figure, session, tables
from benchmarks.steps.cases import FORWARD, Case, cases, split, ways
from benchmarks.steps.measure import Peak, Times, in_turns
from benchmarks.steps.records import Records, Row
from zo.config import register
from zo.weights.constraints import RESTORE_POLICIES

pytestmark = pytest.mark.process

LINE = ["--device", "cpu", "--threads", "1", "--shapes", "opt-tiny", "--examples", "sst2"]
LINE += ["--methods", "bszo", "--restores", "subtract", "snapshot", "--noises", "torch"]
LINE += ["--rounds", "1", "--batch-size", "2"]
COMMON = {"batch_size": 16, "batches": 1, "device": "cpu", "threads": 1}


@pytest.fixture
def few_repeats(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(ceilings, "REPEATS", 1)
    yield
    torch.set_num_threads(before)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_from_the_command_line_to_table_and_figure(tmp_path, few_repeats, monkeypatch, capsys):
    assert command.main([*LINE, "--out", str(tmp_path)]) == 0
    rows = read(tmp_path / "steps.csv")
    assert [(r["method"], r["restore"]) for r in rows] == [
        (FORWARD, "subtract"),
        ("bszo", "subtract"),
        ("bszo", "snapshot"),
    ]
    forward, subtract, snapshot = rows
    for row in rows:
        parts = float(row["forward_ms"]) + float(row["weights_ms"])
        assert float(row["roofline_forward_ms"]) > 0
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
    monkeypatch.setattr(session.Session, "_timed", None)  # whatever is measured now fails
    assert command.main([*LINE, "--out", str(tmp_path)]) == 0
    assert "0 to measure, 3 in the csv" in capsys.readouterr().out
    assert (tmp_path / "steps.csv").read_bytes() == written


def test_a_dry_run_writes_nothing_and_says_why_a_case_is_not_measured(tmp_path, capsys):
    line = [*LINE, "--restores", *RESTORE_POLICIES, "--out", str(tmp_path / "new"), "--dry-run"]
    assert command.main(line) == 0
    assert "opt-tiny float32 sst2 bszo subtract torch" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


def test_what_a_run_refuses_is_not_measured_and_the_reason_is_the_run_s():
    register()
    good = Case("opt-tiny", "float32", "sst2", "mezo", "subtract", "torch", **COMMON)
    bad = replace(good, restore="wishful")
    accepted, refused = split([good, bad])
    assert list(accepted) == [good]
    assert accepted[good].precision.restore == "subtract"
    assert accepted[good].model.architecture["num_hidden_layers"] == 2
    assert "precision.restore" in refused[bad]


def test_defaults_are_every_policy_and_the_paper_s_way():
    pairs = ways(None, None)
    assert pairs[0] == ("subtract", "torch")
    assert {restore for restore, _ in pairs} == set(RESTORE_POLICIES)
    assert ways(["snapshot"], ["torch"]) == [("snapshot", "torch")]
    found = list(cases(["opt-125m"], None, None, None, [("subtract", "torch")], **COMMON))
    assert [c.method for c in found if c.examples == "trec"] == [FORWARD, "bszo"]
    assert len([c for c in found if c.examples == "sst2"]) == 7
    (only,) = {c.dtype for c in cases(["opt-13b"], None, None, None, pairs, **COMMON)}
    assert only == "bfloat16"


@pytest.fixture
def in_process(monkeypatch, tmp_path):
    """A session on this CPU that measures no memory, and a function that makes cases of one method."""
    register()
    monkeypatch.setattr(session, "peak_of_child", lambda case: Peak(1.0, 0.5))
    monkeypatch.setattr(ceilings, "REPEATS", 1)
    records = Records(tmp_path / "steps.csv")
    made = session.Session(torch.device("cpu"), 1, (), records, lambda words: None)
    common = COMMON | {"batch_size": 2, "threads": torch.get_num_threads()}
    pairs = [("subtract", "torch"), ("snapshot", "torch")]
    return made, list(cases(["opt-tiny"], None, ["sst2"], ["mezo"], pairs, **common))


def test_what_does_not_fit_together_is_not_in_memory_together(in_process, monkeypatch):
    made, wanted = in_process
    alive, most = weakref.WeakSet(), []

    class Watched(session.Stepper):
        def __init__(self, *args):
            gc.collect()
            alive.add(self)
            most.append(len(alive))
            super().__init__(*args)

    monkeypatch.setattr(session, "Stepper", Watched)
    made.measure(split(wanted)[0], lambda case: None)
    assert most == [1, 1, 2], (
        "both restore policies are timed in turns, the forward pass before them"
    )
    monkeypatch.setattr(session, "TOGETHER", 0)
    most.clear()
    made.measure(split(wanted)[0], lambda case: None)
    assert most == [1, 1, 1]


def test_a_case_that_fails_is_named_and_the_others_are_measured(in_process, monkeypatch):
    made, wanted = in_process

    def fail(case):
        if case.restore == "snapshot":
            raise torch.OutOfMemoryError("no room for a copy")
        return Peak(1.0, 0.5)

    monkeypatch.setattr(session, "peak_of_child", fail)
    done = []
    made.measure(split(wanted)[0], done.append)
    assert set(done) == set(wanted)
    assert list(made.failed.values()) == ["no room for a copy"]
    assert [r.method for r in made.records.rows] == [FORWARD, "mezo"]


def row(**changes) -> Row:
    texts = {"machine": "m", "device": "cpu", "shape": "opt-125m", "dtype": "float32"}
    texts |= {"examples": "sst2", "method": "bszo", "restore": "subtract", "noise": "torch"}
    texts |= {"code": "c", "revision": "r", "versions": "v", "date": "2026-01-01"}
    counts = dict.fromkeys(("threads", "batches", "rounds"), 1)
    counts |= {"batch_size": 16, "forwards": 3, "values": 1000}
    times = {"step_ms": 50.0, "forward_ms": 20.0, "weights_ms": 25.0, "processor_ms": 50.0}
    times |= {"roofline_forward_ms": 8.0, "roofline_weights_ms": 12.0}
    times |= {"plain_ms": None, "plain_processor_ms": None, "peak_gib": 1.5, "before_gib": 0.5}
    rates = dict.fromkeys(("gb_per_s", "gflop_per_s", "normals_per_ns"), 1.0)
    return Row(**texts | counts | times | rates | changes)


def test_what_is_shown_has_the_digits_of_the_csv(tmp_path):
    records = Records(tmp_path / "steps.csv")
    records.add([row(step_ms=1234.56789)])
    assert [r.step_ms for r in records.rows] == [1234.57]
    assert Records(tmp_path / "steps.csv").rows == records.rows


def test_the_csv_keeps_one_row_per_case_and_the_newest(tmp_path):
    records = Records(tmp_path / "deep" / "steps.csv")
    records.add([row(), row(method="mezo", plain_ms=123.4)])
    records.add([row(step_ms=40.0, code="d")])
    again = Records(tmp_path / "deep" / "steps.csv")
    assert (
        again.rows
        == records.rows
        == [row(step_ms=40.0, code="d"), row(method="mezo", plain_ms=123.4)]
    )
    case = Case("opt-125m", "float32", "sst2", "bszo", "subtract", "torch", **COMMON)
    assert again.has("m", case, 1, "d")
    assert not again.has("m", case, 2, "d"), "more rounds are asked for"
    assert not again.has("m", case, 1, "c"), "other code"
    assert not again.has("another machine", case, 1, "d")
    assert not again.has("m", replace(case, threads=2), 1, "d")


def cells(rows, i):
    ((_, lines),) = tables.sections(rows)
    return dict(zip(tables.COLUMNS, lines[i], strict=True))


def test_a_row_is_compared_with_roofline_released_step_forward_and_mezo():
    forward = row(method=FORWARD, step_ms=7.0, weights_ms=0.0, peak_gib=1.25)
    mezo = row(method="mezo", peak_gib=1.45)
    rows = [row(plain_ms=200.0), row(plain_ms=200.0, restore="snapshot"), mezo, forward]
    assert cells(rows, 0)["step"] == "one forward pass"
    found = cells(rows, 2)
    assert (found["step"], found["restore"]) == ("BSZO", "subtract")
    assert (found["roofline"], found["× roofline"], found["rest"]) == ("20", "2.50", "5")
    assert (found["released"], found["× faster"], found["target"]) == ("200", "4.0", "≥ 3×")
    assert (found["× forward's"], found["× MeZO's"]) == ("1.33", "1.05")  # 1.0 / 0.75, 1.0 / 0.95
    assert cells(rows, 3)["× MeZO's"] == "", "MeZO was not measured under snapshot"


def test_the_paper_s_figures_and_the_targets_stand_beside_its_models():
    big = {"shape": "opt-13b", "dtype": "bfloat16", "device": "cuda"}
    found = cells([row(**big)], 0)
    assert (found["paper, ms"], found["paper, GB"], found["target"]) == ("440.5", "30.1", "≤ 150")
    assert cells([row(**big | {"dtype": "float32"})], 0)["paper, ms"] == "", "another dtype"
    assert cells([row(**big, method="lozo")], 0)["target"] == "≤ 80"


def test_the_committed_page_has_the_tables_of_the_committed_csv():
    folder = Path(__file__).parents[2] / "results" / "measured" / "benchmarks"
    shown = (folder / "steps.md").read_text().strip()
    assert shown == tables.markdown(Records(folder / "steps.csv").rows).strip()


def test_the_figure_shows_per_method_the_paper_s_way_and_the_fastest():
    rows = [row(), row(restore="snapshot", step_ms=30.0), row(restore="other", step_ms=40.0)]
    rows += [row(method="mezo"), row(method=FORWARD)]
    assert [(r.method, r.restore) for r in figure.chosen(rows)] == [
        ("mezo", "subtract"),
        ("bszo", "subtract"),
        ("bszo", "snapshot"),
    ]


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
