"""A run that is killed, wherever it is, and started again ends as the one that nobody disturbed, bit for bit."""

import operator
import os
import random
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from tests.support.runs import rows_of, stopped_after
from tests.support.victims import (
    At,
    armed,
    exit_statuses,
    flip_bit,
    truncate,
    what_it_came_to,
)
from zo.run.__main__ import main
from zo.run.logs.tracking import read_status
from zo.run.runner import run
from zo.run.store.directory import Inputs, InputsError, directory_of, freeze

APPLYING = "zo.weights.updates.ParameterUpdate.apply"
MEASURING = At("zo.run.losses.BatchLoss.__call__", 10, "after")
UPDATE = (MEASURING, At(APPLYING, 60))
STREAM = (MEASURING, At("zo.noise.cpu.engine.NumbaTable.add_", 2, "after"))  # all tensors
BRANCHES = At("zo.run.losses.BatchLoss.branches", 5, "after")
FACTORS = (BRANCHES, At("zo.weights.restore.factors._merge_matrix", 10))
ON_DISK = (MEASURING, At("zo.weights.offload.backing_store.WeightsFile.write", 200))
BACKWARD = At("zo.run.losses.BatchLoss.backward", 5, "after")
GRADIENT = (BACKWARD, At("torch.optim.Optimizer.zero_grad", 3, "after"))
STOCHASTIC = "precision.noise=philox precision.rounding=stochastic"
COMPENSATED = "precision.noise=philox precision.rounding=compensated"
LAST = "adapter=layers adapter.layers=last:1"  # the others' hidden states are kept
ANCHORED = "optimizer.anchor=start optimizer.anchor_decay=50"
ALSO = "task.also={name:imdb,train_size:8,validation_size:8,test_size:8,max_length:32}"
METHODS = {
    "optimizer=mezo precision.restore=subtract": UPDATE,
    f"optimizer=mezo_adam lr=1e-4 precision=bf16 {STOCHASTIC}": UPDATE,
    f"optimizer=hizoo precision=fp16 {COMPENSATED}": UPDATE,
    "optimizer=lozo optimizer.interval=3 precision=bf16 precision.restore=factors": FACTORS,
    f"optimizer=bszo precision=bf16 precision.restore=streamed {STOCHASTIC}": STREAM,
    f"optimizer=bszo_b precision=bf16 precision.restore=snapshot {COMPENSATED} {LAST}": UPDATE,
    "optimizer=mezo precision.noise=philox precision.restore=streamed model.offload=disk": ON_DISK,
    f"optimizer=es optimizer.n=4 {ANCHORED} precision=bf16 {COMPENSATED} {ALSO}": UPDATE,
    "optimizer=adam lr=1e-4": GRADIENT,
}
"""Every policy and rounding, and all kinds of state, with a kill in a step and one in or behind the pass that moves θ.

test_checkpoint.py tries what each method's state is made of.
"""
SMALL = ("eval_every=2", "checkpoint.full_every=3")


@pytest.mark.slow
@pytest.mark.parametrize("overrides", METHODS)
def test_random_kills_and_damaged_files_change_nothing(frozen, overrides):
    """As many attempts per method as the environment's KILLS says: all processes are killed, or one of them before.

    Commit nothing meanwhile: trajectories name the git revision that wrote them.
    """
    rng, most = random.Random(overrides), 1 if "adam " in overrides else 4  # processes
    divided = (f"distributed.shards={most}", "distributed.timeout=8")
    run, twin = frozen(2, *SMALL, *divided, *overrides.split())
    assert main([str(twin)]) == 0
    for _ in range(int(os.environ.get("KILLS", "4"))):
        world = rng.randint(1, most)
        kill = {rng.randrange(world): At(APPLYING, rng.randint(1, 300))}
        exit_statuses(run, world, kill, timeout_s=rng.uniform(0.2, 6))
        files = [*run.glob("*.json*"), *run.glob("checkpoints/step-*/*")]
        files = sorted(path for path in files if path.stat().st_size)
        if read_status(run).get("run/status") != "finished" and files:
            rng.choice([flip_bit, truncate])(rng.choice(files), rng)
    assert main([str(run)]) == 0
    assert what_it_came_to(run) == what_it_came_to(twin)


class Killed(BaseException):
    """Ends an attempt in this process."""


@contextmanager
def killed(directory, point):
    """Has an attempt end at a call and leave its directory as it is then, as SIGKILL does."""
    then = directory.with_suffix(".then")

    def die(*_):
        shutil.copytree(directory, then)
        raise Killed

    with mock.patch("os.kill", die), armed(point), pytest.raises(Killed):
        yield
    shutil.rmtree(directory)
    then.rename(directory)


