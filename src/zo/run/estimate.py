"""Memory and time of a run in one line, from the times of its first steps."""

import time
from collections.abc import Mapping, Sequence
from statistics import median

from zo.config import RunConfig
from zo.lm.scoring.candidates import CandidateScorer, length_batches
from zo.run import memory
from zo.run.assembly import Session
from zo.run.store.rows import evaluates

OFTEN = 0.5
"""Share of the evaluations that score the test split, too: those with a new best."""


def estimated(
    cfg: RunConfig, session: Session, times: Mapping[str, Sequence[float]], made: int
) -> str:
    """Returns a run's memory and time in one line.

    Args:
        cfg: Of the run.
        session: After its newest step.
        times: Seconds of some steps, see `Totals.times`.
        made: Steps that are there.
    """
    step, forward, weights = (median(times[kind]) for kind in ("step", "forward", "perturb"))
    left, count, once = cfg.steps - made, cfg.optimizer.forwards_per_step, 0.0
    gib = memory.peak_gib(session.assembly.device)
    parts = f"{count} forward passes of {shown(forward / count)}, passes over the weights {shown(weights)}"
    if (kept := getattr(session.scorer, "kept", None)) is not None:  # they come with new examples
        once = max(0.0, step - forward - weights) * len(session.train) / cfg.batch_size
        step = forward + weights
        gib += kept.bytes / memory.GIB
        parts += f", after hidden states once, {shown(once)}"
    evaluation = _evaluation_seconds(cfg, session, forward / count)
    evaluations = sum(evaluates(cfg, step) for step in range(made + 1, cfg.steps + 1))
    return (
        f"about {gib:.2g} GiB and {shown(once + left * step + evaluations * evaluation)}: {left:,} steps of "
        f"{shown(step)} ({parts}), {evaluations} evaluation{'s' * (evaluations != 1)} of {shown(evaluation)}"
    )


def _evaluation_seconds(cfg: RunConfig, session: Session, forward: float) -> float:
    """Returns how long an evaluation takes, by its largest batch, or by a forward pass where texts are written."""
    scorer, splits = session.evaluator, (session.validation, session.test)
    if not isinstance(scorer, CandidateScorer):
        validation, test = map(len, splits)
        return forward / cfg.batch_size * (validation + OFTEN * test)
    validation, test = (sum(example.length for example in of) for of in splits)
    examples = [*session.validation, *session.test]
    lengths = [example.length for example in examples]
    batches = length_batches(lengths, cfg.eval_tokens)
    largest = max(batches, key=lambda of: len(of) * lengths[of[-1]])
    chosen = [examples[i] for i in largest]
    for _ in range(1 if scorer.kept is None else 2):  # the first one computes hidden states
        start = time.perf_counter()
        scorer.evaluate(chosen, cfg.eval_tokens)
        seconds = time.perf_counter() - start
    return seconds * (validation + OFTEN * test) / sum(example.length for example in chosen)


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
