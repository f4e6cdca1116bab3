"""Composes configurations with Hydra, which merges each choice of groups once; typed values are then set in it.

Hydra works in these two steps, too: options are merged, then overrides of values are set. The first takes 100 ms,
the second 1 ms, and the runs of a grid share the first.
"""

import pickle
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, StringNode, open_dict

from zo.config.checks import ConfigError, Problem
from zo.config.explain import explain_yaml
from zo.config.method_code import with_options

CONFIG_NAME = "config"
SEARCH_PATH = "hydra.searchpath"
"""Directories with further options: of Hydra's own settings the one that decides what a run is."""

FUNCTIONS = "objective.functions"
OWN_KEYS = ("task.options", FUNCTIONS)  # Mappings whose keys are the user's


@cache
def parse(override: str) -> Override:
    """Returns a parsed override of the command line. Raises HydraException if it cannot be parsed."""
    (parsed,) = OverridesParser.create().parse_overrides([with_options(override)])
    return parsed


def with_own_keys(override: str) -> str:
    """Returns an override of a mapping that has no keys of its own as Hydra takes it; keys may be addresses."""
    if not override.startswith(tuple(f"{key}{end}" for key in OWN_KEYS for end in "=.")):
        return override
    key, _, value = override.partition("=")
    if key == FUNCTIONS and (inside := re.fullmatch(r"\{(.*)\}", value.strip())):
        pairs = [entry.rpartition(":") for entry in inside[1].split(",")]
        names = [name.strip() for name, *_ in pairs]
        if twice := [name for name in names if name and names.count(name) > 1]:
            raise ConfigError([Problem(key, value, f"has {twice[0]} twice; give it once")])
        value = ",".join(re.sub(r"(?<!\\):", r"\:", name) + f":{of}" for name, _, of in pairs)
        value = f"{{{value}}}"
    return f"++{key}={value}"


def check_installed(directory: Path) -> None:
    """Raises ConfigError if the files of conf/ are not beside the package."""
    if not directory.is_dir():
        place = Path(__file__).resolve().parents[1]
        right = f"is not installed with {place}; run `pip install -e '.[suite]'` in a copy of the repository"
        raise ConfigError([Problem("conf", ..., right)])


def broken_files(directory: Path) -> list[Problem]:
    """Returns the files of conf/ that are not YAML."""
    problems = []
    for path in sorted(directory.rglob("*.yaml")):
        try:
            yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            problems.append(Problem(str(path), ..., explain_yaml(error)))
    return problems


class Composer:
    """Composes the configurations of a directory with `config.yaml` and groups of options, by Hydra's `loader`."""

    def __init__(self, directory: Path):
        with initialize_config_dir(str(directory), version_base="1.3"):
            self.loader = GlobalHydra.instance().config_loader()
        self.groups = frozenset(self.loader.list_groups(""))
        self._merged: dict[tuple[str, ...], tuple[bytes, bytes]] = {}

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Returns parsed overrides, whose `glob(...)` knows the options of this directory."""
        return OverridesParser.create(self.loader).parse_overrides([*overrides])

    def compose(self, overrides: Sequence[Override], hydra: bool = False) -> DictConfig:
        """Returns a new configuration; `hydra`: with what Hydra is asked for, at `hydra`.

        Raises:
            HydraException, OmegaConfBaseException, ValueError, AssertionError: If it cannot be composed.
        """
        wanted = [
            o
            for o in overrides
            if hydra or o.key_or_group == SEARCH_PATH or not o.is_hydra_override()
        ]
        chosen = [o for o in wanted if self._chooses(o)]
        typed = tuple(str(o.input_line) for o in chosen)
        if typed not in self._merged:
            self._merged[typed] = self._merge(typed)
        cfg: DictConfig = pickle.loads(self._merged[typed][hydra])
        for override in wanted:
            if override not in chosen:
                _set(cfg, override)
        return cfg

    def _chooses(self, override: Override) -> bool:
        """Returns whether an override chooses what is merged, and is no value."""
        key = str(override.key_or_group)
        group = key in self.groups or ("/" in key and bool(self.loader.get_group_options(key)))
        return key == SEARCH_PATH or (group and not isinstance(override.value(), Mapping))

    def _merge(self, chosen: tuple[str, ...]) -> tuple[bytes, bytes]:
        """Returns what Hydra merges of a choice of options, pickled, without and with its own settings."""
        cfg = self.loader.load_configuration(CONFIG_NAME, list(chosen), RunMode.RUN)
        whole = pickle.dumps(cfg)
        with open_dict(cfg):
            del cfg["hydra"]
        return pickle.dumps(cfg), whole


def _set(cfg: DictConfig, override: Override) -> None:
    """Sets, adds (`+`, `++`) or removes (`~`) one value, as Hydra does, and raises as it does."""
    key, value = str(override.key_or_group), override.value()
    if override.package is not None:
        raise ConfigCompositionException(f"{override.input_line}: there is no such group")
    there = OmegaConf.select(cfg, key, throw_on_missing=False)
    above, _, name = key.rpartition(".")
    holder = OmegaConf.select(cfg, above) if above else cfg
    if override.is_delete():
        if there is None or value not in (None, there):
            raise ConfigCompositionException("is not there to be removed")
        with open_dict(cfg):
            del holder[name]
        return
    node = holder._get_node(name, validate_access=False) if isinstance(holder, DictConfig) else None
    if isinstance(node, StringNode) and isinstance(value, (bool, int, float)):
        value = str(override.input_line).partition("=")[2].strip()  # 2024_01 is text there
    if override.is_add() and there is not None and not isinstance(value, (dict, list)):
        raise ConfigCompositionException(f"is there already; write {override.input_line[1:]}")  # type: ignore[index]
    force = override.is_add() or override.is_force_add()
    # A merge into null is an AttributeError of OmegaConf.
    OmegaConf.update(cfg, key, value, merge=there is not None, force_add=force)
