"""A run that is killed, wherever it is, and started again ends as the one that nobody disturbed, bit for bit."""

import operator
import os
import random
import shutil
import signal
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.support.runs import MADE, rows_of
from tests.support.victims import At, armed, exit_statuses, flip_bit, truncate, what_it_came_to
from zo.run.__main__ import main
from zo.run.assembly import Session
from zo.run.logs.tracking import ENDED, read_status
from zo.run.runner import run
from zo.run.signals import Interrupted
from zo.run.store.directory import DirectoryError, Inputs, InputsError, directory_of, freeze

APPLYING = "zo.weights.updates.ParameterUpdate.apply"
MEASURING = At("zo.run.losses.BatchLoss.__call__", 10, "after")
UPDATE = (MEASURING, At(APPLYING, 60))
STREAM = (MEASURING, At("zo.noise.cpu.engine.NumbaTable.add_", 2, "after"))  # all tensors
BRANCHES = At("zo.run.losses.BatchLoss.branches", 5, "after")
FACTORS = (BRANCHES, At("zo.weights.restore.factors.Factors.merge_factors", 1))
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
def killed(directory, point, reached):
    """Has an attempt end at a call and leave its directory as it is then, as SIGKILL does; notes that it came to it."""
    then = directory.with_suffix(".then")

    def die(*_):
        shutil.copytree(directory, then)
        reached.append(point)
        raise Killed

    with mock.patch("os.kill", die), armed(point):
        try:
            yield
        except Killed:
            shutil.rmtree(directory)
            then.rename(directory)


def labels_flipped(cfg, directory):
    """Exchanges the labels of the training file, which keeps its size."""
    file = Path(cfg.task.data_files["train"])
    whole = file.read_text()
    file.write_text(whole.replace(",0,", ",2,").replace(",1,", ",0,").replace(",2,", ",1,"))
    if Inputs.load(directory):
        with pytest.raises(InputsError, match=r"task\.data_files\.train: the content has changed"):
            run(cfg, directory)
    file.write_text(whole)


def read_otherwise(cfg, directory):
    """Has the run begun with other examples than its unchanged file gives now."""
    recorded = Inputs.load(directory)
    if recorded and rows_of(cfg) and not ended(directory):
        replace(recorded, read={**recorded.read, "train": "other"}).save(directory)
        with pytest.raises(
            InputsError, match="the training examples are not as when the run began"
        ):
            run(cfg, directory)
        recorded.save(directory)


def copy_lost(cfg, directory):
    """Has a copy of offloaded weights vanish at the third step."""
    make = Session.executor

    def losing(session, examples):
        if session.assembly.optimizer.step_index == 2:
            next(directory.resolve().glob("offloaded-0/*.safetensors")).unlink()
        return make(session, examples)

    with mock.patch.object(Session, "executor", losing), pytest.raises(Interrupted):
        run(cfg)
    assert read_status(directory)["run/signal"] == "lost file"


def partials_left(cfg, directory):
    """Leaves what a kill left of frozen files."""
    for name in ("config.yaml", "inputs.json"):
        (directory / f".{name}.4711.partial").touch()


def damaged(file, how=flip_bit, seed=3):
    """Returns what damages the last file of a pattern; a configuration is refused by its name then."""

    def act(cfg, directory):
        for path in sorted(path for path in directory.glob(file) if path.stat().st_size)[-1:]:
            if ended(directory):
                return
            how(path, random.Random(seed))
            try:
                freeze(cfg)
            except DirectoryError as refused:
                assert str(directory / "config.yaml") in str(refused)  # noqa: PT017
                path.unlink()

    return act


def ended(directory):
    return read_status(directory).get("run/status") in ENDED


STEP, SAVE, RENAME = "zo.run.assembly.Session.executor", "torch.save", "pathlib.Path.rename"
APPEND = "zo.record.appender.Appender.write"  # 1: attempts.jsonl, then rows
EVERY, ADAM = "optimizer=mezo precision=bf16 checkpoint.full_every=1", "optimizer=adam lr=1e-4"
STILL = "optimizer=adam lr=1e-12 checkpoint.keep_best=true"  # nothing gets better
KILLS = [
    [
        *(At(APPEND, call, "half") for call in (1, 2)),
        At("zo.run.predictions.write", 1, "after"),  # of the first evaluation, which stays the best
        *(At(APPEND, call, "half") for call in (3, 4)),
        At(MADE, 2),
        damaged("metrics.jsonl"),
        At(STEP, 3),
        damaged("inputs.json"),
        damaged("status.json"),
        At("zo.run.logs.tracking.RunLog.write", 2, "after"),
    ],
    [
        At(SAVE, 1, "after"),
        At(SAVE, 2),
        At(RENAME, 1),
        At("zo.optim.base.ZOOptimizer.replay", 1, "after"),
        At(RENAME, 1, "after"),
        At("torch.load"),
        At(SAVE, 1),
    ],
    [
        partials_left,
        At("pathlib.Path.replace", 1),
        At("zo.run.assembly.Session.open", 1, "after"),
        At("zo.run.logs.tracking.RunLog.finish", 1),
        At("zo.run.logs.tracking.set_status", 2),
        At("zo.run.store.checkpoint.remove", 1),
    ],
]
SCORING = At("zo.lm.scoring.candidates.CandidateScorer.evaluate", 1)
FILES = ("metrics.jsonl", "inputs.json", "status.json", "config.yaml", "attempts.jsonl",
         "checkpoints/*/state.pt", "checkpoints/*/manifest.json")  # fmt: skip
