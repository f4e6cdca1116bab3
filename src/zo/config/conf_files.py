"""Whether the files of conf/ are there, are YAML, and ask Hydra for what it does here."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from hydra.conf import HydraConf
from omegaconf import DictConfig

from zo.config.checks import ConfigError, Problem
from zo.config.explain import explain_yaml
from zo.config.lines import LINES
from zo.config.origin import CONFIG_DIR

HYDRA = tuple(field.name for field in fields(HydraConf))
SWEEPER = ("params", *LINES)
"""Keys of `hydra.sweeper` in a file."""


def check_installed() -> None:
    """Makes sure that the files of conf/ are beside the package.

    Raises:
        ConfigError: If they are not.
    """
    if not CONFIG_DIR.is_dir():
        place = Path(__file__).resolve().parents[1]
        right = f"is not installed with {place}; run `pip install -e '.[suite]'` in a copy of the repository"
        raise ConfigError([Problem("conf", ..., right)])


def broken_files() -> Iterator[Problem]:
    """Yields the files of conf/ that are not YAML."""
    for path in sorted(CONFIG_DIR.rglob("*.yaml")):
        try:
            yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            yield Problem(str(path), ..., explain_yaml(error))


def check_sweep(sweep: str, hydra: Mapping[str, Any]) -> None:
    """Makes sure that Hydra knows what a sweep's file asks of it: it would overlook a wrong key of its sweeper.

    Raises:
        ConfigError: Names the keys that it does not know.
    """
    unknown = [f"hydra.{key}" for key in hydra if key not in HYDRA]
    unknown += [f"hydra.sweeper.{key}" for key in hydra.get("sweeper", {}) if key not in SWEEPER]
    if unknown:
        right = f"no such key in sweep={sweep}; there are hydra.mode and, in hydra.sweeper, {', '.join(SWEEPER)}"
        raise ConfigError([Problem(key, ..., right) for key in unknown])


def foreign_plugins(hydra: DictConfig) -> Iterator[Problem]:
    """Yields Hydra's launcher and sweeper if they are other ones, which would lose runs without a word."""
    own = {
        "launcher": (
            "hydra_plugins.zo_launchers.",
            "basic, local, slurm or a file of launch/profiles",
        ),
        "sweeper": ("hydra_plugins.zo_launchers.", "basic, and a grid's values, as lr=1e-6,1e-7"),
    }
    for kind, (place, right) in own.items():
        target = str(hydra[kind].get("_target_"))
        if not target.startswith(place):
            key = f"hydra/{kind}"
            wrong = f"{target} does not make these runs; take {right}"
            yield Problem(key, hydra.runtime.choices.get(key, "?"), wrong)
