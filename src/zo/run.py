"""The loop: batch, step, evaluate, stop early, log. Knows no method by name."""

import math
import statistics
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from zo import identity, memory
from zo.config import RunConfig, describe, scientific, to_yaml
from zo.models import ModelError, load
from zo.optim import OPTIMIZERS, NonFiniteError, ZOOptimizer
from zo.params import ParamSpace
from zo.precision import DTYPES
from zo.progress import Progress
from zo.scoring import Batch, CandidateScorer, Evaluation
from zo.tasks import Encoded, TaskError, encode, encode_masked, load_splits
from zo.tasks.batches import BatchOrder
from zo.tracking import RunLog, read_status

Summary = dict[str, Any]

UNUSABLE = (TaskError, ModelError)
"""Data or weights that cannot be had as configured: one sentence for the user, not a defect."""


def run(cfg: RunConfig, sweep: str | None = None) -> Summary:
    """Makes one run, or returns at once if it is finished.

    Args:
        cfg: Checked configuration.
        sweep: Name of the sweep that the run belongs to, W&B's group.

    Returns:
        The run's summary, as docs/design.md lists it.

    Raises:
        TaskError, ModelError: If data or weights cannot be had as configured.
    """
    run_id = identity.run_id(cfg.optimizer.name, scientific(cfg))
    directory = Path(cfg.out) / run_id
    title = describe(cfg)
    status = read_status(directory)
    if cfg.resume and status.get("run/status") in ("finished", "collapsed"):
        print(
            f"{title}: {status['run/status']} before, see {directory} (resume=false runs it anew)"
        )
        return status
    session = Session.open(cfg)
    origin = {"run_id": run_id, "sweep": sweep or "none", "parameters": session.params.numel}
    log = RunLog(
        directory,
        run_id=run_id,
        name=title,
        config={
            **scientific(cfg),
            "provenance": {**origin, **identity.provenance(session.device)},
        },
        config_yaml=to_yaml(cfg),
        tracking=cfg.tracking,
        group=sweep or "none",
    )
    try:
        with Progress(title, cfg.steps) as progress:
            summary = _train(cfg, session, log, progress)
    except BaseException as error:
        log.fail("".join(traceback.format_exception_only(error)).strip())
        raise
    log.finish(summary)
    print(f"{title}: {_outcome(summary)}, see {directory}")
    return summary


@dataclass
class Session:
    """What a run works with: data as tokens, scorer, θ and optimizer."""

    device: torch.device
    train: list[Encoded]
    validation: list[Encoded]
    test: list[Encoded]
    scorer: CandidateScorer
    params: ParamSpace
    optimizer: ZOOptimizer

    @classmethod
    def open(cls, cfg: RunConfig) -> "Session":
        """Loads model and data and makes the optimizer.

        Raises:
            TaskError, ModelError: If they cannot be had as configured or do not fit each other.
        """
        if cfg.threads is not None:
            torch.set_num_threads(cfg.threads)
        device = _device(cfg.device)
        cfg.precision.apply()
        memory.reset_peak(device)
        splits = load_splits(cfg.task)
        loaded = load(cfg.model, DTYPES[cfg.precision.dtype], device)
        params = ParamSpace.of(loaded.model, cfg.precision.restore)
        scorer = CandidateScorer(
            loaded.model,
            loaded.tokenizer.pad_token_id,
            cfg.precision.loss,
            cfg.model.kind,
            cfg.task.objective,
        )
        tokens = encode_masked if cfg.model.kind == "masked" else encode
        train, validation, test = (
            tokens(cfg.task, loaded.tokenizer, examples)
            for examples in (splits.train, splits.validation, splits.test)
        )
        scorer.check([*train, *validation, *test])
        if cfg.task.objective == "lm":
            train = [example.true_candidate_alone() for example in train]
        assert cfg.lr is not None
        return cls(
            device=device,
            train=train,
            validation=validation,
            test=test,
            scorer=scorer,
            params=params,
            optimizer=OPTIMIZERS[cfg.optimizer.name].optimizer(
                params, cfg.optimizer, lr=cfg.lr, seed=cfg.seed
            ),
        )


