"""The loop: batch, step, evaluate, stop early, log. Knows no method by name."""

import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from zo.config import RunConfig
from zo.distributed.agreement import Watch
from zo.distributed.processes import Processes, join
from zo.lm.baselines import LinearProbe, with_demonstrations
from zo.lm.objectives import Scorer, scorers
from zo.lm.scoring import CandidateScorer, Evaluation
from zo.optim.base import NonFiniteError
from zo.optim.config_baselines import ICLConfig, LinearProbeConfig
from zo.run import checkpoint, memory
from zo.run.assembly import Assembly
from zo.run.inputs import digest_examples
from zo.run.losses import BatchLoss, ShardedLoss, TensorParallelLoss
from zo.run.progress import Progress
from zo.run.rows import LOSSES, Row, evaluates
from zo.run.signals import Requests
from zo.run.tracking import NoLog, RunLog
from zo.tasks import Encoded, TaskError, load_splits, tokenize
from zo.tasks.batches import batch_indices
from zo.tasks.checks import check_tokens, preview
from zo.tasks.measures import LOSS, NAMED, Measure, in_row
from zo.tasks.own import complete

Summary = dict[str, Any]
TIE = "train/tie"
"""1 if all losses of a step without a gradient are equal: its slope is 0, and nothing moves."""

Evaluator: TypeAlias = Scorer | LinearProbe
_encoded: dict[str, list[Encoded]] = {}
"""Splits of this process's last run, by all that their tokens come from: most runs of a multirun share them."""


@dataclass
class Session:
    """What a run works with: data as tokens, scorer, θ and optimizer.

    Attributes:
        train: Examples of the mini-batches.
        validation: Examples that choose the best step.
        test: Examples that the best step is reported on.
        scorer: Computes losses.
        evaluator: Computes predictions: the scorer, or a baseline.
        assembly: Model, θ and optimizer.
        read: See `zo.run.inputs.Inputs.read`.
        notes: What a person should know of data and model, one sentence each.
        processes: That divide forward passes and evaluations.
        shards: Parts of a mini-batch.
    """

    train: list[Encoded]
    validation: list[Encoded]
    test: list[Encoded]
    scorer: Scorer
    evaluator: Evaluator
    assembly: Assembly
    read: dict[str, str]
    notes: list[str] = field(default_factory=list)
    processes: Processes = field(default_factory=Processes)
    shards: int = 1

    @classmethod
    def open(cls, cfg: RunConfig) -> "Session":
        """Loads data and model and makes the optimizer.

        Raises:
            TaskError, ModelError: If they cannot be had as configured or do not fit each other.
        """
        tensor = cfg.distributed.tensor > 1
        processes = join(cfg.distributed.timeout, tensor)
        dividing = Processes() if tensor else processes
        task, found = complete(cfg.task)
        splits = load_splits(task)
        if cfg.batch_size > len(splits.train):
            right = f"must be at most the {len(splits.train)} training examples of {task.path}"
            raise TaskError(f"batch_size={cfg.batch_size}: {right}")
        assembly = Assembly.of(cfg)
        loaded = assembly.loaded
        scorer, evaluates_by = scorers(
            loaded, task, cfg.objective, cfg.precision.loss, cfg.precision.graphs, dividing
        )
        read = {split: digest_examples(of) for split, of in vars(splits).items()}
        by = f"{task} {cfg.model} {loaded.tokenizer} {loaded.tokenizer.chat_template}"
        keys = {split: f"{by} {digest}" for split, digest in read.items()}
        encoded = {
            split: _encoded.get(keys[split])
            or tokenize(task, loaded.tokenizer, examples, cfg.model.kind)
            for split, examples in vars(splits).items()
        }
        _encoded.clear()
        _encoded.update({keys[split]: of for split, of in encoded.items()})
        train, validation, test = encoded.values()
        scorer.check([*train, *validation, *test])
        if evaluates_by is not scorer:
            evaluates_by.check([*validation, *test])
        evaluator: Evaluator = evaluates_by
        how = cfg.optimizer
        if isinstance(how, ICLConfig | LinearProbeConfig):
            if not isinstance(scorer, CandidateScorer):
                raise TaskError(f"optimizer={how.name}: needs a task with candidates")
            if isinstance(how, ICLConfig):
                given = (train, how.k, cfg.seed, how.separator, loaded.tokenizer, scorer)
                validation, test = (with_demonstrations(of, *given) for of in (validation, test))
            else:
                evaluator = LinearProbe(scorer, train, how.c, cfg.eval_tokens)
        notes = [*loaded.notes, *check_tokens(task, vars(splits), encoded)]
        if found:
            sizes = ", ".join(f"{len(of)} {name}" for name, of in encoded.items())
            first = preview(task, splits.train, train, loaded.tokenizer)
            notes = [*found, f"{sizes} examples", *first, *notes]
        if cfg.objective.of(task) in ("lm", "completion") and task.kind == "classification":
            train = [example.true_candidate_alone() for example in train]
        read["weights"] = assembly.base
        if assembly.optimizer.config.trains and assembly.optimizer.replays:
            read["noise"] = assembly.params.engine.backend
            read["parameters"] = str(assembly.params.numel)
        shared = processes, cfg.distributed.shards
        return cls(train, validation, test, scorer, evaluator, assembly, read, notes, *shared)

    def loss_of(self, examples: list[Encoded]) -> BatchLoss | ShardedLoss:
        """Returns the loss of a mini-batch; its batches are built once for a step's forward passes."""
        params = self.assembly.params
        if params.sharded:
            batch = self.scorer.collate(examples)
            return TensorParallelLoss(self.scorer, batch, params, processes=self.processes)
        if self.shards == self.processes.world == 1:
            return BatchLoss(self.scorer, self.scorer.collate(examples), params)
        return ShardedLoss(self.scorer, examples, self.shards, params, self.processes)


