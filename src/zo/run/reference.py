"""The reference of ``objective=dpo``: log-probabilities of all pairs by the weights that the run began with.

They are computed before the first step, and kept in the run's directory for later starts.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import xxhash

from zo.config import RunConfig
from zo.lm.scoring.preferences import PreferenceScorer
from zo.run.assembly import Session
from zo.run.store import atomic
from zo.tasks import Encoded

FILE = "reference.json"

SPLITS = ("train", "validation", "test")


def add_reference(cfg: RunConfig, directory: Path, session: Session) -> bytes | None:
    """Gives every pair its reference, before the first step is made or replayed; other objectives have none.

    Process 0 reads the file. Numbers of a missing or torn file, or of other data or weights, are computed anew.
    `Inputs` has the numbers' digest, so a run's later starts refuse others.

    Returns:
        The file's new content; None if it has its content.
    """
    scorer = session.scorer
    if cfg.objective.of(session.task) != "dpo":
        return None
    assert isinstance(scorer, PreferenceScorer)
    begun = {key: session.read[key] for key in (*SPLITS, "weights")}
    stored = None
    if session.processes.leads and (directory / FILE).exists():
        stored = atomic.unseal((directory / FILE).read_bytes())
    stored = session.processes.exchange(stored)[0]
    fresh = stored is None or stored["of"] != begun
    if fresh:
        found = {
            split: scorer.log_probabilities(getattr(session, split), cfg.eval_tokens)
            for split in SPLITS
        }
        stored = {"of": begun, **found}
    for split in SPLITS:
        setattr(session, split, _with(getattr(session, split), stored[split]))
    numbers = repr([stored[split] for split in SPLITS]).encode()
    session.read["reference"] = f"xxh3_128:{xxhash.xxh3_128_hexdigest(numbers)}"
    return atomic.seal(stored) if fresh else None


def _with(examples: Sequence[Encoded], numbers: Sequence[Sequence[float]]) -> list[Encoded]:
    pairs = zip(examples, numbers, strict=True)
    return [replace(example, reference=chosen - rejected) for example, (chosen, rejected) in pairs]
