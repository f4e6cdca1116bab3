"""A run that is killed, wherever it is, and started again ends as the one that nobody disturbed, bit for bit."""

import csv
import os
import random
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.support.damage import damage, flip_bit
from tests.support.divided_runs import exit_statuses
from tests.support.victims import At, here, start, what_it_came_to
from zo.run.directory import freeze
from zo.run.rows import read_rows
from zo.run.tracking import read_status

pytestmark = pytest.mark.process

KILLED = -signal.SIGKILL
MEASURING = At("zo.run.losses:BatchLoss.__call__", 10, "after")
UPDATE = (MEASURING, At("zo.weights.updates:ParameterUpdate.apply", 60))
STREAM = (MEASURING, At("zo.noise.cpu.engine:NumbaEngine.add_to_all_", 3, "after"))  # all tensors
FACTORS = (
    At("zo.run.losses:BatchLoss.branches", 5, "after"),
    At("zo.weights.restore.factors:_fold", 10),
)
GRADIENT = (
    At("zo.run.losses:BatchLoss.backward", 5, "after"),
    At("torch.optim:Optimizer.zero_grad", 3, "after"),
)
STOCHASTIC = "precision.noise=philox precision.rounding=stochastic"
COMPENSATED = "precision.noise=philox precision.rounding=compensated"
METHODS = {
    "optimizer=mezo precision.restore=subtract": UPDATE,
    f"optimizer=mezo_adam lr=1e-4 precision=bf16 {STOCHASTIC}": UPDATE,
    f"optimizer=hizoo precision=fp16 {COMPENSATED}": UPDATE,
    "optimizer=lozo optimizer.interval=3 precision=bf16 precision.restore=factors": FACTORS,
    f"optimizer=bszo precision=bf16 precision.restore=streamed {STOCHASTIC}": STREAM,
    f"optimizer=bszo_b precision=bf16 precision.restore=snapshot {COMPENSATED}": UPDATE,
    "optimizer=adam lr=1e-4": GRADIENT,
}
"""Every policy and rounding, and all kinds of state, with a kill in a step and one in or behind the pass that moves θ.

test_checkpoint.py tries what each method's state is made of.
"""
STEPS = 8


@pytest.fixture(scope="module")
def guesses_csv(tmp_path_factory) -> Path:
    """Reviews whose labels mean nothing, so that the best step comes late."""
    path = tmp_path_factory.mktemp("guesses") / "guesses.csv"
    rng = random.Random(5)
    words = ("film", "plot", "story", "actor", "scene", "good", "bad", "warm", "dull", "end")
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "source"])
        for _ in range(200):
            rows.writerow([" ".join(rng.choices(words, k=6)), rng.randrange(2), "rotten_tomatoes"])
    return path


@pytest.fixture
def frozen(make_run, guesses_csv, tmp_path):
    """Returns a function from overrides to the frozen directories of two equal runs, in two places."""

    small = partial(
        make_run,
        f"task.data_files.train={guesses_csv}",
        *(f"steps={STEPS}", "eval_every=2", "lr=1e-3", "threads=1", "device=cpu"),
        *("batch_size=8", "checkpoint.full_every=3"),
    )
    return lambda *overrides: [
        freeze(small(*overrides, f"out={tmp_path / name}")) for name in ("disturbed", "undisturbed")
    ]


@pytest.mark.parametrize("overrides", METHODS)
def test_a_method_goes_on_as_if_never_killed(frozen, overrides):
    """With steps, checkpoints and evaluations in the middle of LOZO's intervals."""
    run, twin = frozen(*overrides.split())
    assert here(twin) == 0
    in_step, moving = METHODS[overrides]
    for point in (in_step, At("zo.lm.scoring:CandidateScorer.evaluate", 1), moving):
        assert exit_statuses(run, 1, {0: (point,)}) == [KILLED], (run / "log.txt").read_text()
    assert here(run) == 0
    assert what_it_came_to(run) == what_it_came_to(twin)
    assert len(read_rows(run)) == STEPS
    assert "taken over from process" in (run / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("overrides", METHODS)
def test_random_kills_and_damaged_files_change_nothing(frozen, overrides):
    """As many kills per method as the environment's KILLS says."""
    rng = random.Random(overrides)
    run, twin = frozen(*overrides.split())
    assert here(twin) == 0
    for _ in range(int(os.environ.get("KILLS", "4"))):
        process = start(run)
        process.join(rng.uniform(0.2, 3))
        process.kill()
        process.join()
        if read_status(run).get("run/status") != "finished":
            damage(run, rng)
    assert here(run) == 0
    assert what_it_came_to(run) == what_it_came_to(twin)


APPEND = "zo.run.atomic:Appender.write"  # 1: attempts.jsonl, then rows
CHAINS = {
    "records": [
        At(APPEND, 1, "half"),
        At(APPEND, 2, "half"),
        At(APPEND, 3, "half"),
        At(APPEND, 4, "half"),
        At("zo.run.loop:_step", 2, "after"),
        At("zo.run.loop:_evaluate", 1, "after"),
        At(APPEND, 3, "half"),
        At("zo.run.tracking:RunLog.write", 2, "after"),
    ],
    "checkpoints": [
        At("torch:save", 1, "after"),
        At("torch:save", 2),
        At("pathlib:Path.rename", 1),
        At("zo.optim.base:ZOOptimizer.replay", 1, "after"),
        At("pathlib:Path.rename", 1, "after"),
        At("zo.run.checkpoint:_verify", 1, "after"),
        At("torch:save", 1),
    ],
    "ends": [
        At("pathlib:Path.replace", 1),
        At("zo.run.assembly:Session.open", 1, "after"),
        At("zo.run.tracking:RunLog.finish", 1),
        At("zo.run.tracking:set_status", 2),
        At("zo.run.checkpoint:remove", 1),
    ],
    "damaged files": [
        At("zo.run.loop:_step", 6),
        "metrics.jsonl",
        At("zo.run.loop:_step", 3),
        "inputs.json",
        "status.json",
    ],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_a_kill_anywhere_leaves_nothing_that_misleads(frozen, chain):
    """Nor does a bit of a file that is flipped between two attempts."""
    run, twin = frozen("optimizer=mezo", "precision=bf16", "checkpoint.full_every=1")
    assert here(twin) == 0
    for point in CHAINS[chain]:
        if isinstance(point, str):
            flip_bit(run / point, random.Random(3))
        else:
            assert exit_statuses(run, 1, {0: (point,)}) == [KILLED], (run / "log.txt").read_text()
    assert here(run) == 0
    shutil.rmtree(run / "checkpoints", ignore_errors=True)  # the last kill may come before that
    assert what_it_came_to(run) == what_it_came_to(twin)