@dataclass
class Best:
    """The first evaluation with the best value on the validation split so far.

    Attributes:
        row: Of its step; empty before the first evaluation.
        measure: Of the values.
        evaluations_since: Evaluations after it.
    """

    row: Row = field(default_factory=dict)
    measure: Measure = NAMED["accuracy"]
    evaluations_since: int = 0

    def see(self, row: Row) -> None:
        """Takes note of a row's evaluation, if it has one; only a new best is tested."""
        if (measure := in_row(row)) is None:
            return
        if "best/weights" in row:
            self.row, self.measure, self.evaluations_since = row, measure, 0
        else:
            self.evaluations_since += 1

    @property
    def step(self) -> int:
        """Where it was; -1 before the first evaluation."""
        return int(self.row.get("step", -1))

    def value(self, split: str) -> float:
        """Returns the value on `val` or `test`."""
        return float(self.row[f"eval/{split}_{self.measure.name}"])

    @property
    def shown(self) -> str:
        """The value on the validation split for people; empty before the first evaluation."""
        return self.measure.shown(self.value("val")) if self.row else ""

    def predictions(self) -> dict[str, Any]:
        """Returns what predictions.json holds."""
        test, validation = (
            [ord(c) - ord("0") for c in self.row[f"best/{split}_predictions"]]
            for split in ("test", "val")
        )
        return {"step": self.step, "test": test, "validation": validation}

    def summary(self, session: Session) -> Summary:
        """Returns what is reported; nothing if no evaluation was reached."""
        if not self.row:
            return {}
        predictions = self.row["best/test_predictions"]
        return {
            "best/step": self.step,
            f"best/val_{self.measure.name}": self.value("val"),
            f"best/test_{self.measure.name}": self.value("test"),
            "best/val_n": len(session.validation),
            "best/test_n": len(session.test),
            "best/test_predictions": predictions,
            "best/weights": self.row["best/weights"],
            "test/labels": _characters([e.label for e in session.test if predictions]),
        }


