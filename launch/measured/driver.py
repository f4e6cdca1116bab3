"""Makes the stages of `launch.measured` one after another while there is time, and says how it went."""

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from launch import plan
from launch.measured import analyses
from launch.measured.clock import Clock, Stop
from launch.measured.display import Display, show_prediction, show_summary
from launch.measured.machine import Machine
from launch.measured.outcome import FAILED, Outcome
from launch.measured.stages import Stage
from launch.pool import Pool
from launch.records import QueueError, Record
from launch.submit import alone
from launch.sweep import ENDED, Run, Standing, Sweep, standings
from zo import config
from zo.config import ConfigError
from zo.lm.config import ModelError
from zo.lm.tokenizer import load_tokenizer
from zo.run.directory import DirectoryError, freeze
from zo.run.lock import LockedError, held

INTERRUPTED, MISSING = "interrupted", "missing"
START_S = 10.0
"""Of a run, before its first step: Python's imports, weights, data. For estimates alone."""

Analyse = Callable[[Sequence[str], Path, Path, float], list[str]]


@dataclass(frozen=True)
class Options:
    """What was asked for.

    Attributes:
        minutes: Of all of it.
        processes: Runs at once on each GPU, or on the processor; None chooses.
        retry_failed: Whether failed runs are made again.
        out: Directory of all runs, absolute.
        results: Where tables and figures go, absolute.
    """

    minutes: float
    processes: int | None
    retry_failed: bool
    out: Path
    results: Path


