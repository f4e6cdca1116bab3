"""One run, from its configuration to its summary: made, resumed, or left alone if it has ended."""

import errno
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from zo.config import RunConfig, describe, notes, probe_note
from zo.config.identity import run_id
from zo.distributed.agreement import Watch, WeightsDifferError
from zo.distributed.processes import Processes, ProcessesError, ProcessLostError, join
from zo.lm.config import ModelError
from zo.lm.scoring.candidates import CandidateScorer
from zo.record.trajectory import TrajectoryError
from zo.run import dist_checks, memory, predictions, provenance, signals
from zo.run.assembly import DeviceError, Session
from zo.run.command import Shared
from zo.run.dist_checks import Start, losing
from zo.run.logs.progress import Progress, Screen
from zo.run.logs.tracking import (
    ENDED,
    ERROR,
    RunLog,
    note_attempt,
    note_failure,
    note_interruption,
    read_status,
    set_status,
)
from zo.run.logs.wandb_run import ID, renew_wandb_id
from zo.run.loop import Run
from zo.run.signals import Interrupted, Requests
from zo.run.store import atomic, checkpoint, lock
from zo.run.store.directory import (
    CONFIG,
    REFERENCE,
    DirectoryError,
    Inputs,
    InputsError,
    freeze,
    related,
    remove_partial_writes,
    write_task,
)
from zo.run.store.rows import (
    ATTEMPTS,
    OF_EVALUATION,
    TEXTS,
    TRAJECTORY,
    Row,
    evaluates,
    read_rows,
    trajectory_of,
    usable_rows,
    write_rows,
)
from zo.run.totals import Summary, Totals, outcome
from zo.tasks import TaskError

OFFLOADED = "offloaded"  # Directory of the copies of offloaded weights, with the process's rank

UNUSABLE = (
    *(TaskError, ModelError, TrajectoryError, DirectoryError, InputsError, DeviceError),
    ProcessesError,
)
"""Device, data, weights or files that cannot be had as configured: one sentence for the user, not a defect."""


def run(cfg: RunConfig, directory: Path | None = None, shared: Shared | None = None) -> Summary:
    """Makes one run, goes on with it where it was interrupted, or finds that it has ended; returns its summary.

    `directory` is of a run that is frozen; None finds or makes the one of the checked configuration. `shared` has what
    earlier runs of a multirun left, and takes what this one leaves.

    Raises:
        One of UNUSABLE: If the run cannot be made as configured.
        LockedError: If another process is making this run.
        Interrupted: If a signal asked to stop or another process ended; what was made is saved.
    """
    with losing():
        processes = join(cfg.distributed.timeout, cfg.distributed.tensor > 1)
        dist_checks.check_start(processes, cfg)
    start = Start(processes, shared or Shared())
    if not processes.leads:
        with signals.requests() as requests, losing():
            begun = start.wait()
            return begun if isinstance(begun, dict) else _attempt(cfg, begun, requests, start)
    told: Summary | ProcessesError = ProcessesError("stopped")
    try:
        told = status = _lead(cfg, directory, start)
        return status
    except Exception as error:
        told = ProcessesError(str(error))
        raise
    finally:
        with suppress(ProcessLostError):
            start.tell(told)


def _lead(cfg: RunConfig, directory: Path | None, start: Start) -> Summary:
    """Makes the run as `run` says, and writes its directory."""
    inputs, title = Inputs.of(cfg), describe(cfg)
    new = directory is None and not inputs.directory(cfg).exists()
    advice = "; resume=false runs it anew" if directory is None else ""
    directory = freeze(cfg, inputs) if directory is None else directory.resolve()
    if cfg.resume and (recorded := Inputs.load(directory)) is not None:
        recorded.check_files(inputs.files, directory)
    if cfg.resume and (status := read_status(directory)).get("run/status") in ENDED:
        _remove_checkpoints(cfg, directory, status)  # a kill may have come before that
        _show(f"{status['run/status']} before: {outcome(status, cfg.patience)}{advice}", directory)
        return status
    with _held(directory), signals.requests() as requests, _noting(directory, new, cfg.resume):
        if not cfg.resume:
            _clear(directory)
            inputs.save(directory)
        if new:
            _name_changed_files(directory, title)
            _name_former_defaults(cfg, directory, inputs, title)
        with losing():
            summary = _attempt(cfg, directory, requests, start)
    _show(outcome(summary, cfg.patience), directory, predictions.lines(summary))
    return summary


