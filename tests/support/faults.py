"""Runs that are killed and damaged until they end, each compared with its uninterrupted twin.

Short runs of every method that trains, float32 and bfloat16, subtract and snapshot, each in processes of its own that
are killed at random times: SIGKILL, now and then SIGTERM or SIGUSR2. Between two attempts one of its files may be cut
off, altered or exchanged. Some runs live on a file system that is full again and again, or cannot be written.

To be quick, most attempts are forks of a process that has imported everything; one in twelve starts Python anew.
Needs Linux; mounting needs root, and what needs it is left out where it is not allowed.
"""

import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", WANDB_SILENT="true")

import datasets
import torch
from transformers import AutoTokenizer, OPTForCausalLM  # noqa: F401  imported once, for all forks

import zo.run.__main__
import zo.run.runner
from analysis.logs.run_file import read_run_file
from tests.support.damage import DAMAGES, SmallDisk, read_only
from zo import config
from zo.config import command_line
from zo.optim import OPTIMIZERS
from zo.run.assembly import Assembly
from zo.run.directory import freeze
from zo.run.directory import load as load_config
from zo.run.replay import replay_to
from zo.run.rows import read_rows
from zo.run.tracking import read_status
from zo.run.trajectory import Trajectory

STEPS, EVAL_EVERY, FULL_EVERY = 36, 5, 4
FINAL = "final.json"
"""What an attempt of this benchmark leaves beside the run's own files: hash of θ and state at the end."""

SIZES = (
    *("model=reviews-tiny", "task=rotten_tomatoes", "task.train_size=64", "task.max_length=32"),
    *("task.validation_size=48", "task.test_size=48", "batch_size=8", "patience=null"),
    *("device=cpu", "threads=1", "tracking.mode=offline"),
    *(f"steps={STEPS}", f"eval_every={EVAL_EVERY}", f"checkpoint.full_every={FULL_EVERY}"),
)
TRAINING = [name for name, method in OPTIMIZERS.items() if method.config.trains]
PLACES = ("disk", "disk", "disk", "disk", "small disk")
ALL_CASES = 100
"""Kills from which on every method is tried with every dtype and restore policy."""

MOST_KILLS = 9
"""Of one run; then it is left alone."""

MOST_FILLED = 5
"""Full disks of one run."""

TIMED = ("time/", "mem/")


@dataclass(frozen=True)
class Case:
    """One run of the campaign."""

    optimizer: str
    dtype: str
    restore: str
    seed: int

    def freeze(self, out: Path) -> Path:
        """Returns its directory, made below `out`."""
        lr = "1e-3" if self.optimizer not in ("adam", "mezo_adam") else "1e-4"
        (cfg,) = command_line.runs(
            [
                *SIZES,
                f"optimizer={self.optimizer}",
                f"precision={self.dtype}",
                f"precision.restore={self.restore}",
                f"seed={self.seed}",
                f"lr={lr}",
                f"out={out}",
            ]
        )
        return freeze(cfg)


def cases() -> Iterator[Case]:
    """Yields the methods in turn, with every dtype and restore policy, for one seed after another."""
    for seed in itertools.count():
        for dtype, restore in itertools.product(("fp32", "bf16"), ("subtract", "snapshot")):
            for optimizer in TRAINING:
                yield Case(optimizer, dtype, restore, seed)


def attempt(directory: Path) -> int:
    """Makes or continues a run, and notes what its weights and its method's state are at its end."""
    train = zo.run.runner.train

    def noting(cfg: Any, session: Any, *rest: Any) -> Any:
        summary = train(cfg, session, *rest)
        optimizer = session.assembly.optimizer
        text = json.dumps([session.assembly.weights_hash(), _digest(optimizer.state_dict())])
        (directory / FINAL).write_text(text)
        return summary

    zo.run.runner.train = noting
    try:
        return zo.run.__main__.main([str(directory)])
    finally:
        zo.run.runner.train = train


def _digest(state: Any) -> str:
    """Returns a hash of nested plain data and tensors."""
    if isinstance(state, torch.Tensor):
        plain = state.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return hashlib.sha256(plain + str((state.dtype, state.shape)).encode()).hexdigest()
    if isinstance(state, dict):
        return str({key: _digest(value) for key, value in sorted(state.items(), key=str)})
    if isinstance(state, list | tuple):
        return str([_digest(value) for value in state])
    return repr(state)


