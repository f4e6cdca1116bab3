"""Runs on several processes: the bits of one process, and an end of all if one is lost."""

import re
import signal
import socket

import pytest

from tests.support.crowd import environments, gather_results
from tests.support.divided_runs import told_by
from tests.support.victims import KILLED, At, exit_statuses, what_it_came_to
from zo.distributed.processes import ProcessesError, join
from zo.run.__main__ import main
from zo.run.logs.tracking import read_status
from zo.run.store.directory import directory_of, load
from zo.run.store.rows import read_rows

pytestmark = pytest.mark.process

INTERRUPTED = 143
IN_STEP = "zo.run.losses.BatchLoss.__call__"
SETTINGS = ("optimizer=bszo", "eval_tokens=256", "distributed.timeout=60", "eval_every=3")
SETTINGS += ("distributed.check_every=2", "threads=1")

LAST = ("adapter=layers", "adapter.layers=last:1")
"""Each process keeps the hidden states of the other blocks, as far as it needs them."""

EQUAL = [
    (4, ("optimizer.k=3", "distributed.shards=2", "precision=bf16")),
    (2, ("optimizer=lozo", "precision.restore=factors", "distributed.shards=4", "precision=bf16")),
    (
        3,
        (
            "optimizer=mezo",
            "optimizer.n=2",
            "task.objective=lm",
            "precision.restore=snapshot",
            *LAST,
        ),
    ),
]


def log(directory):
    return (directory / "log.txt").read_text()


@pytest.mark.parametrize(("world", "settings"), EQUAL)
def test_a_run_on_several_processes_has_the_bits_of_one(frozen, world, settings):
    one, several = frozen(2, *SETTINGS, *settings)
    assert main([str(one)]) == 0
    assert exit_statuses(several, world) == [0] * world, log(several)
    assert what_it_came_to(several) == what_it_came_to(one)
    row, later = read_rows(several)[:2]
    passes = {4: 4 * 2, 2: 2 * 4, 3: 2 * 3}[world]  # of three processes two make two passes each
    assert row["dist/bytes"] == 8 * passes
    assert ("3 does not divide 4: " in log(several)) == (world == 3)
    assert row["time/wait_s"] >= later["time/exchange_s"] > 0  # that of the step before


def test_killed_and_terminated_processes_end_the_run_on_all_and_any_number_goes_on(frozen):
    run, twin = frozen(2, *SETTINGS, "optimizer.k=3", "checkpoint.full_every=3")
    evaluating = At("zo.lm.scoring.candidates.CandidateScorer.evaluate")
    moving = At("zo.weights.updates.ParameterUpdate.apply", 60)
    assert main([str(twin)]) == 0
    assert exit_statuses(run, 2, {1: At(IN_STEP, 6)}) == [INTERRUPTED, KILLED], log(run)
    assert read_status(run)["run/status"] == "interrupted"
    assert read_status(run)["run/signal"] == "lost process"
    assert len(read_rows(run)) == 2
    assert exit_statuses(run, 3, {0: evaluating}) == [KILLED, INTERRUPTED, INTERRUPTED]
    assert exit_statuses(run, 4, {2: moving}).count(KILLED) == 1
    terminated = At(IN_STEP, 1, number=signal.SIGTERM)
    assert exit_statuses(run, 2, {0: terminated}) == [INTERRUPTED, INTERRUPTED], log(run)
    assert read_status(run)["run/signal"] == "SIGTERM"
    assert exit_statuses(run, 2) == [0, 0], log(run)
    assert what_it_came_to(run) == what_it_came_to(twin)


def test_a_process_that_never_comes_or_hangs_ends_the_run_of_the_others_within_the_timeout(frozen):
    (run,) = frozen(1, *SETTINGS, "distributed.timeout=8")
    assert exit_statuses(run, 2, {1: At("zo.run.runner.join")}) == [INTERRUPTED, KILLED]
    assert "no connection at 127.0.0.1" in log(run)
    hangs = {1: At(IN_STEP, 4, number=signal.SIGSTOP)}
    assert exit_statuses(run, 2, hangs, rest_s=0) == [INTERRUPTED, None], log(run)
    assert read_status(run)["run/status"] == "interrupted"


def test_weights_that_differ_stop_the_run_after_the_last_step_where_they_agreed(frozen):
    run, twin = frozen(2, *SETTINGS, "precision.restore=snapshot")
    told = gather_results(2, told_by, load(run), "a flipped bit")
    assert told[0] == told[1]
    assert "step 4: " in told[0]
    assert "of process 1 differs" in told[0]
    assert "after step 2" in told[0]
    assert len(read_rows(run)) == 2
    assert read_status(run)["run/status"] == "failed"
    assert gather_results(2, told_by, load(run)) == ["finished", "finished"]
    assert main([str(twin)]) == 0
    assert what_it_came_to(run) == what_it_came_to(twin)


@pytest.mark.parametrize(
    ("sabotage", "settings", "sentence"),
    [
        ("another rate", (), "process 1 on .*: lr is 0.0002, and 0.0001 on process 0; start all"),
        ("other code", (), "the code of zo is other, .* install the same version everywhere"),
        ("another device", (), "the device is another GPU, .* philox does not"),
        ("no directory", (), "process 1: DirectoryError: no .* give an out= that all"),
        ("no model", (), "process 1: ModelError: model.path: it is not there"),
        ("", ("optimizer=mezo",), "3 processes for 2 forward passes per step .* start at most 2"),
        ("", ("optimizer=adam",), "optimizer=adam: backpropagation runs in one process"),
        (
            "",
            ("optimizer=lozo", "precision.restore=factors"),
            r"3 processes for 1 forward passes per step \(restore=factors",
        ),
    ],
)
def test_what_processes_cannot_do_together_is_one_sentence_on_all(
    make_run, sabotage, settings, sentence
):
    cfg = make_run(*settings)
    told = gather_results(2 if sabotage else 3, told_by, cfg, sabotage)

    assert re.search(sentence, told[0]), told
    assert len({re.sub("^process 1: [A-Za-z]+: ", "", of) for of in told}) == 1
    assert not directory_of(cfg).exists()


def test_a_port_that_is_taken_is_one_sentence(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for key, value in environments(2, taken.getsockname()[1])[0].items():
            monkeypatch.setenv(key, value)
        with pytest.raises(ProcessesError, match="the port is taken"):
            join(2)
