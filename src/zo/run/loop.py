"""A run's steps: batch, step, evaluate, stop early, log. Knows no method by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from zo.config import RunConfig
from zo.distributed.agreement import Watch
from zo.distributed.processes import Processes
from zo.lm.config import ModelError
from zo.lm.scoring.candidates import Evaluation
from zo.optim.base import NonFiniteError
from zo.run import memory, predictions
from zo.run.assembly import Evaluator, Session
from zo.run.logs.progress import Progress
from zo.run.logs.tracking import RunLog
from zo.run.signals import Requests
from zo.run.store import checkpoint
from zo.run.store.rows import LOSSES, Row, evaluates
from zo.run.totals import TIE, Summary, Totals, characters
from zo.tasks import Encoded
from zo.tasks.examples import batch_indices
from zo.tasks.measures import CHOOSING, LOSS
from zo.weights.anchor import rounding_notice
from zo.weights.offloaded import OffloadRefused
from zo.weights.policy_check import PolicyCheck
from zo.weights.restore import RestoreError
from zo.weights.space import non_finite

if TYPE_CHECKING:
    from zo.run.logs.rewards import RewardLog

T = TypeVar("T")

TIMED, LEAST = 5, 100
"""Steps that an estimate of the run's time is made of, and steps to go that it is worth for."""

TIED = 20  # Steps with equal losses after which that is said

NOT_COMPARED = (
    "the loss under the restore policy was not compared with weights displaced by hand: it is a metric or a reward,"
    " which jumps where an answer changes"
)

NOTHING_MOVES = (
    f"the losses of each of {TIED} steps were equal, which moves nothing; give a larger optimizer.eps or batch_size,"
    " task.samples with task.temperature, or a reward with more values"
)


