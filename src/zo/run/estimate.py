"""Memory and time of a run before its first step, from what its parts take here: nothing of θ is moved."""

import time
from collections.abc import Callable

import torch

from zo.config import RunConfig
from zo.lm.scoring.candidates import length_batches
from zo.lm.scoring.texts import TextScorer
from zo.run import memory
from zo.run.assembly import Session
from zo.run.store.rows import evaluates
from zo.tasks import Encoded
from zo.tasks.batches import batch_indices
from zo.weights.restore import FactoredPolicy
from zo.weights.updates import add_

LEAST = 100
"""Steps from which a run is worth an estimate."""

ENOUGH_S = 0.5
"""Seconds after which no more tensors are displaced for a time."""

OFTEN = 0.5
"""Share of the evaluations that score the test split, too: those with a new best."""


def estimated(cfg: RunConfig, session: Session, made: int) -> str | None:
    """Returns a run's memory and time in one line, or None: of few steps, of backpropagation, of several processes.

    Measured are a loss, the largest batch of an evaluation, and a pass over copies of single tensors. `snapshot` adds
    its copy of θ. The peak that the run reports does not count this.

    Args:
        cfg: Of the run.
        session: At the step from which the run goes on.
        made: Steps that are there.
    """
    method, device = cfg.optimizer, session.assembly.device
    left = cfg.steps - made
    if left < LEAST or not method.replays or session.processes.world > 1 or session.shards > 1:
        return None
    indices = batch_indices(len(session.train), cfg.batch_size, cfg.seed, made)
    examples = [session.train[i] for i in indices]
    keeping = _keeping_seconds(session, examples)
    if session.scorer.differentiable:
        session.loss_of(examples)()
    loss_fn = session.loss_of(examples)
    forward = _seconds(loss_fn, device)
    count = method.forwards_per_step
    later = forward
    if getattr(session.scorer, "once", False):  # the first one has computed frozen blocks
        later = _seconds(loss_fn, device)
    step = forward + (count - 1) * later
    parts = f"{count} forward passes of {shown(step / count)}"
    if not isinstance(session.assembly.params.policy, FactoredPolicy):
        passes, weights = count + 1, _pass_seconds(session)
        step += passes * weights
        parts += f", {passes} passes over the weights of {shown(weights)}"
    evaluation = _evaluation_seconds(cfg, session, forward)
    evaluations = sum(evaluates(cfg, step) for step in range(made + 1, cfg.steps + 1))
    total = keeping + left * step + evaluations * evaluation
    gib = memory.peak_gib(device)
    if (kept := getattr(session.scorer, "kept", None)) is not None:
        gib += kept.bytes / memory.GIB
        parts += f", after hidden states once, {shown(keeping)}"
    if session.assembly.params.policy.constraints.copies:
        tensors = session.assembly.params.like
        gib += sum(t.numel() * t.element_size() for t in tensors) / memory.GIB
    memory.reset_peak(device)
    return (
        f"about {gib:.2g} GiB and {shown(total)}: {left:,} steps of {shown(step)} ({parts}, measured here), "
        f"{evaluations} evaluations of {shown(evaluation)}"
    )


def _seconds(call: Callable[[], object], device: torch.device, warm: bool = False) -> float:
    """Returns how long a call takes; `warm` makes one before."""
    if warm:
        call()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _keeping_seconds(session: Session, examples: list[Encoded]) -> float:
    """Returns how long it takes to compute the hidden states that are kept, by those of a mini-batch; 0 without."""
    kept = getattr(session.scorer, "kept", None)
    if kept is None:
        return 0.0
    tokens = sum(example.length for example in kept.missing(examples))
    seconds = _seconds(lambda: session.scorer.collate(examples), session.assembly.device)
    return kept.tokens * seconds / tokens if tokens else 0.0


def _evaluation_seconds(cfg: RunConfig, session: Session, forward: float) -> float:
    """Returns how long an evaluation takes, by its largest batch, or by the mini-batch where texts are written."""
    several = session.validation, session.test
    if isinstance(session.evaluator, TextScorer):
        each = forward / cfg.batch_size
        return each * (len(session.validation) + OFTEN * len(session.test))
    lengths = [e.length for of in several for e in of]
    batches = length_batches(lengths, cfg.eval_tokens)
    largest = max(batches, key=lambda of: len(of) * lengths[of[-1]])
    examples = [*session.validation, *session.test]
    chosen = [examples[i] for i in largest]
    keeps = getattr(session.scorer, "kept", None) is not None
    seconds = _seconds(
        lambda: session.evaluator.evaluate(chosen, cfg.eval_tokens),
        session.assembly.device,
        warm=keeps,
    )
    validation, test = (sum(e.length for e in of) for of in several)
    return seconds * (validation + OFTEN * test) / sum(e.length for e in chosen)


def _pass_seconds(session: Session) -> float:
    """Returns how long it takes to draw a direction and add it to all of θ, from copies of its largest tensors."""
    params, device = session.assembly.params, session.assembly.device
    terms = [(1e-3, session.assembly.optimizer.direction())]
    seconds, done = 0.0, 0
    order = sorted(range(len(params.like)), key=lambda i: -params.like[i].numel())
    small = _copy(params.like[order[-1]])
    add_(small, small, order[-1], terms)  # compiles
    for i in order:
        copy = _copy(params.like[i])

        def displace(copy: torch.Tensor = copy, i: int = i) -> None:
            add_(copy, copy, i, terms)

        seconds += _seconds(displace, device)
        done += copy.numel()
        if seconds > ENOUGH_S:
            break
    return seconds * sum(t.numel() for t in params.like) / done


def _copy(like: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a tensor in memory of its own; of an offloaded one, zeros."""
    return like.clone(memory_format=torch.contiguous_format)


def shown(seconds: float) -> str:
    """Returns a time in its unit."""
    for unit, length, most in (
        ("ms", 1e-3, 1.0),
        ("s", 1, 90),
        ("min", 60, 5400),
        ("h", 3600, 1e6),
    ):
        if seconds < most:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 86_400:.0f} days"
