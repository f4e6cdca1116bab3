"""What the forward passes of a run need not compute again: the frozen blocks before the first one that trains."""

from zo.config import RunConfig
from zo.lm.objectives import TextScorer
from zo.run.assembly import Session


def begin_reuse(cfg: RunConfig, session: Session) -> str | None:
    """Tries the reuse of frozen blocks on the first training examples; returns a sentence about it, or None.

    Nothing is said of a model whose first block trains, and of a run whose steps make one forward pass.
    """
    params, scorer = session.assembly.params, session.scorer
    prefix = params.prefix
    if prefix is None or not cfg.steps or not session.assembly.optimizer.replays:
        return None
    if not prefix.chains():
        return None
    if isinstance(scorer, TextScorer):
        prefix.leave("the texts that a step generates are continued from their own keys and values")
    elif cfg.precision.graphs:
        prefix.leave("precision.graphs repeats recordings of whole forward passes")
    elif params.policy.measures_together:
        prefix.leave(f"precision.restore={params.restore} measures all points in one forward pass")
    else:
        batch = scorer.collate(session.train[: cfg.batch_size])
        prefix.prove(lambda: scorer.loss(batch))
    return f"frozen blocks: {prefix.describe()}"