@dataclass
class Best:
    """The first evaluation with the best validation accuracy so far."""

    step: int = -1
    val_accuracy: float = -1.0
    test_accuracy: float = -1.0
    test_predictions: list[int] = field(default_factory=list)
    evaluations_since: int = 0


@dataclass
class Clock:
    """Seconds of every step, and of its forward passes and its passes over the weights."""

    step: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    perturb: list[float] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        """Returns the last step's times."""
        return {
            "time/step_s": self.step[-1],
            "time/forward_s": self.forward[-1],
            "time/perturb_s": self.perturb[-1],
        }

    def summary(self) -> dict[str, float]:
        """Returns the median times, ms."""
        lists = {"step": self.step, "forward": self.forward, "perturb": self.perturb}
        return {f"time/{k}_ms_median": 1e3 * statistics.median(v) for k, v in lists.items() if v}


def _train(cfg: RunConfig, session: Session, log: RunLog, progress: Progress) -> Summary:
    """Steps and evaluates until the steps, the patience or the numbers run out."""
    started = time.perf_counter()
    order = BatchOrder(len(session.train), cfg.batch_size, cfg.seed)
    clock, best, forwards, made = Clock(), Best(), 0, 0
    ending: Summary = {"run/status": "finished", "run/stop_reason": "steps"}
    for step in range(min(1, cfg.steps), cfg.steps + 1):  # without steps: one evaluation, at 0
        metrics: dict[str, float] = {}
        try:
            if step > 0:
                examples = [session.train[i] for i in order.indices(step - 1)]
                metrics = _step(session, examples, clock)
                forwards += int(metrics.pop("forwards"))
                metrics["train/forwards"] = forwards
                made = step
            if step % cfg.eval_every == 0 or step == cfg.steps:
                metrics |= _evaluate(cfg, session, best, step, log, progress)
        except NonFiniteError as error:
            ending = _collapse(error, step)
        if metrics:
            log.write(step, metrics)
        if ending["run/status"] == "collapsed":
            progress.say(f"{ending['run/collapse_what']}: collapsed")
            break
        if made:
            progress.advance(metrics["train/loss"], best.val_accuracy)
        if cfg.patience is not None and best.evaluations_since >= cfg.patience:
            ending["run/stop_reason"] = "patience"
            break
    return {
        **ending,
        "run/steps": made,
        "run/forwards": forwards,
        "run/forwards_per_step": session.optimizer.forwards_per_step,
        **_best_summary(best, session),
        **clock.summary(),
        "time/total_s": time.perf_counter() - started,
        "mem/peak_gib": memory.peak_gib(session.device),
        "mem/state_mib": session.optimizer.state_bytes() / 2**20,
    }


def _collapse(error: NonFiniteError, step: int) -> Summary:
    """Returns the ending of a run whose numbers ran out at `step`, counted from 1."""
    return {
        "run/status": "collapsed",
        "run/stop_reason": "non_finite",
        "run/collapse_step": step,
        "run/collapse_what": f"{error.what} is {error.value} at step {step}",
    }


@dataclass
class BatchLoss:
    """The loss of one mini-batch at the current θ, as a number and with its gradient.

    Attributes:
        scorer: What computes it.
        batch: The mini-batch, built once for all forward passes of a step.
        seconds: Time spent in forward passes, and in backward passes if there are any.
    """

    scorer: CandidateScorer
    batch: Batch
    seconds: float = 0.0

    def __call__(self) -> float:
        """Returns the loss, without a gradient."""
        start = time.perf_counter()
        loss = self.scorer.loss(self.batch)
        self.seconds += time.perf_counter() - start
        return loss

    def backward(self) -> float:
        """Returns the loss and adds its gradient to `grad` of the parameters."""
        start = time.perf_counter()
        loss = self.scorer.differentiable_loss(self.batch)
        loss.backward()
        value = loss.item()
        self.seconds += time.perf_counter() - start
        return value


