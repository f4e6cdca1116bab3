"""A sweep's runs, and where each of them stands: what the disk, the lock and the queue say together."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launch.manifest import Cell, manifest
from launch.records import Record, early_death, written_since_given
from zo.config import ConfigError, RunConfig, command_line, identity_settings
from zo.config.checks import Problem
from zo.config.command_line import CommandLine
from zo.differences import in_facet
from zo.lm.baselines import ZeroShotConfig
from zo.run.multirun import set_group
from zo.run.store.atomic import read_json
from zo.run.store.directory import flat
from zo.run.store.lock import holder

ENDED = ("finished", "collapsed")  # a collapsed run is a result: it counts as *
TYPED = "runs"
STATES = (*ENDED, "running", "queued", "interrupted", "failed", "missing")


@dataclass(frozen=True)
class Run:
    """One run of a sweep: its id, which is the name of its directory, and its configuration."""

    run_id: str
    cfg: RunConfig

    @property
    def directory(self) -> Path:
        """Where it is made."""
        return Path(self.cfg.out).absolute() / self.run_id

    @property
    def kind(self) -> tuple[str, str, str]:
        """Model, precision and method: what its time per step depends on."""
        return self.cfg.model.name, self.cfg.precision.name, self.cfg.optimizer.name


@dataclass(frozen=True)
class Sweep:
    """What a command line asks for."""

    asked: CommandLine  # Two of its cells may be the same run
    runs: list[Run]  # The different runs, in order
    manifest: list[Cell]  # Of all runs, also recorded ones

    @classmethod
    def of(cls, overrides: Sequence[str]) -> "Sweep":
        """Composes and checks every cell. Raises ConfigError if one of them could not be run."""
        return cls.composed(command_line.read(overrides, multirun=True))

    @classmethod
    def composed(cls, asked: CommandLine) -> "Sweep":
        """Returns the different runs of a command line, but for recorded ones, which are not made again."""
        known = recorded(asked.stored_runs)
        if len(asked.cells) > 1 and not asked.sweep:
            added = [(cfg, None) for cfg in untrained([cfg for cfg, _ in asked.cells])]
            asked = replace(asked, cells=[*asked.cells, *added])
        configs = [cfg for cfg, _ in asked.cells]
        set_group(configs, asked.overrides, asked.sweep)
        group = configs[0].tracking.group if len(configs) > 1 else None
        lines, by_id = manifest(asked, asked.sweep or group)
        runs = [Run(name, cfg) for name, cfg in by_id.items() if name not in known]
        return cls(asked, runs, lines)

    @property
    def name(self) -> str:
        """Its file, also W&B's group; TYPED for runs that were typed."""
        return self.asked.sweep or TYPED

    @property
    def nothing_to_do(self) -> str:
        """Says why it has no runs."""
        return f"{self.name}: all of its {len(self.asked.cells)} runs are recorded"


def untrained(configs: Sequence[RunConfig]) -> Iterator[RunConfig]:
    """Yields a zero-shot run for each facet of typed runs, unless one was typed."""
    places: dict[str, RunConfig] = {}
    typed = set()
    for cfg in configs:
        facet = {k: v for k, v in flat(identity_settings(cfg)).items() if in_facet(k)}
        place = str(sorted(facet.items()))
        places.setdefault(place, cfg)
        if cfg.steps == 0 or isinstance(cfg.optimizer, ZeroShotConfig):
            typed.add(place)
    for place, first in places.items():
        if place not in typed:
            own = replace(first.tracking)
            yield replace(first, optimizer=ZeroShotConfig(), steps=0, lr=0.0, tracking=own)


def recorded(path: Path | None) -> frozenset[str]:
    """Returns the ids of the runs in a sweep's file of recorded runs, without those that failed."""
    if path is None or not path.is_file():
        return frozenset()
    from pyarrow.parquet import read_table  # here: it is slow to import, and few sweeps need it

    ended = read_table(path, columns=["run_id"], filters=[("status", "!=", "unfinished")])
    return frozenset(ended["run_id"].to_pylist())


@dataclass(frozen=True)
class Standing:
    """Where a run stands."""

    state: str  # One of STATES
    note: str = ""  # The last line of its error, or who runs it, or its job; else empty
    status: Mapping[str, Any] = field(default_factory=dict)  # Its `status.json`

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.state in ENDED


def standings(runs: Sequence[Run], ask_queue: bool = True) -> dict[str, Standing]:
    """Returns where every run stands, by run id; `ask_queue=False` takes SLURM's jobs to be all alive.

    A run is running if a live process holds its lock. The queue is asked first, then the lock, then the status:
    whatever changes meanwhile, a run that goes on is not taken for one that was left.

    Raises:
        QueueError: If SLURM has to be asked and cannot be.
        ConfigError: If the runs' directories cannot be read.
    """
    try:
        records = {run.run_id: Record.read(run.directory) for run in runs}
        given = [record for record in records.values() if record is not None]
        alive = Record.alive(given, ask_queue)
        return {run.run_id: _standing(run.directory, records[run.run_id], alive) for run in runs}
    except PermissionError as error:
        right = f"{error.filename}: cannot be read ({error.strerror}); choose another directory"
        raise ConfigError([Problem("out", runs[0].cfg.out, right)]) from None


def _standing(directory: Path, record: Record | None, alive: Mapping[Record, str]) -> Standing:
    process = holder(directory)
    status = read_json(directory / "status.json")
    if process is not None:
        return Standing("running", str(process), status)
    state = str(status.get("run/status", "missing"))
    if state in ENDED:
        return Standing(state, str(status.get("run/collapse_what", "")), status)
    queued = alive.get(record) if record is not None else None
    if queued is not None and not (
        state == "failed" and written_since_given(directory, "status.json")
    ):
        return Standing("queued", queued, status)
    if record and queued is None and (said := early_death(directory, record)):
        return Standing("failed", said, status)
    if state == "failed":
        lines = str(status.get("run/error", "")).strip().splitlines()
        return Standing(state, lines[-1] if lines else "", status)
    return Standing("interrupted" if state == "running" else state, "", status)


def counted(found: Iterable[Standing]) -> str:
    """Returns how many runs are in each state, in words."""
    counts = Counter(standing.state for standing in found)
    return ", ".join(f"{counts[s]} {s}" for s in STATES if counts[s]) or "no runs"