class Process:
    """An attempt in a process of its own, with its output in a file.

    Args:
        directory: Of the run.
        log: Where the output goes.
        anew: Starts Python anew instead of a fork.
        work: What the fork does; returns its exit status.
    """

    def __init__(
        self, directory: Path, log: Path, anew: bool, work: Callable[[Path], int] = attempt
    ):
        command = [sys.executable, "-m", "tests.support.faults", str(directory)]
        with log.open("ab") as output:
            if anew:
                self.pid = subprocess.Popen(command, stdout=output, stderr=output).pid
            else:
                self.pid = os.fork()
                if self.pid == 0:
                    _be_child(output.fileno(), work, directory)
        self.code: int | None = None

    def poll(self) -> bool:
        """Returns whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self, until: Callable[[], bool] = lambda: False, seconds: float = 300.0) -> int | None:
        """Waits for its end, for `until`, or for some seconds; returns its exit status, if it has one."""
        deadline = time.monotonic() + seconds
        while not self.poll() and not until() and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.code

    def end(self, number: int) -> int | None:
        """Sends a signal and waits for the end; returns the exit status."""
        if not self.poll():
            os.kill(self.pid, number)
        return self.wait()


def _be_child(output: int, work: Callable[[Path], int], directory: Path) -> None:
    """Never returns."""
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = work(directory)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@dataclass
class Outcome:
    """A run of the campaign that has ended.

    Attributes:
        case: Which.
        place: disk or small disk.
        faults: What was done to it: kind -> times.
        differences: What is not as in its twin.
    """

    case: Case
    place: str
    faults: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


class Campaign:
    """Runs, faults, and what came of them.

    Args:
        out: Directory for all of it.
        seed: Of the faults.
    """

    def __init__(self, out: Path, seed: int):
        self.out = out
        self.rng = random.Random(seed)
        self.outcomes: list[Outcome] = []
        self.faults: Counter[str] = Counter()
        self.started = 0
        self.replayed = 0
        self.refused: str | None = None
        out.mkdir(parents=True, exist_ok=True)

    @property
    def kills(self) -> int:
        """SIGKILLs so far."""
        return sum(count for kind, count in self.faults.items() if kind.startswith("SIGKILL"))

    def make(self, case: Case, place: str) -> None:
        """Makes a run's twin, then the run under faults, and compares them."""
        twin = case.freeze(self.out / "twins")
        begun = time.monotonic()
        process = self._start(twin, anew=False)
        process.wait(until=lambda: _size(twin / "metrics.jsonl") > 0)
        at_work = time.monotonic()
        outcome = Outcome(case, place)
        if process.wait() != 0:
            outcome.differences.append(f"the twin ended with {process.code}")
        if place == "disk" or self.refused:
            run = case.freeze(self.out / "runs")
            self._disturb(run, outcome, at_work - begun, time.monotonic() - at_work)
        else:
            run = self._fill_disk(case, outcome)
        outcome.differences += compare(twin, run)
        outcome.differences += self._replay(twin)
        self.outcomes.append(outcome)

    def _start(self, run: Path, anew: bool, work: Callable[[Path], int] = attempt) -> Process:
        self.started += 1
        return Process(run, self.out / f"{run.name}.log", anew, work)

    def _count(self, outcome: Outcome, kind: str) -> None:
        outcome.faults[kind] += 1
        self.faults[kind] += 1

    def _disturb(self, run: Path, outcome: Outcome, load_s: float, work_s: float) -> None:
        """Kills a run until it ends, damages its files in between, and tries it where it cannot be written."""
        for count in itertools.count():
            before, size = len(read_rows(run)), _size(run / "metrics.jsonl")
            process = self._start(run, anew=self.started % 12 == 0)
            if count < MOST_KILLS:
                if self.rng.random() < 0.85:

                    def at_work(size: int = size) -> bool:
                        return _size(run / "metrics.jsonl") > size

                    process.wait(until=at_work)
                    process.wait(seconds=self.rng.uniform(0, 0.5 * work_s))
                else:
                    process.wait(seconds=self.rng.uniform(0, load_s))
            number = self._signal() if count < MOST_KILLS else 0
            code = process.end(number) if number and not process.poll() else process.wait()
            if code == 0:
                return
            if code not in (-signal.SIGKILL, 143, -signal.SIGTERM, -signal.SIGUSR2):
                outcome.differences.append(f"an attempt ended with {code}")
                return
            where = _where(run, before) if code == -signal.SIGKILL else "anywhere"
            self._count(outcome, f"{signal.Signals(number).name} {where}")
            if (
                read_status(run).get("run/status") not in zo.run.runner.ENDED
                and self.rng.random() < 0.6
            ):
                self._damage(run, outcome)
            if count == 1 and not self.refused and outcome.case.restore == "snapshot":
                self._refuse(run, outcome)

    def _signal(self) -> int:
        choices = [signal.SIGKILL] * 8 + [signal.SIGTERM, signal.SIGUSR2]
        return self.rng.choice(choices)

    def _damage(self, run: Path, outcome: Outcome) -> None:
        """Does what was done least so far, of what can be done."""
        for name in sorted(DAMAGES, key=lambda n: (self.faults[n], self.rng.random())):
            if DAMAGES[name](run, self.rng):
                self._count(outcome, name)
                return

    def _refuse(self, run: Path, outcome: Outcome) -> None:
        """Tries the run where its directory cannot be written: one sentence, and nothing else happens."""
        log = self.out / f"{run.name}.log"
        said = _size(log)
        with read_only(run):
            code = self._start(run, anew=False).wait()
        sentence = log.read_bytes()[said:].decode()
        if code != 2 or "Traceback" in sentence or len(sentence.splitlines()) != 1:
            outcome.differences.append(f"read-only: {code}, {sentence!r}")
        self._count(outcome, "read-only directory")

    def _fill_disk(self, case: Case, outcome: Outcome) -> Path:
        """Makes a run on a disk that is full again and again, and returns a copy of its directory."""
        disk = SmallDisk(self.out / "small")
        try:
            run = case.freeze(disk.place)
            for _ in range(MOST_FILLED):
                disk.leave(self.rng.choice((4, 12, 30, 60, 120, 3_000, 9_000, 13_000)))
                code = self._start(run, anew=False).wait()
                if code == 0:
                    break
                self._count(outcome, "disk full")
                if code not in (1, 2):
                    outcome.differences.append(f"on a full disk an attempt ended with {code}")
            disk.leave(100_000)
            self._start(run, anew=False).wait()
            return Path(shutil.copytree(run, self.out / "runs" / run.name, dirs_exist_ok=True))
        finally:
            disk.close()

    def _replay(self, twin: Path) -> list[str]:
        """Replays a trajectory from the base weights to its end; returns what is not as it was."""
        if not (twin / "trajectory.bin").exists():
            return []
        self.replayed += 1
        code = self._start(twin, anew=False, work=_check_replay).wait()
        return [] if code == 0 else ["the trajectory leads to other weights"]