@dataclass
class Run:
    """A run in progress, and where its steps go as they are made."""

    cfg: RunConfig
    directory: Path
    session: Session
    progress: Progress
    requests: Requests
    watch: Watch
    totals: Totals  # Of the steps before
    log: RunLog | None = None  # None on processes that write nothing
    rewards: RewardLog | None = None
    rounds: bool = False  # said that little of a step survives

    def train(self) -> Summary:
        """Steps and evaluates until steps, patience or numbers run out; returns the run's summary.

        Raises:
            Interrupted: If a signal asked to stop; the log has what was made.
            ModelError: If the restore policy cannot displace the model.
            ProcessLostError: If another process ended; the log has what was made.
            WeightsDifferError: If the weights of the processes differ.
        """
        cfg, session, totals = self.cfg, self.session, self.totals
        best, ending = totals.best, totals.ending(cfg.patience)
        first = totals.made + 1 if cfg.steps else 0  # without steps: one evaluation, at 0
        for step in range(first, cfg.steps + 1):
            if ending is not None:
                break
            row: Row = {"step": step}
            try:
                if step > 0:
                    indices = batch_indices(len(session.train), cfg.batch_size, cfg.seed, step - 1)
                    examples = [session.train[i] for i in indices]
                    if self.rewards is not None:
                        self.rewards.scorer.begin(step, cfg.steps)
                    session.assembly.optimizer.watches_rounding = evaluates(cfg, step)
                    row |= _step(session, examples, self.progress if step == 1 else None)
                    if self.rewards is not None:
                        measured = row[LOSSES][: row["train/forwards"]]
                        row |= self.rewards.of_step(step, measured)
                    self._say_of_rounding(step, row.get("optim/survives"))
                    self.watch.after_step(session.assembly.optimizer)
                    row["train/forwards"] += totals.forwards
                if evaluates(cfg, step):
                    row |= self._evaluate(step)
            except RestoreError as error:
                raise ModelError(error.in_suite) from None
            except OffloadRefused as error:
                raise ModelError(f"model.offload={cfg.model.offload}: {error}") from None
            except NonFiniteError as error:
                what = f"{error.what} is {error.value} at step {step}"
                ending = {
                    "run/status": "collapsed",
                    "run/stop_reason": "non_finite",
                    "run/collapse_step": step,
                    "run/collapse_what": what,
                }
                self.progress.say(f"{what}: collapsed")
            if len(row) > 1:
                totals.see(row)
                if totals.tied == TIED:
                    self.progress.say(f"step {step}: {NOTHING_MOVES}")
                if self.log is not None:
                    self.log.write(step, {k: v for k, v in row.items() if k != "step"})
            if ending is None:
                ending = totals.ending(cfg.patience)
                if step > 0:
                    if step == first + TIMED - 1:
                        self._estimate()
                    self._keep()
                    self.progress.advance(row["train/loss"], best.shown)
                self.requests.heed()
        method = session.assembly.method
        return {
            **(ending or {"run/status": "finished", "run/stop_reason": "steps"}),
            "run/forwards_per_step": cfg.optimizer.forwards_per_step,
            **best.summary(session.validation, session.test, cfg.task.select_by),
            **predictions.figures(best, session),
            **totals.summary(),
            "mem/peak_gib": max(totals.peak_gib, memory.peak_gib(session.assembly.device)),
            "mem/state_mib": method.state_bytes() / 2**20 if method else 0.0,
        }

    def _evaluate(self, step: int) -> Row:
        """Scores the validation split, and the test split if that is a new best."""
        start, cfg, session, best = time.perf_counter(), self.cfg, self.session, self.totals.best
        assembly = session.assembly
        stops = cfg.optimizer.replays  # otherwise the step is lost unless a checkpoint follows
        bad = non_finite(assembly.params)
        if assembly.params.shards:  # each process sees its own part
            bad = next(filter(None, session.processes.exchange(bad)), None)
        if bad is not None:
            raise NonFiniteError(step, f"parameter {bad[0]}", bad[1])

        def score(
            examples: list[Encoded], split: str, evaluator: Evaluator = session.evaluator
        ) -> Evaluation:
            with self.progress.counting("evaluate", len(examples)) as done:

                def told(count: int) -> None:
                    done(count)
                    if stops:
                        self.requests.heed()

                found = evaluator.evaluate(examples, cfg.eval_tokens, told)
            if assembly.params.shards:
                found = session.processes.exchange(found)[0]
            if self.rewards is not None and evaluator is session.scorer:
                self.rewards.of_evaluation(step, split)
            if not math.isfinite(found.loss):
                raise NonFiniteError(step, f"{split} loss", found.loss)
            return found

        val = score(session.validation, "validation")
        measure = val.measure
        row: Row = {f"eval/val_{measure.name}": val.value, LOSS: val.loss}
        row |= {f"eval/val_{name}": value for name, value in val.more.items()}
        by, said = CHOOSING.get(cfg.task.select_by or "", measure), ""
        chosen_by = f"eval/val_{by.name}"
        if by.name == "macro_f1":
            row[chosen_by] = predictions.macro_f1(val.predictions, session.validation, session)
            said = f", {by.shown(row[chosen_by])}"
        if best.step < 0 or by.better(row[chosen_by], best.row[chosen_by]):
            test = score(session.test, "test")
            row[f"eval/test_{measure.name}"] = test.value
            row |= {f"eval/test_{name}": value for name, value in test.more.items()}
            for split, found in (("test", test), ("val", val)):
                row[f"best/{split}_predictions"] = characters(found.predictions)
            row["best/weights"] = assembly.weights_hash()
            verdict = f"test {measure.shown(test.value)}, the best so far"
        else:
            verdict = f"best {by.shown(best.row[chosen_by])} at step {best.step}"
        if session.also is not None:
            also = score(session.also.examples, "task.also", session.also.evaluator)
            row |= {f"eval/also_{also.measure.name}": also.value, "eval/also_loss": also.loss}
            row |= {f"eval/also_{name}": value for name, value in also.more.items()}
            verdict += f"; {session.also.name} {also.measure.shown(also.value)}"
        shown = measure.shown(val.value)
        self.progress.say(f"step {step}: validation {shown}{said}, loss {val.loss:.4f}; {verdict}")
        row["eval/drift"] = _drift(session)
        if "best/weights" in row and (test.predictions or test.losses):
            answers = {
                split: (of.predictions, of.probabilities or of.losses)
                for split, of in (("test", test), ("validation", val))
            }
            row["best/predictions"] = predictions.write(self.directory, answers, session)
        row["time/eval_s"] = time.perf_counter() - start
        row["mem/peak_gib"] = memory.peak_gib(assembly.device)
        return row

    def _keep(self) -> None:
        """Writes a checkpoint after a step if one is due, or if the run is to stop and its steps cannot be replayed.

        Process 0 writes. The others take part where the tensors are sharded.
        """
        cfg, best = self.cfg, self.totals.best
        optimizer, every = self.session.assembly.optimizer, cfg.checkpoint.full_every
        step = optimizer.step_index
        due = every is not None and step % every == 0 and step < cfg.steps
        keeps_best = cfg.checkpoint.keeps_best(cfg.optimizer)
        due |= keeps_best and step == best.step
        due |= bool(self.requests.received) and not cfg.optimizer.replays
        if due:
            if self.log is not None:
                self.log.sync()
            directory, keep = self.directory, best.step if keeps_best else None
            checkpoint.save(directory, optimizer, keep, self.session.processes.leads)

    def _estimate(self) -> None:
        """Says what memory and time a run takes that makes many steps without gradients, in one process."""
        cfg, session, totals = self.cfg, self.session, self.totals
        together = session.processes.world > 1 or session.shards > 1
        if cfg.optimizer.replays and not together and cfg.steps - totals.made >= LEAST:
            from zo.run.fit import measured

            times = {kind: of[-TIMED:] for kind, of in totals.times.items()}
            self.progress.say(measured(cfg, session, times, totals.made))

    def _say_of_rounding(self, step: int, share: float | None) -> None:
        """Says once that less than half of a step is left after rounding, and what keeps it."""
        params = self.session.assembly.params
        if share is None or self.rounds:
            return
        if notice := rounding_notice(share, params.rounding, params.like[0].dtype):
            self.rounds = True
            self.progress.say(
                f"step {step}: {notice}; precision=fp32 keeps all of it, precision.noise=philox"
                " precision.rounding=stochastic its mean, and precision.rounding=compensated the rest for the next step"
            )


