"""What the forward passes of a run need not compute again: the frozen blocks before the first one that trains.

Their output is kept per example, over steps and evaluations, for the splits that fit into `precision.prefix_cache_gib`;
otherwise per mini-batch, during a step.
"""

import torch

from zo.config import RunConfig
from zo.lm.config import ModelError, StatesError
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.states import FrozenBlocks, KeptStates
from zo.run.assembly import Session, frozen_hash
from zo.run.memory import GIB
from zo.tasks import Encoded

EVERY = "all blocks are computed for every probe"

TRIED = 8  # Examples that are scored with kept states and without


def begin_reuse(cfg: RunConfig, session: Session) -> str | None:
    """Finds what can be kept, and tries it on the first training examples; returns a sentence about it, or None.

    Nothing is said of a model whose first block trains.

    Raises:
        ModelError: If there is no memory for what is to be kept.
    """
    params, scorer = session.assembly.params, session.scorer
    if params.shards or not cfg.steps:
        return None
    frozen = FrozenBlocks(session.assembly.loaded.model, params.parameters)
    if not frozen.lists:
        return None
    if why := _hindrance(cfg, session):
        return f"frozen blocks: {EVERY}: {why}"
    assert isinstance(scorer, CandidateScorer)
    try:
        scorer.find_frozen(frozen, session.train[0])
    except StatesError as error:
        return f"frozen blocks: {EVERY}: {error}"
    try:
        kept, said = _keep(cfg, session, scorer)
    except StatesError as error:
        kept, said = [], f"not kept per example: {error}"
    if "train" in kept:
        return f"frozen blocks: {said}"
    if not cfg.optimizer.replays:
        why = "a step is one forward pass"
    elif params.policy.constraints.low_rank:
        why = f"precision.restore={params.policy.name} measures all points in one forward pass"
    else:
        why = _compute_once(scorer, session.train[: cfg.batch_size])
    once = f"computed once per mini-batch: {frozen}" if why is None else f"{EVERY}: {why}"
    return f"frozen blocks: {once}; {said}"


def _hindrance(cfg: RunConfig, session: Session) -> str | None:
    """Returns why a run's scorer cannot leave out blocks."""
    if session.scorer.writes:
        return "the texts that a step generates are continued from their own keys and values"
    if cfg.precision.graphs:
        return "precision.graphs repeats recordings of whole forward passes"
    return None


def _compute_once(scorer: CandidateScorer, examples: list[Encoded]) -> str | None:
    """Has frozen blocks computed once per mini-batch, if a later pass has the bits of the first; else says why not."""
    scorer.once = True
    batch = scorer.collate(examples)
    first, later = scorer.scores(batch), scorer.scores(batch)
    if torch.equal(first, later):
        return None
    scorer.once = False
    return f"scores with their kept output differ by {(later - first).abs().max().item():.2g}"


def _keep(cfg: RunConfig, session: Session, scorer: CandidateScorer) -> tuple[list[str], str]:
    """Begins to keep states per example; returns the splits whose states are kept, and a sentence.

    Raises:
        StatesError: If nothing can be kept of this model.
        ModelError: If there is no memory for it.
    """
    gib = cfg.precision.prefix_cache_gib
    budget = f"precision.prefix_cache_gib={gib:g}"
    if gib == 0:
        return [], f"nothing is kept per example: {budget}"
    like = scorer.find_states(session.train[0])
    splits = {"train": session.train}
    if session.evaluator is scorer:
        splits |= {"validation": session.validation, "test": session.test}
    each = like.shape[-1] * like.element_size()
    kept, beyond, left = dict[str, list[Encoded]](), [], gib * GIB - each
    for name, examples in splits.items():
        size = each * sum(example.length for example in examples)
        if size <= left:
            kept[name], left = examples, left - size
        else:
            beyond.append(f"{name} takes {size / GIB:.2g} GiB")
    without = f"not kept: {', '.join(beyond)}"
    if not kept:
        return [], f"{without} ({budget})"
    frozen = frozen_hash(session.assembly.loaded.model)
    by = f"{cfg.model} {cfg.adapter} {frozen} {like.dtype} {like.device} {torch.get_num_threads()}"
    states = session.shared.states.get(by)
    if states is None or not states.is_of(kept.values()):
        states = None
        session.shared.states.clear()  # their memory first
        try:
            states = KeptStates(kept.values(), like.shape[-1], like)
            session.shared.states[by] = states
        except (RuntimeError, MemoryError) as error:  # torch has no class of its own on a CPU
            what = str(error).splitlines()[0]
            raise ModelError(f"{budget}: no memory for hidden states ({what}); lower it") from None
    _try(scorer, states, next(iter(kept.values()))[:TRIED])
    said = f"kept per example: {', '.join(kept)}, {states.bytes / GIB:.2g} GiB ({budget})"
    return [*kept], f"{said}; {without}" if beyond else said


def _try(scorer: CandidateScorer, states: KeptStates, examples: list[Encoded]) -> None:
    """Raises StatesError if scores with kept states are not those without, but for rounding."""
    plain = scorer.scores(scorer.collate(examples))
    scorer.keep(states)
    try:
        found = scorer.scores(scorer.collate(examples))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # of the model's own code
        scorer.keep(None)
        raise StatesError(f"a pass with kept states fails: {str(error).splitlines()[0]}") from None
    tolerance = torch.finfo(states.dtype).eps ** 0.5
    if not torch.allclose(found, plain, tolerance, tolerance, equal_nan=True):
        scorer.keep(None)
        wrong = (found - plain).abs().max().item()
        raise StatesError(f"scores with kept states differ by {wrong:.2g}")
