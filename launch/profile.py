"""How runs reach machines: the typed settings behind `hydra/launcher=NAME`, one YAML file each in launch/profiles.

A profile for another cluster is a copy of `launch/profiles/slurm.yaml` under another name, with its values changed.
"""

import sys
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
from zo.optim.config import AutoCount, AutoPositive, Count, Rule, Settings, Steps

PROFILES = Path(__file__).parent / "profiles"


@dataclass
class SlurmProfile(Settings):
    """A SLURM cluster; profiles/slurm.yaml explains the keys. None leaves a choice to the cluster."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    gpus_per_node: int | None = None
    nodes: Count = 1
    tasks_per_node: Count = 1
    cpus_per_task: Count = 4
    mem_gb: AutoPositive = 32.0
    timeout_min: Count = 1440
    signal_delay_s: Count = 120
    max_num_timeout: Steps = 100
    array_parallelism: Count = 64
    runs_per_job: Count = 1
    setup: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    sbatch: dict[str, Any] = field(default_factory=dict)
    folder: str = "${out}/.slurm/%j"

    rules = (
        Rule("signal_delay_s", lambda of: of.signal_delay_s < 60 * of.timeout_min,
             "must be less than the time limit, {of.timeout_min} minutes"),
        Rule("runs_per_job", lambda of: of.runs_per_job == 1 or of.nodes * of.tasks_per_node == 1,
             "must be 1 where several processes divide a run"),
        Rule("gpus_per_node", lambda of: None in (of.gres, of.gpus_per_node), "must be null where gres asks for GPUs"),
    )  # fmt: skip

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, what would be right)."""
        known = {f.name for f in fields(self)}
        twice = [key for key in self.sbatch if key.replace("-", "_") in known]
        right = "must not repeat {}, which is a key of its own"
        return super().problems() + [("sbatch", right.format(key)) for key in twice]


@dataclass
class LocalProfile(Settings):
    """This machine: several processes at once; profiles/local.yaml explains the keys."""

    processes: Count = 1
    threads: AutoCount = None
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "${out}/.local"


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
    """Returns the profile that a command line chooses. Raises ConfigError if it is none, or a value is out of range."""
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