def _step(session: Session, examples: list[Encoded], progress: Progress | None = None) -> Row:
    """Makes one step, timed; with `progress` its first displaced loss is checked, and that is said."""
    start, processor = time.perf_counter(), time.process_time()
    assembly, processes = session.assembly, session.processes
    clock = assembly.params.stopwatch
    perturb_before, forward_before = clock.seconds("weights"), clock.seconds("loss")
    waited, exchanging, sent = processes.seconds, processes.exchanging, processes.bytes
    executor = session.executor(examples)
    first = progress is not None and assembly.optimizer.step_index == 0
    if progress is not None and first and session.scorer.differentiable:
        alone = partial(_uncounted, processes, executor.alone)
        gather = partial(_uncounted, processes, processes.gather)
        check = PolicyCheck(assembly.params, alone, gather, host=True)
        with check.watching():
            info = assembly.optimizer.step(executor)
        if check.said:
            progress.say(check.said)
        if problem := check.kept(assembly.loaded.model):
            raise ModelError(problem)
        if assembly.device.type == "cpu":
            memory.reset_peak(assembly.device)  # later steps need as much, without the copy
    else:
        info = assembly.optimizer.step(executor)
        if progress is not None and assembly.optimizer.step_index == 1:
            progress.say(NOT_COMPARED)
    ties = {TIE: int(info.tied)} if info.tied or not session.scorer.differentiable else {}
    seconds = time.perf_counter() - start
    losses = {LOSSES: list(info.losses)} if assembly.optimizer.config.replays else {}
    exchanged = {
        "time/wait_s": processes.seconds - waited,
        "time/exchange_s": processes.exchanging - exchanging,
        "dist/bytes": processes.bytes - sent,
    }
    return {
        "train/loss": info.loss,
        **losses,
        **ties,
        "train/forwards": info.forwards,
        **{f"optim/{name}": value for name, value in info.scalars.items()},
        "time/step_s": seconds,
        "time/cpu_s": time.process_time() - processor,
        "time/forward_s": clock.seconds("loss") - forward_before,
        "time/perturb_s": clock.seconds("weights") - perturb_before,
        **(exchanged if processes.world > 1 else {}),
    }


def _uncounted(processes: Processes, call: Callable[..., T], *args: Any) -> T:
    """Returns what a call returns; what its processes send is not counted."""
    sent, found = processes.bytes, call(*args)
    processes.bytes = sent
    return found


def _drift(session: Session) -> float:
    """Returns ‖θ − θ₀‖, the parts of all processes put together."""
    params, squares = session.assembly.params, session.assembly.drift.squares()
    if not params.shards:
        return math.sqrt(math.fsum(squares))
    parts = [sum(x for i, x in enumerate(squares) if i in params.shards)]
    whole = math.fsum(x for i, x in enumerate(squares) if i not in params.shards)
    return math.sqrt(whole + math.fsum(x for (x,) in session.processes.exchange(parts)))