@dataclass
class Totals:
    """What a run adds up over its steps, and goes on with after an interruption.

    Attributes:
        made: Steps.
        ties: Of them, those whose losses were all equal; None where the objective has a gradient.
        forwards: Forward passes.
        best: See `Best`.
        seconds: Of all steps and evaluations.
        peak_gib: Largest memory at an evaluation.
        times: Seconds of every step, of its forward passes, and of its passes over the weights.
    """

    made: int = 0
    ties: int | None = None
    forwards: int = 0
    best: Best = field(default_factory=Best)
    seconds: float = 0.0
    peak_gib: float = 0.0
    times: dict[str, list[float]] = field(
        default_factory=lambda: {"step": [], "forward": [], "perturb": []}
    )

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Totals":
        """Returns the totals of the rows of steps 1, 2, …."""
        totals = cls()
        for row in rows:
            totals.see(row)
        return totals

    def see(self, row: Row) -> None:
        """Adds a row of metrics.jsonl."""
        self.best.see(row)
        self.made = row["step"]
        if TIE in row:
            self.ties = (self.ties or 0) + row[TIE]
        self.forwards = row.get("train/forwards", 0)
        self.seconds += row.get("time/step_s", 0.0) + row.get("time/eval_s", 0.0)
        self.peak_gib = max(self.peak_gib, row.get("mem/peak_gib", 0.0))
        for kind, times in self.times.items():
            if f"time/{kind}_s" in row:
                times.append(row[f"time/{kind}_s"])

    def summary(self) -> Summary:
        """Returns steps, forward passes and median times, ms."""
        medians = {
            f"time/{kind}_ms_median": 1e3 * statistics.median(times)
            for kind, times in self.times.items()
            if times
        }
        return {
            "run/steps": self.made,
            "run/forwards": self.forwards,
            "time/total_s": self.seconds,
            **({} if self.ties is None else {"run/ties": self.ties}),
            **medians,
        }


@dataclass
class Journal:
    """Where a run's steps go as they are made."""

    log: RunLog | NoLog
    progress: Progress
    requests: Requests
    watch: Watch


def train(cfg: RunConfig, session: Session, journal: Journal, totals: Totals) -> Summary:
    """Steps and evaluates until the steps, the patience or the numbers run out.

    Returns:
        The run's summary.

    Raises:
        Interrupted: If a signal asked to stop; the journal has what was made.
        ProcessLostError: If another process ended; the journal has what was made.
        WeightsDifferError: If the weights of the processes differ.
    """
    best, ending = totals.best, ending_of(cfg, totals)
    first = totals.made + 1 if cfg.steps else 0  # without steps: one evaluation, at 0
    for step in range(first, cfg.steps + 1):
        if ending is not None:
            break
        row: Row = {"step": step}
        try:
            if step > 0:
                indices = batch_indices(len(session.train), cfg.batch_size, cfg.seed, step - 1)
                examples = [session.train[i] for i in indices]
                row |= _step(session, examples)
                journal.watch.after_step(session.assembly.optimizer)
                row["train/forwards"] += totals.forwards
            if evaluates(cfg, step):
                row |= _evaluate(cfg, session, best, step, journal)
        except NonFiniteError as error:
            ending = _collapse(error, step)
            journal.progress.say(f"{ending['run/collapse_what']}: collapsed")
        if len(row) > 1:
            totals.see(row)
            journal.log.write(step, {k: v for k, v in row.items() if k != "step"})
        if ending is None:
            ending = ending_of(cfg, totals)
            _keep(cfg, session, best, journal)
            if step > 0:
                journal.progress.advance(row["train/loss"], best.shown)
            journal.requests.heed()
    optimizer = session.assembly.optimizer
    return {
        **(ending or {"run/status": "finished", "run/stop_reason": "steps"}),
        "run/forwards_per_step": optimizer.forwards_per_step,
        **best.summary(session),
        **totals.summary(),
        "mem/peak_gib": max(totals.peak_gib, memory.peak_gib(session.assembly.device)),
        "mem/state_mib": optimizer.state_bytes() / 2**20,
    }


def ending_of(cfg: RunConfig, totals: Totals) -> Summary | None:
    """Returns the ending of a run whose patience is over."""
    if cfg.patience is not None and totals.best.evaluations_since >= cfg.patience:
        return {"run/status": "finished", "run/stop_reason": "patience"}
    return None