EVENTS = st.one_of(
    st.sampled_from([*(event for of in KILLS for event in of), SCORING, At(SAVE, 2, "after")]),
    st.builds(damaged, st.sampled_from(FILES), st.sampled_from([flip_bit, truncate]), st.integers(0, 99)),
    st.sampled_from([1, 2, 5, labels_flipped, read_otherwise, partials_left]),
    st.sampled_from(["steps=5", "steps=9", "steps=8", "patience=1"]),
)  # fmt: skip


class History(RuleBasedStateMachine):
    """A run, and what happens to it; however it is treated, it ends as its twin, which nobody disturbs."""

    def __init__(self, make, twin, place, typed=None):
        super().__init__()
        self.make, self.twin, self.out = make, twin, tempfile.mkdtemp(dir=place)
        self.typed, self.given, self.reached = typed, typed is not None, []
        self.kept, self.changed = 2 if "adam" in (typed or "") else 4, ""

    @initialize(typed=st.sampled_from(["optimizer=mezo", EVERY, ADAM]))
    def begins(self, typed):
        self.typed, self.kept = typed, 0 if typed == ADAM else 4

    @rule(event=EVENTS)
    def happens(self, event):
        """Rows that are whole and known stay, each with its time: no step is made twice."""
        cfg = self.make(self.typed, self.changed, self.out)
        directory, before = freeze(cfg), rows_of(cfg)[: self.kept]
        if callable(event):
            event(cfg, directory)
            return
        if isinstance(event, At):
            with killed(directory, event, self.reached):
                run(cfg)
        elif isinstance(event, int):
            with armed(At(MADE, event, number=signal.SIGTERM)), suppress(Interrupted):
                run(cfg)
        else:
            self.changed = event or self.changed
            run(cfg := self.make(self.typed, self.changed, self.out))
            assert what_it_came_to(directory_of(cfg)) == self.twin(self.typed, self.changed)
            before = before if self.given else []  # of several runs the longest is taken
        shared = sum(map(operator.eq, before, rows_of(cfg)))
        assert shared == (0 if "resume=false" in self.changed else len(before))

    def teardown(self):
        if self.typed is not None:
            self.happens("")


@pytest.fixture
def history(make_run, reviews_csv, tmp_path):
    own = shutil.copy(reviews_csv, tmp_path / "own.csv")

    def make(typed, changed, out):
        given = (*SMALL, "steps=8", "lr=1e-3", "threads=1", *typed.split())
        return make_run(*given, f"task.data_files.train={own}", *changed.split(), f"out={out}")

    @cache
    def twin(typed, changed):
        run(cfg := make(typed, changed, tempfile.mkdtemp(dir=tmp_path)))
        return what_it_came_to(directory_of(cfg))

    return partial(History, make, twin, tmp_path)


@pytest.mark.process
def test_a_run_with_any_history_ends_as_the_undisturbed_one_or_names_what_is_wrong(history):
    count = int(os.environ.get("KILLS", "4"))
    tries = settings(max_examples=count, stateful_step_count=6, phases=[Phase.generate])
    run_state_machine_as_test(history, settings=tries)


MORE = [
    *((of, [in_step, SCORING, moving]) for of, (in_step, moving) in METHODS.items()),
    *((EVERY, kills) for kills in KILLS),
    ("optimizer=mezo", [3, labels_flipped, read_otherwise, "steps=5", "steps=9", "steps=5 patience=null",
        partials_left]),
    ("optimizer=mezo", [At(STEP, 3), "steps=9", "resume=false"]),
    (EVERY, ["steps=5", "steps=9"]),  # of which step 5 is no evaluation
    ("optimizer=mezo precision.noise=philox precision.restore=streamed model.offload=disk", [copy_lost]),
    ("optimizer=mezo lr=1e-12", ["patience=1", "patience=null", "patience=1 steps=7"]),
]  # fmt: skip
HISTORIES = [
    (ADAM, [At(SAVE, 2, "after"), 1, damaged("checkpoints/*/state.pt"), labels_flipped, At(STEP, 2), "steps=9"]),
    (STILL, ["steps=4", "steps=6"]),
]  # fmt: skip
"""Runs, and histories that once led elsewhere or in which every kill has its turn."""


@pytest.mark.parametrize(
    ("typed", "events"),
    [HISTORIES[0], *(pytest.param(*of, marks=pytest.mark.process) for of in HISTORIES[1:] + MORE)],
)
def test_a_history_in_which_each_kill_is_reached(history, typed, events):
    run = history(typed)
    for event in events:
        run.happens(event)
    assert run.reached == [event for event in events if isinstance(event, At)]
    run.teardown()