def _step(session: Session, examples: list[Encoded], clock: Clock) -> dict[str, float]:
    """Makes one step, timed; the batch is built once for all of its forward passes."""
    start = time.perf_counter()
    perturb_before = session.params.seconds
    loss_fn = BatchLoss(session.scorer, session.scorer.collate(examples))
    info = session.optimizer.step(loss_fn)
    clock.step.append(time.perf_counter() - start)
    clock.forward.append(loss_fn.seconds)
    clock.perturb.append(session.params.seconds - perturb_before)
    return {
        "train/loss": info.loss,
        "forwards": info.forwards,
        **{f"optim/{name}": value for name, value in info.scalars.items()},
        **clock.metrics(),
    }


def _evaluate(
    cfg: RunConfig, session: Session, best: Best, step: int, log: RunLog, progress: Progress
) -> dict[str, float]:
    """Scores the validation split, and the test split if that is a new best.

    Raises:
        NonFiniteError: If a weight or a loss is not finite; `best` and the predictions stay as they were.
    """
    start = time.perf_counter()
    if (found := session.params.non_finite()) is not None:
        name, value = found
        raise NonFiniteError(step, f"parameter {name}", value)
    with progress.evaluating(len(session.validation)) as done:
        val = session.scorer.evaluate(session.validation, cfg.eval_tokens, done)
    _check(val, "validation", step)
    metrics = {"eval/val_accuracy": val.accuracy, "eval/val_loss": val.loss}
    if val.accuracy > best.val_accuracy:
        with progress.evaluating(len(session.test)) as done:
            test = session.scorer.evaluate(session.test, cfg.eval_tokens, done)
        _check(test, "test", step)
        metrics["eval/test_accuracy"] = test.accuracy
        best.step, best.evaluations_since = step, 0
        best.val_accuracy, best.test_accuracy = val.accuracy, test.accuracy
        best.test_predictions = test.predictions
        log.write_predictions(
            {"step": step, "test": test.predictions, "validation": val.predictions}
        )
        verdict = f"test {test.accuracy:.1%}, the best so far"
    else:
        best.evaluations_since += 1
        verdict = f"best {best.val_accuracy:.1%} at step {best.step}"
    progress.say(f"step {step}: validation {val.accuracy:.1%}, loss {val.loss:.4f}; {verdict}")
    metrics["time/eval_s"] = time.perf_counter() - start
    metrics["mem/peak_gib"] = memory.peak_gib(session.device)
    return metrics


def _check(found: Evaluation, split: str, step: int) -> None:
    """Raises NonFiniteError if the mean loss of a split is not finite, as it is not if any of its losses is not."""
    if not math.isfinite(found.loss):
        raise NonFiniteError(step, f"{split} loss", found.loss)


def _best_summary(best: Best, session: Session) -> Summary:
    """Returns what is reported of the best step; nothing if no evaluation was reached."""
    if best.step < 0:
        return {}
    return {
        "best/step": best.step,
        "best/val_accuracy": best.val_accuracy,
        "best/test_accuracy": best.test_accuracy,
        "best/val_n": len(session.validation),
        "best/test_n": len(session.test),
        "best/test_predictions": "".join(map(str, best.test_predictions)),
        "test/labels": "".join(str(e.label) for e in session.test),
    }


def _outcome(summary: Summary) -> str:
    """Returns one line for people."""
    if summary["run/status"] == "collapsed":
        return f"collapsed at step {summary['run/collapse_step']}"
    return (
        f"test {summary['best/test_accuracy']:.1%} of {summary['best/test_n']} at step "
        f"{summary['best/step']} (best validation {summary['best/val_accuracy']:.1%})"
    )


def _device(name: str) -> torch.device:
    """Resolves `auto`: the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
