"""Runs on several processes: the bits of one process, and an end of all if one is lost."""

import os
import random
import re
import signal
import socket
from collections import Counter
from functools import partial

import pytest

from tests.support.crowd import environment, gather_results
from tests.support.divided_runs import exit_statuses, told_by
from tests.support.victims import At, here, what_it_came_to
from zo.distributed.processes import ProcessesError, join
from zo.run.directory import directory_of, freeze
from zo.run.rows import read_rows
from zo.run.tracking import read_status

pytestmark = pytest.mark.process

KILLED, INTERRUPTED = -signal.SIGKILL, 143
IN_STEP = "zo.run.losses:BatchLoss.__call__"
MOVING = "zo.weights.updates:ParameterUpdate.apply"
EVALUATING = "zo.lm.scoring:CandidateScorer.evaluate"

EQUAL = [
    (4, ("optimizer=bszo", "optimizer.k=3", "distributed.shards=2", "precision=bf16")),
    (2, ("optimizer=lozo", "precision.restore=factors", "distributed.shards=4", "precision=bf16")),
    (3, ("optimizer=mezo", "optimizer.n=2", "task.objective=lm", "precision.restore=snapshot")),
]


@pytest.fixture
def small_run(make_run):
    """Returns a function from overrides to the configuration of a run of eight steps."""
    return partial(
        make_run,
        *("steps=8", "eval_every=3", "lr=1e-3", "threads=1", "device=cpu", "batch_size=8"),
        *("eval_tokens=256", "distributed.check_every=2", "distributed.timeout=20"),
    )


@pytest.fixture
def frozen(small_run, tmp_path):
    """Returns a function from overrides to the frozen directories of equal runs, in several places."""
    return lambda count, *overrides: [
        freeze(small_run(*overrides, f"out={tmp_path / f'copy{i}'}")) for i in range(count)
    ]


def log(directory):
    return (directory / "log.txt").read_text()


@pytest.mark.parametrize(("world", "settings"), EQUAL)
def test_a_run_on_several_processes_has_the_bits_of_one(frozen, world, settings):
    one, several = frozen(2, *settings)
    assert here(one) == 0
    assert exit_statuses(several, world) == [0] * world, log(several)
    assert what_it_came_to(several) == what_it_came_to(one)
    row, later = read_rows(several)[:2]
    passes = {4: 4 * 2, 2: 2 * 4, 3: 2 * 3}[world]  # of three processes two make two passes each
    assert row["dist/bytes"] == 8 * passes
    assert ("3 does not divide 4: " in log(several)) == (world == 3)
    assert row["time/wait_s"] >= later["time/exchange_s"] > 0  # that of the step before


def test_killed_and_terminated_processes_end_the_run_on_all_and_any_number_goes_on(frozen):
    run, twin = frozen(2, "optimizer=bszo", "optimizer.k=3", "checkpoint.full_every=3")
    assert here(twin) == 0
    assert exit_statuses(run, 2, {1: (At(IN_STEP, 6),)}) == [INTERRUPTED, KILLED], log(run)
    assert read_status(run)["run/status"] == "interrupted"
    assert read_status(run)["run/signal"] == "lost process"
    assert len(read_rows(run)) == 2
    assert exit_statuses(run, 3, {0: (At(EVALUATING, 1),)}) == [KILLED, INTERRUPTED, INTERRUPTED]
    assert exit_statuses(run, 4, {2: (At(MOVING, 60),)}).count(KILLED) == 1
    terminated = At(IN_STEP, 1, number=signal.SIGTERM)
    assert exit_statuses(run, 2, {0: (terminated,)}) == [INTERRUPTED, INTERRUPTED], log(run)
    assert read_status(run)["run/signal"] == "SIGTERM"
    assert exit_statuses(run, 2) == [0, 0], log(run)
    assert what_it_came_to(run) == what_it_came_to(twin)


def random_point(rng):
    """Anywhere in a process's life: finding the others, loading, a step, an update, an evaluation."""
    target, calls = rng.choice(
        [
            ("zo.run.runner:join", 1),
            ("zo.run.assembly:Session.open", 1),
            ("zo.distributed.processes:Processes.gather", 8),
            (IN_STEP, 12),
            (MOVING, 150),
            (EVALUATING, 2),
        ]
    )
    return At(target, rng.randint(1, calls), rng.choice(["before", "after"]))