def _attempt(cfg: RunConfig, directory: Path, requests: Requests, start: Start) -> Summary:
    """Loads what a run needs and makes what is missing of it; its directory is held."""
    processes = start.processes
    if processes.leads:
        start.tell(directory.resolve())
    memory.release()  # of the run before
    scratch = directory / f"{OFFLOADED}-{processes.rank}"
    shutil.rmtree(scratch, ignore_errors=True)  # of a start that was killed
    try:
        with requests.loading(), processes.together():
            session = Session.open(cfg, scratch, start.shared)
        dist_checks.check_loaded(processes, cfg, session)
        reference = None
        if cfg.objective.of(session.task) == "dpo":
            from zo.run.reference import add_reference  # here: other runs need none of it

            reference = add_reference(cfg, directory, session)
        with processes.together():
            if processes.leads:
                _record_inputs(cfg, directory, session)
                if reference is not None:
                    atomic.replace(directory / REFERENCE, reference)
            elif not (directory / CONFIG).exists():
                raise DirectoryError(f"no {directory} here; give an out= that all processes share")
        return _make(cfg, directory, requests, processes, session)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _make(
    cfg: RunConfig, directory: Path, requests: Requests, processes: Processes, session: Session
) -> Summary:
    """Goes on where the run was, trains and evaluates to its end, and writes the result."""
    assembly, log = session.assembly, None
    if cfg.model.quantization:
        memory.release()  # of the weights before they were quantised
    memory.reset_peak(assembly.device)
    with Progress(cfg.steps) as progress:
        divided = dist_checks.notes(processes, cfg, session)
        for note in [*probe_note(cfg), *notes(cfg), *session.notes, *divided]:
            progress.say(note)
        sharded = bool(assembly.params.shards)
        watch = Watch(processes, None if sharded else cfg.distributed.check_every)
        rows = _resume(cfg, directory, session, progress, requests)
        totals = Totals.of(rows)
        if processes.world > 1 and not sharded and cfg.steps:
            watch.compare(assembly.optimizer)
        if assembly.freezes:
            from zo.run.reuse import begin_reuse

            if (line := begin_reuse(cfg, session)) is not None:
                progress.say(line)
        rewards = None
        if not isinstance(session.scorer, CandidateScorer):
            from zo.run.logs.rewards import RewardLog, TextLog

            texts = TextLog(directory, totals.made) if processes.leads else None
            rewards = RewardLog(session.scorer, processes, texts, progress.say)
        if processes.leads:
            started = provenance.provenance(assembly.device)
            note_attempt(directory, len(rows), started | {"parameters": assembly.params.numel})
            log = RunLog(cfg, directory, rows, session.shared)
            predictions.restore(directory, totals.best, session)
        run = Run(cfg, directory, session, progress, requests, watch, totals, log, rewards)
        if log is None:
            return run.train()
        try:
            summary = run.train()
            log.sync()
        except BaseException as error:
            stopped = isinstance(error, Interrupted | KeyboardInterrupt)
            log.abandon("interrupted" if stopped else "failed")
            raise
    if cfg.optimizer.replays and totals.made:
        atomic.replace(directory / TRAJECTORY, trajectory_of(directory).encode())
    log.finish(summary)
    _remove_checkpoints(cfg, directory, summary)
    return summary


def _resume(
    cfg: RunConfig, directory: Path, session: Session, progress: Progress, requests: Requests
) -> list[Row]:
    """Brings θ and the optimizer to the last step that is known; returns the rows up to it."""
    processes, assembly = session.processes, session.assembly
    found = _find_rows(cfg, directory) if processes.leads else None
    rows, source = processes.exchange(found)[0]
    if rows and not cfg.optimizer.replays:
        del rows[checkpoint.load_newest(source, assembly.optimizer, len(rows)) :]
        origin = "a checkpoint"
    if rows and processes.leads and source != directory:
        _take_over(cfg, rows, source, directory)
    if rows and cfg.optimizer.replays:
        from zo.run.results.replay import replay_to

        with processes.together(), progress.counting("replay", len(rows), more=False) as made:

            def reached(step: int) -> None:
                made(step)
                requests.heed()

            trajectory = trajectory_of(directory, rows)
            start = replay_to(assembly, trajectory, len(rows), source, reached)
        origin = f"step {start}, {len(rows) - start} steps replayed"
    if rows:
        progress.begin_at(len(rows))
        of = "" if source == directory else f" of {source}"
        progress.say(f"goes on after step {len(rows)}{of} (from {origin})")
    return rows


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
        if totals.ending(cfg.patience) is not None:
            break
        if not evaluates(cfg, row["step"]):
            row = {key: of for key, of in row.items() if not key.startswith(OF_EVALUATION)}
        kept.append(row)
        totals.see(row)
    return kept


def _take_over(cfg: RunConfig, rows: list[Row], source: Path, directory: Path) -> None:
    """Copies what another run has of its first steps; the rows last, which say that they are made."""
    for name in (predictions.TABLE, TEXTS):
        with suppress(FileNotFoundError):  # the task's kind has one of them, or none
            shutil.copyfile(source / name, directory / name)
    if cfg.checkpoint.keeps_best(cfg.optimizer) and not cfg.optimizer.replays:
        checkpoint.copy(source, directory, Totals.of(rows).best.step)
    write_rows(directory, rows)


