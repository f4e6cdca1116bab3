"""How runs reach machines: the typed settings behind `hydra/launcher=NAME`, one YAML file each in launch/profiles.

A profile for another cluster is a copy of `launch/profiles/slurm.yaml` under another name, with its values changed.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from zo import config
from zo.config import ConfigError, Problem
from zo.config.command_line import CommandLine
from zo.config.explain import explain_yaml

PROFILES = Path(__file__).parent / "profiles"


@dataclass
class SlurmProfile:
    """A SLURM cluster; profiles/slurm.yaml explains the keys. None leaves a choice to the cluster."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    gpus_per_node: int | None = None
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int = 4
    mem_gb: float | None = 32.0
    timeout_min: int = 1440
    signal_delay_s: int = 120
    max_num_timeout: int = 100
    array_parallelism: int = 64
    runs_per_job: int = 1
    setup: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    sbatch: dict[str, Any] = field(default_factory=dict)
    folder: str = "${out}/.slurm/%j"

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yields (key, what would be right)."""
        least = {"cpus_per_task": 1, "timeout_min": 1, "signal_delay_s": 1, "max_num_timeout": 0}
        least |= {"array_parallelism": 1, "runs_per_job": 1, "nodes": 1, "tasks_per_node": 1}
        for key, bound in least.items():
            if getattr(self, key) < bound:
                yield key, f"must be at least {bound}"
        if self.mem_gb is not None and self.mem_gb <= 0:
            yield "mem_gb", "must be greater than 0, or null"
        if self.signal_delay_s >= 60 * self.timeout_min:
            yield "signal_delay_s", f"must be less than the time limit, {self.timeout_min} minutes"
        if self.runs_per_job > 1 and self.nodes * self.tasks_per_node > 1:
            yield "runs_per_job", "must be 1 where several processes divide a run"
        if self.gres is not None and self.gpus_per_node is not None:
            yield "gpus_per_node", "must be null where gres asks for GPUs"
        known = {f.name for f in fields(self)}
        for key in self.sbatch:
            if key.replace("-", "_") in known:
                yield "sbatch", f"must not repeat {key}, which is a key of its own"


@dataclass
class LocalProfile:
    """This machine: several processes at once; profiles/local.yaml explains the keys."""

    processes: int = 1
    threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "${out}/.local"

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yields (key, what would be right)."""
        for key in ("processes", "threads"):
            value = getattr(self, key)
            if value is not None and value < 1:
                yield key, "must be at least 1"


Profile = SlurmProfile | LocalProfile


def register() -> None:
    """Makes every file in launch/profiles an option of `hydra/launcher`, and conf/ known to Hydra."""
    config.register()
    store = ConfigStore.instance()
    store.store(group="schema/launcher", name="slurm", node=SlurmProfile)
    store.store(group="schema/launcher", name="local", node=LocalProfile)
    for path in sorted(PROFILES.glob("*.yaml")):
        if (node := _read(path)) is None:
            continue
        store.store(group="hydra/launcher", name=path.stem, node=node, provider="launch/profiles")


@cache
def _read(path: Path) -> Any:
    """Returns a profile's file; None, and says so once, if it is not YAML."""
    try:
        return OmegaConf.load(path)
    except yaml.YAMLError as error:
        print(f"{path}: {explain_yaml(error)}; this profile is left out", file=sys.stderr)
        return None


def profile_of(asked: CommandLine) -> Profile:
    """Returns the profile that a command line chooses.

    Raises:
        ConfigError: If a value of it is out of range, or it is none of this suite's that starts processes.
    """
    chosen, found = asked.launcher
    if not isinstance(found, SlurmProfile | LocalProfile):
        own = ", ".join(path.stem for path in sorted(PROFILES.glob("*.yaml")))
        right = f"must be one of basic, {own}"
        if chosen == "basic":
            right = "runs in its own process; take slurm or local"
        raise ConfigError([Problem("hydra/launcher", chosen, right)])
    wrong = [Problem(f"hydra.launcher.{k}", getattr(found, k), v) for k, v in found.problems()]
    if wrong:
        raise ConfigError(wrong)
    found.folder = str(Path(found.folder).absolute())
    return found