@pytest.mark.slow
def test_random_kills_of_each_process_change_nothing(frozen):
    """As many kills as the environment's KILLS says, on one to four processes in turn; SEED chooses the moments.

    Commit nothing meanwhile: trajectories name the git revision that wrote them.
    """
    wanted, seed = int(os.environ.get("KILLS", "6")), os.environ.get("SEED", "0")
    rng, kills = random.Random(seed), Counter()
    settings = ("optimizer=bszo", "optimizer.k=3", "checkpoint.full_every=3", "eval_every=4")
    settings += ("distributed.timeout=8",)
    run, twin, *others = frozen(2 + wanted, *settings)
    assert here(twin) == 0
    ended = 0
    while kills.total() < wanted:
        world = rng.randint(1, 4)
        rank = rng.randrange(world)
        statuses = exit_statuses(run, world, {rank: (random_point(rng),)}, timeout_s=120)
        if KILLED in statuses:
            assert statuses[rank] == KILLED
            others_ended = {*statuses[:rank], *statuses[rank + 1 :]}
            assert others_ended <= {INTERRUPTED, 0}, log(run)  # 0: killed behind the last exchange
            kills[world, rank] += 1
        else:
            assert set(statuses) <= {0, INTERRUPTED}, log(run)
        if read_status(run).get("run/status") == "finished":
            assert what_it_came_to(run) == what_it_came_to(twin)
            run, ended = others.pop(), ended + 1
        print(f"{kills.total()} kills, {ended} runs equal: {sorted(kills.items())}", flush=True)
    assert here(run) == 0
    assert what_it_came_to(run) == what_it_came_to(twin)


def test_a_hung_process_ends_the_run_on_the_others_within_the_timeout(frozen):
    """Without a timeout of its own the run would wait for ten minutes."""
    (run,) = frozen(1, "optimizer=bszo", "distributed.timeout=3")
    hangs = {1: (At(IN_STEP, 4, number=signal.SIGSTOP),)}
    statuses = exit_statuses(run, 2, hangs, timeout_s=1, after=lambda started: started[0].join(60))
    assert statuses == [INTERRUPTED, None], log(run)
    assert read_status(run)["run/status"] == "interrupted"


def test_weights_that_differ_stop_the_run_after_the_last_step_where_they_agreed(small_run, frozen):
    settings = ("optimizer=bszo", "precision.restore=snapshot")
    cfg = small_run(*settings)
    told = gather_results(2, told_by, cfg, "a flipped bit")
    assert told[0] == told[1]
    assert "step 4: " in told[0]
    assert "of process 1 differs" in told[0]
    assert "after step 2" in told[0]
    run, (twin,) = directory_of(cfg), frozen(1, *settings)
    assert len(read_rows(run)) == 2
    assert read_status(run)["run/status"] == "failed"
    assert gather_results(2, told_by, cfg) == ["finished", "finished"]
    assert here(twin) == 0
    here(run)
    assert what_it_came_to(run)["history"] == what_it_came_to(twin)["history"]


@pytest.mark.parametrize(
    ("sabotage", "settings", "sentence"),
    [
        ("another rate", (), "process 1 on .*: lr is 0.002, and 0.001 on process 0; start all"),
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
    small_run, sabotage, settings, sentence
):
    cfg = small_run(*settings)
    told = gather_results(2 if sabotage else 3, told_by, cfg, sabotage)

    assert re.search(sentence, told[0]), told
    assert len({re.sub("^process 1: [A-Za-z]+: ", "", of) for of in told}) == 1
    assert not directory_of(cfg).exists()


def test_a_process_that_never_comes_ends_the_start_of_the_others(frozen):
    (run,) = frozen(1, "distributed.timeout=2")
    assert exit_statuses(run, 2, {1: (At("zo.run.runner:join", 1),)}) == [INTERRUPTED, KILLED]
    assert "no connection at 127.0.0.1" in log(run)


def test_a_port_that_is_taken_is_one_sentence(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for key, value in environment(0, 2, taken.getsockname()[1]).items():
            monkeypatch.setenv(key, value)
        with pytest.raises(ProcessesError, match="the port is taken; give torchrun another"):
            join(2)