def _keep(cfg: RunConfig, session: Session, best: Best, journal: Journal) -> None:
    """Writes a checkpoint after a step if one is due, or if the run is to stop and its steps cannot be replayed.

    Process 0 writes. The others take part where the tensors are sharded.
    """
    writes = not isinstance(journal.log, NoLog)
    if not (writes or session.assembly.params.sharded):
        return
    optimizer, every = session.assembly.optimizer, cfg.checkpoint.full_every
    step = optimizer.step_index
    due = every is not None and step % every == 0 and 0 < step < cfg.steps
    due |= cfg.checkpoint.keep_best and step == best.step > 0
    due |= bool(journal.requests.received) and not optimizer.replays and step > 0
    if due:
        journal.log.sync()
        directory, keep = journal.log.directory, best.step if cfg.checkpoint.keep_best else None
        checkpoint.save(directory, directory.name, optimizer, keep, writes)


def _collapse(error: NonFiniteError, step: int) -> Summary:
    """Returns the ending of a run whose numbers ran out at `step`, counted from 1."""
    return {
        "run/status": "collapsed",
        "run/stop_reason": "non_finite",
        "run/collapse_step": step,
        "run/collapse_what": f"{error.what} is {error.value} at step {step}",
    }


def _step(session: Session, examples: list[Encoded]) -> Row:
    """Makes one step, timed."""
    start, processor = time.perf_counter(), time.process_time()
    assembly, processes = session.assembly, session.processes
    params = assembly.params
    perturb_before, forward_before = params.seconds, params.measuring_seconds
    waited, exchanging, sent = processes.seconds, processes.exchanging, processes.bytes
    loss_fn = session.loss_of(examples)
    info = assembly.optimizer.step(loss_fn)
    ties = {} if session.scorer.differentiable else {TIE: int(len(set(info.losses)) == 1)}
    seconds = time.perf_counter() - start
    losses = {LOSSES: list(info.losses)} if assembly.optimizer.replays else {}
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
        "time/forward_s": params.measuring_seconds - forward_before,
        "time/perturb_s": params.seconds - perturb_before,
        **(exchanged if processes.world > 1 else {}),
    }


def _evaluate(cfg: RunConfig, session: Session, best: Best, step: int, journal: Journal) -> Row:
    """Scores the validation split, and the test split if that is a new best."""
    start = time.perf_counter()
    assembly = session.assembly
    stops = assembly.optimizer.replays  # otherwise the step is lost unless a checkpoint follows
    if (bad := _of_all(session, assembly.params.non_finite())) is not None:
        name, value = bad
        raise NonFiniteError(step, f"parameter {name}", value)

    def score(examples: list[Encoded], split: str) -> Evaluation:
        with journal.progress.evaluating(len(examples)) as done:

            def told(count: int) -> None:
                done(count)
                if stops:
                    journal.requests.heed()

            found = session.evaluator.evaluate(examples, cfg.eval_tokens, told)
        if assembly.params.sharded:
            found = session.processes.exchange(found)[0]
        if not math.isfinite(found.loss):
            raise NonFiniteError(step, f"{split} loss", found.loss)
        return found

    val = score(session.validation, "validation")
    measure = val.measure
    row: Row = {f"eval/val_{measure.name}": val.value, LOSS: val.loss}
    if best.step < 0 or measure.better(val.value, best.value("val")):
        test = score(session.test, "test")
        row[f"eval/test_{measure.name}"] = test.value
        row["best/test_predictions"] = _characters(test.predictions)
        row["best/val_predictions"] = _characters(val.predictions)
        row["best/weights"] = assembly.weights_hash()
        verdict = f"test {measure.shown(test.value)}, the best so far"
    else:
        verdict = f"best {best.shown} at step {best.step}"
    shown = measure.shown(val.value)
    journal.progress.say(f"step {step}: validation {shown}, loss {val.loss:.4f}; {verdict}")
    row["time/eval_s"] = time.perf_counter() - start
    row["mem/peak_gib"] = memory.peak_gib(assembly.device)
    return row


def _of_all(session: Session, bad: tuple[str, float] | None) -> tuple[str, float] | None:
    """Returns what is not finite in any process's part of the weights."""
    if not session.assembly.params.sharded:
        return bad
    return next((of for of in session.processes.exchange(bad) if of is not None), None)


def _characters(indices: list[int]) -> str:
    """Returns a character for each candidate's index: its digit, and beyond 9 what follows in Unicode."""
    return "".join(chr(ord("0") + index) for index in indices)