class Driver:
    """The stages of one call.

    Args:
        chosen: Stages that this machine can make, in order.
        machine: This one.
        options: What was asked for.
        analyse: Makes tables and figures, see `launch.measured.analyses.make`.
    """

    def __init__(
        self,
        chosen: Sequence[Stage],
        machine: Machine,
        options: Options,
        analyse: Analyse = analyses.make,
    ):
        self._stages = list(chosen)
        self._machine = machine
        self._options = options
        self._analyse = analyse
        self._stop = Stop()
        config.register()

    def run(self) -> int:
        """Makes what there is time for; returns the exit status."""
        clock = Clock(self._options.minutes)
        place = self._options.out / ".measured"
        try:
            place.mkdir(parents=True, exist_ok=True)
            with held(place), self._stop.heeding(), Display(clock) as display:
                outcomes = [self._make(stage, clock, display) for stage in self._stages]
                display.say("tables and figures")
                problems = self._tables(outcomes, clock)
        except LockedError as error:
            print(f"another call makes these: {error}", file=sys.stderr)
            return 2
        except OSError as error:
            print(f"{error.filename}: {error.strerror}", file=sys.stderr)
            return 2
        status = self._status(outcomes)
        show_summary(outcomes, problems, "" if status == 0 else self._command())
        return status

    def predict(self) -> int:
        """Prints what there is to make, and how long it takes where step times are known; returns the exit status."""
        known: dict[str, list[plan.Planned]] = {}
        rows = []
        for stage in self._stages:
            try:
                planned = plan.plan(self._sweep(stage))
            except ConfigError as error:
                print(f"{stage.name}: {error}", file=sys.stderr)
                return 2
            seen = known.setdefault(stage.sweep, [])
            seen.extend(planned)
            times = plan.step_times(seen, None)
            left = [p.run for p in planned if p.status not in ENDED]
            count = len(self._machine.slots(stage, self._options.processes))
            rows.append((stage.name, len(planned), len(planned) - len(left), _minutes(left, times, count)))  # fmt: skip
        show_prediction(rows)
        return 0

    def _make(self, stage: Stage, clock: Clock, display: Display) -> Outcome:
        """Makes what is missing of a stage, if there is time and nobody said stop."""
        if self._stop.signals or not clock.may_begin:
            return Outcome(stage, note="told to stop" if self._stop.signals else "no time left")
        display.say(f"{stage.name}: composing")
        try:
            runs = self._sweep(stage).runs
            outcome = Outcome(stage, runs, _standings(runs))
            if self._wanted(outcome) and clock.may_begin:
                _bring_weights(runs)
                self._pool(outcome, clock, display)
        except (ConfigError, DirectoryError, ModelError) as error:
            return Outcome(stage, note=str(error).splitlines()[0])
        outcome.found = _standings(runs)
        return outcome

    def _pool(self, outcome: Outcome, clock: Clock, display: Display) -> None:
        """Runs a stage's missing runs until they have ended, the time is up or somebody says stop."""
        stage, out = outcome.stage, self._options.out
        folder = out / ".local" / f"measured-{stage.name}-{uuid4().hex[:8]}"
        folder.mkdir(parents=True)
        begun = time.monotonic()
        with ExitStack() as stack:
            with alone(
                out
            ):  # other submitters of this directory wait until these are noted as given
                stack.enter_context(held(folder))
                outcome.found = _standings(outcome.runs or [])
                chosen = self._wanted(outcome)
                directories = [freeze(run.cfg).absolute() for run in chosen]
                for directory in directories:
                    Record("local", str(folder), 0, time.time()).write(directory)
            slots = self._machine.slots(stage, self._options.processes)
            pool = Pool(directories, slots, detached=True, deadline=clock.runs_end)
            pool.saving_s = 2 * clock.saving
            ended = sum(outcome.counts[state] for state in ENDED)
            total = len(outcome.found)
            pool.changed = lambda: display.stage(stage.name, ended, total, pool)
            pool.changed()
            if not self._stop.signals:
                pool.run()
        self._stop.signals += pool.signals
        outcome.seconds = time.monotonic() - begun

    def _wanted(self, outcome: Outcome) -> list[Run]:
        """Returns the runs to be made, those that were interrupted first."""
        states = [INTERRUPTED, MISSING, *([FAILED] if self._options.retry_failed else [])]
        return [
            run
            for state in states
            for run in outcome.runs or []
            if outcome.found[run.run_id].state == state
        ]

    def _sweep(self, stage: Stage) -> Sweep:
        device = ["device=cuda"] if stage.gpu else []  # never on the processor by mistake
        return Sweep.of([*stage.overrides, *device, f"out={self._options.out}"])

    def _tables(self, outcomes: Sequence[Outcome], clock: Clock) -> list[str]:
        """Makes tables and figures; returns what could not be made."""
        begun = [o for o in outcomes if any(o.counts[state] for state in ENDED)]
        sweeps = list(dict.fromkeys(o.stage.sweep for o in begun if o.stage.sweep))
        try:
            return self._analyse(sweeps, self._options.out, self._options.results, clock.end)
        except KeyboardInterrupt:
            return ["tables and figures were given up: `make tables` makes them"]

    def _status(self, outcomes: Sequence[Outcome]) -> int:
        if any(outcome.counts[FAILED] for outcome in outcomes):
            return 1
        if self._stop.signals:
            return self._stop.status
        looked = [o for o in outcomes if not (o.runs is None and o.note != "no time left")]
        return 0 if looked and all(outcome.left == 0 for outcome in looked) else 3

    def _command(self) -> str:
        """Returns the command that goes on."""
        command = ["python", "-m", "launch.measured", *sys.argv[1:]]
        return shlex.join(command)


def _standings(runs: Sequence[Run]) -> dict[str, Standing]:
    """Returns where runs stand; those that were given to a SLURM that does not answer count as queued."""
    try:
        return standings(runs)
    except QueueError:
        return standings(runs, ask_queue=False)


def _bring_weights(runs: Sequence[Run]) -> None:
    """Converts weights that are converted on first use, once, before several runs would at the same time.

    Raises:
        ModelError: If they cannot be had.
    """
    for run in {run.cfg.model.path: run for run in runs}.values():
        if run.cfg.model.weights == "pretrained":
            load_tokenizer(run.cfg.model)


def _minutes(left: Sequence[Run], times: Mapping[plan.Kind, float], at_once: int) -> float | None:
    """Returns how long runs take; None if the time of a step is not known for one of them."""
    if any(run.cfg.steps and run.kind not in times for run in left):
        return None
    seconds = sum(START_S + run.cfg.steps * times.get(run.kind, 0.0) / 1e3 for run in left)
    return seconds / at_once / 60