@contextmanager
def labels_flipped(cfg, directory):
    """Exchanges the labels of the training file, which keeps its size; yields what a run says of that."""
    file = Path(cfg.task.data_files["train"])
    whole = file.read_text()
    file.write_text(whole.replace(",0,", ",2,").replace(",1,", ",0,").replace(",2,", ",1,"))
    yield r"task\.data_files\.train: the content has changed since"
    file.write_text(whole)


@contextmanager
def read_otherwise(cfg, directory):
    """Has the run begun with other examples than its unchanged file gives now."""
    recorded = Inputs.load(directory)
    replace(recorded, read={**recorded.read, "train": "other"}).save(directory)
    yield "the training examples are not as when the run began"
    recorded.save(directory)


STEP, SAVE, RENAME = "zo.run.loop._step", "torch.save", "pathlib.Path.rename"
APPEND = "zo.record.appender.Appender.write"  # 1: attempts.jsonl, then rows
EVERY, ADAM = "optimizer=mezo precision=bf16 checkpoint.full_every=1", "optimizer=adam lr=1e-4"
STILL = "optimizer=adam lr=1e-12 checkpoint.keep_best=true"  # nothing gets better
KILLS = [
    [
        *(At(APPEND, call, "half") for call in (1, 2, 3, 4)),
        At(STEP, 2, "after"),
        At("zo.run.loop.Run._evaluate", 1, "after"),
        "metrics.jsonl",
        At(STEP, 3),
        "inputs.json",
        "status.json",
        At("zo.run.logs.tracking.RunLog.write", 2, "after"),
    ],
    [
        At(SAVE, 1, "after"),
        At(SAVE, 2),
        At(RENAME, 1),
        At("zo.optim.base.ZOOptimizer.replay", 1, "after"),
        At(RENAME, 1, "after"),
        At("zo.run.store.checkpoint._verify", 1, "after"),
        At(SAVE, 1),
    ],
    [
        At("pathlib.Path.replace", 1),
        At("zo.run.assembly.Session.open", 1, "after"),
        At("zo.run.logs.tracking.RunLog.finish", 1),
        At("zo.run.logs.tracking.set_status", 2),
        At("zo.run.store.checkpoint.remove", 1),
    ],
]
SCORING = At("zo.lm.scoring.candidates.CandidateScorer.evaluate", 1)
MORE = [
    *((of, [in_step, SCORING, moving]) for of, (in_step, moving) in METHODS.items()),
    *((EVERY, kills) for kills in KILLS),
    ("optimizer=mezo", [3, labels_flipped, read_otherwise, "steps=5", "steps=9", "steps=5 patience=null"]),
    ("optimizer=mezo", [At(STEP, 3), "steps=9", "resume=false"]),
    ("optimizer=mezo lr=1e-12", ["patience=1", "patience=null", "patience=1 steps=7"]),
]  # fmt: skip
HISTORIES = [
    (ADAM, [At(SAVE, 2, "after"), 1, "checkpoints/*/state.pt", labels_flipped, At(STEP, 2), "steps=9"]),
    (STILL, ["steps=4", "steps=6"]),
]  # fmt: skip
"""Runs, and what happens to them: kills, a flipped bit of a file, a stop after some steps, other settings."""


@pytest.mark.parametrize(
    ("overrides", "history"),
    [HISTORIES[0], *(pytest.param(*of, marks=pytest.mark.process) for of in HISTORIES[1:] + MORE)],
)
def test_a_run_with_any_history_ends_as_the_undisturbed_one_or_names_what_is_wrong(
    make_run, reviews_csv, tmp_path, overrides, history
):
    """Nor is a step made twice that is whole and known: rows, of which each has its time, stay."""
    own, kept = shutil.copy(reviews_csv, tmp_path / "own.csv"), 2 if "adam" in overrides else 4
    given = [*SMALL, *["steps=8", "lr=1e-3", "threads=1"], *overrides.split()]
    given.append(f"task.data_files.train={own}")
    cfg, changed = make_run(*given), []
    for i, event in enumerate([*history, ""]):
        directory, before = freeze(cfg), rows_of(cfg)[:kept]
        if isinstance(event, At):
            with killed(directory, event):
                run(cfg)
        elif isinstance(event, int):
            with stopped_after(event):
                run(cfg)
        elif callable(event):
            with event(cfg, directory) as said, pytest.raises(InputsError, match=said):
                run(cfg, directory)
        elif event and "=" not in event:
            flip_bit(max(directory.glob(event)), random.Random(3))
            continue
        else:
            changed = event.split() or changed
            run(cfg := make_run(*given, *changed))
            run(twin := make_run(*given, *changed, f"out={tmp_path / f'twin{i}'}"))
            assert what_it_came_to(directory_of(cfg)) == what_it_came_to(directory_of(twin))
        shared = sum(map(operator.eq, before, rows_of(cfg)))
        assert shared == (0 if "resume=false" in changed else len(before))