def _check_replay(run: Path) -> int:
    trajectory = Trajectory.read(run / "trajectory.bin")
    assembly = Assembly.of(load_config(run))
    replay_to(assembly, trajectory, len(trajectory.losses))
    found = [assembly.weights_hash(), _digest(assembly.optimizer.state_dict())]
    return 0 if found == json.loads((run / FINAL).read_text()) else 1


def _where(run: Path, rows_before: int) -> str:
    """Returns what a process was doing when it was killed, as far as its files tell."""
    if any((run / "checkpoints").glob("*.partial")):
        return "while a checkpoint is written"
    rows = len(read_rows(run))
    if rows > rows_before and (rows + 1) % EVAL_EVERY == 0:
        return "in a step or its evaluation"
    return "among the steps" if rows > rows_before else "before the first step of the attempt"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def compare(twin: Path, run: Path) -> list[str]:
    """Returns in what a run that was disturbed differs from one that was not."""

    def untimed(data: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in data.items() if not key.startswith(TIMED)}

    def rows(of: Path) -> list[dict[str, Any]]:
        return [untimed(row) for row in read_rows(of)]

    def raw(name: str, of: Path) -> bytes | None:
        return (of / name).read_bytes() if (of / name).exists() else None

    same = {
        "history": rows(twin) == rows(run) and len(rows(run)) == STEPS,
        "summary": untimed(read_status(twin)) == untimed(read_status(run)),
        **{
            name: raw(name, twin) == raw(name, run)
            for name in ("predictions.json", "trajectory.bin", FINAL)
        },
        "W&B file": [*range(1, STEPS + 1)] == _logged(run),
        "leftovers": not any(run.glob(".*.partial")) and not (run / "checkpoints").exists(),
    }
    return [what for what, as_it_should_be in same.items() if not as_it_should_be]


def _logged(run: Path) -> list[int]:
    """Returns the steps in the run's W&B files, in the order of the files."""
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    return [step for file in files for step in read_run_file(file).history["step"].to_pylist()]


def campaign(out: Path, kills: int, seed: int = 0) -> Campaign:
    """Makes and disturbs runs until so many were killed, and returns the campaign."""
    torch.set_num_threads(1)
    config.register()
    datasets.config.HF_DATASETS_CACHE = out.resolve() / "datasets"
    datasets.disable_progress_bars()
    made = Campaign(out.resolve(), seed)
    try:
        SmallDisk(made.out / "small").close()
    except (OSError, subprocess.CalledProcessError) as error:
        made.refused = str(error)
    for case, place in zip(cases(), itertools.cycle(PLACES), strict=False):
        made.make(case, place)
        if made.kills >= kills and (kills < ALL_CASES or len(made.outcomes) >= 4 * len(TRAINING)):
            break
    return made


if __name__ == "__main__":
    from tests.support import faults  # itself, once

    torch.set_num_threads(1)
    sys.exit(faults.attempt(Path(sys.argv[1])))
