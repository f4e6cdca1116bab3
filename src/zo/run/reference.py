"""The reference of ``objective=dpo``: log-probabilities of all pairs by the weights that the run began with.

They are computed before the first step, and kept in the run's directory for later starts.
"""

from dataclasses import replace
from pathlib import Path

import xxhash

from zo.config import RunConfig
from zo.lm.scoring.preferences import PreferenceScorer
from zo.run.assembly import Session
from zo.run.store import atomic
from zo.run.store.directory import REFERENCE

SPLITS = ("train", "validation", "test")


def add_reference(cfg: RunConfig, directory: Path, session: Session) -> bytes | None:
    """Gives every pair its reference, before the first step is made or replayed; returns the file's new text, or None.

    Process 0 reads the file. Numbers of a missing or torn file, or of other data or weights, are computed anew.
    `Inputs` has the numbers' digest, so a run's later starts refuse others.
    """
    scorer = session.scorer
    assert isinstance(scorer, PreferenceScorer)
    splits = {name: getattr(session, name) for name in SPLITS}
    begun = {key: session.read[key] for key in (*SPLITS, "weights")}
    path, stored = directory / REFERENCE, None
    if session.processes.leads and path.exists():
        stored = atomic.unseal(path.read_bytes())
    stored = session.processes.exchange(stored)[0]
    if fresh := stored is None or stored["of"] != begun:
        most = cfg.eval_tokens
        found = {name: scorer.log_probabilities(of, most) for name, of in splits.items()}
        stored = {"of": begun, **found}
    for name, of in splits.items():
        pairs = zip(of, stored[name], strict=True)
        setattr(session, name, [replace(e, reference=c - r) for e, (c, r) in pairs])
    numbers = repr([stored[name] for name in SPLITS]).encode()
    session.read["reference"] = f"xxh3_128:{xxhash.xxh3_128_hexdigest(numbers)}"
    return atomic.seal(stored) if fresh else None