def _remove_checkpoints(cfg: RunConfig, directory: Path, summary: Summary) -> None:
    """Removes checkpoints of a run that has ended, but the one that it is to keep, and what kills left."""
    keeps_best = cfg.checkpoint.keeps_best(cfg.optimizer)
    checkpoint.remove(directory, summary.get("best/step") if keeps_best else None)
    remove_partial_writes(directory)


def _record_inputs(cfg: RunConfig, directory: Path, session: Session) -> None:
    """Compares what was loaded with what the run's steps were made with; records it if there are none."""
    recorded = Inputs.load(directory) or Inputs.of(cfg)
    if read_rows(directory):
        recorded.check_read(session.read, directory)
    if recorded.read != session.read:
        recorded.read = session.read
        write_task(directory, cfg, session.task)
        recorded.save(directory)


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Holds a run's directory; one that cannot be written, was removed, or is on a full disk is one sentence."""
    holds = False
    try:
        with lock.held(directory):
            holds = True  # it can be written
            yield
    except OSError as error:
        if not holds:
            raise DirectoryError(f"{error.filename or directory}: {error.strerror}") from None
        if not directory.exists():
            why = f"{directory} was removed while the run went on"
            raise DirectoryError(f"{why}; the same command makes it anew") from None
        if not _is_full(error):
            raise
        steps = len(read_rows(directory))
        then = f"goes on after step {steps}" if steps else "starts again"
        why = f"{error.filename or directory}: {error.strerror}; make room and repeat the command, which {then}"
        with suppress(OSError):
            set_status(directory, {"run/status": "failed", "run/error": why})
        raise DirectoryError(why) from None


@contextmanager
def _noting(directory: Path, new: bool, resumes: bool) -> Iterator[None]:
    """Notes what stops an attempt; of a `new` run that cannot be made nothing stays."""
    try:
        yield
    except WeightsDifferError as error:
        write_rows(directory, read_rows(directory)[: error.agreed])
        set_status(directory, {"run/status": "failed", "run/error": str(error)})
        raise
    except UNUSABLE as error:
        if isinstance(error, TaskError) and error.traceback:
            note_failure(directory, error)
            print(f"its traceback: {directory / ERROR}", file=sys.stderr)
        elif new and not read_rows(directory):
            shutil.rmtree(directory)
            with suppress(OSError):  # it has other runs, or is a link or a place of its own
                directory.parent.rmdir()
        else:
            set_status(directory, {"run/status": "failed", "run/error": str(error)})
        raise
    except (Interrupted, KeyboardInterrupt) as stopped:
        steps = note_interruption(directory, getattr(stopped, "name", "SIGINT"))
        without = "" if resumes else ", without resume=false,"
        after = f"at step {steps}, saved; the same command{without} goes on from there"
        before = "before step 1; the same command starts again"
        print(f"stopped {after if steps else before}", file=sys.stderr)
        raise
    except Exception as error:
        if not _is_full(error) and directory.exists():
            note_failure(directory, error)
        raise


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _name_changed_files(directory: Path, title: str) -> None:
    """Says how many runs a new one would go on from if its files had their content."""
    own = Inputs.load(directory)
    assert own is not None
    found = [(o, keys) for o, _, keys in related(directory, own) if keys and keys <= {*own.files}]
    if found:
        more = f" or {len(found) - 1} more" * (len(found) > 1)
        keys = ", ".join(sorted(set().union(*(keys for _, keys in found))))
        print(f"{title}: a new run, not {found[0][0]}{more}: {keys} has another content")


def _name_former_defaults(cfg: RunConfig, directory: Path, inputs: Inputs, title: str) -> None:
    """Says that the same command began a run when the defaults of precision were others, and how to go on with it."""
    precision = replace(cfg.precision, noise="torch", restore="merged")
    former = Path(cfg.out, run_id(replace(cfg, precision=precision), inputs.files))
    another = former.exists() and former.name != directory.name
    if another and read_status(former).get("run/status") not in ENDED:
        keys = "precision.noise=torch precision.restore=merged"
        how = f"{keys} goes on with that one, begun when these were the defaults"
        print(f"{title}: a new run, not {former}: {how}")


def _clear(directory: Path) -> None:
    """Removes what earlier attempts left, but the frozen configuration and the lock; W&B's run gets a new id."""
    logged = (directory / ATTEMPTS).exists() or (directory / ID).exists()
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (CONFIG, lock.NAME, lock.HOLDER):
            path.unlink()
    if logged:
        renew_wandb_id(directory)


def _show(ending: str, directory: Path, more: Sequence[str] = ()) -> None:
    """Prints how a run ended, and where it is."""
    screen = Screen()
    for line in (ending, *more):
        screen.say(line, indent=2)
    screen.say(str(directory), indent=2, wraps=False)
