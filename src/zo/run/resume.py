"""Steps that a run need not make again: its own, or those of a run beside it that is shorter or longer."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from zo.config import RunConfig
from zo.run.assembly import Session
from zo.run.logs.progress import Progress
from zo.run.predictions import TABLE
from zo.run.signals import Requests
from zo.run.store import checkpoint
from zo.run.store.directory import Inputs, related
from zo.run.store.rows import (
    OF_EVALUATION,
    TEXTS,
    Row,
    evaluates,
    read_rows,
    trajectory_of,
    usable_rows,
    write_rows,
)
from zo.run.totals import Totals, ending_of


def resume(
    cfg: RunConfig, directory: Path, session: Session, progress: Progress, requests: Requests
) -> list[Row]:
    """Brings θ and the optimizer to the last step that is known; returns the rows up to it."""
    processes = session.processes
    found = _find_rows(cfg, directory) if processes.leads else None
    rows, source = processes.exchange(found)[0]
    if not rows:
        return rows
    if not cfg.optimizer.replays:
        method = session.assembly.optimizer
        del rows[checkpoint.load_newest(source, method, len(rows)) :]
        origin = "a checkpoint"
    if rows and processes.leads and source != directory:
        _take_over(cfg, rows, source, directory)
    if cfg.optimizer.replays:
        from zo.run.results.replay import replay_to

        with processes.together(), progress.counting("replay", len(rows), more=False) as made:

            def reached(step: int) -> None:
                made(step)
                requests.heed()

            trajectory = trajectory_of(directory, rows)
            start = replay_to(session.assembly, trajectory, len(rows), source, reached)
        origin = f"step {start}, {len(rows) - start} steps replayed"
    if rows:
        progress.begin_at(len(rows))
        of = "" if source == directory else f" of {source}"
        progress.say(f"goes on after step {len(rows)}{of} (from {origin})")
    return rows


def _take_over(cfg: RunConfig, rows: list[Row], source: Path, directory: Path) -> None:
    """Copies what another run has of its first steps; the rows last, which say that they are made."""
    for name in (TABLE, TEXTS):
        with suppress(FileNotFoundError):  # the task's kind has one of them, or none
            shutil.copyfile(source / name, directory / name)
    if cfg.checkpoint.keeps_best(cfg.optimizer) and not cfg.optimizer.replays:
        checkpoint.copy(source, directory, Totals.of(rows).best.step)
    write_rows(directory, rows)


def _find_rows(cfg: RunConfig, directory: Path) -> tuple[list[Row], Path]:
    """Returns the rows that need not be made again, and the directory of the run that made them.

    Without rows of its own a run takes the most that one beside it has, which differs in steps or patience alone; one
    that is to be made anew takes none.
    """
    losses = cfg.optimizer.losses_per_step if cfg.optimizer.replays else 0
    rows, source = usable_rows(read_rows(directory), cfg, losses), directory
    own = Inputs.load(directory)
    if cfg.resume and not rows and own is not None:
        for other, inputs, keys in related(directory, own):
            if keys and keys <= {"steps", "patience"} and inputs.read == own.read:
                found = usable_rows(_as_configured(cfg, read_rows(other)), cfg, losses)
                rows, source = max((rows, source), (found, other), key=lambda of: len(of[0]))
    checkpoint.remove_partial(directory)
    return rows, source


def _as_configured(cfg: RunConfig, rows: Sequence[Row]) -> list[Row]:
    """Returns the rows of a run with other steps or patience as this run would have made them."""
    totals = Totals()
    kept: list[Row] = []
    for row in rows:
        if ending_of(cfg, totals) is not None:
            break
        if not evaluates(cfg, row["step"]):
            row = {key: of for key, of in row.items() if not key.startswith(OF_EVALUATION)}
        kept.append(row)
        totals.see(row)
    return kept
