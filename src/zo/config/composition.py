"""Composes configurations with Hydra, which merges each choice of groups once; typed values are then set in it.

Hydra works in these two steps, too: options are merged, then overrides of values are set. The first takes 50 ms and the
second 1 ms, and the runs of a grid share the first.
"""

import pickle
import re
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.default_element import InputDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

CONFIG_NAME = "config"
SEARCH_PATH = "hydra.searchpath"
"""Directories with further options: of Hydra's own settings the one that decides what a run is."""

FUNCTIONS = "objective.functions"
OWN_KEYS = ("task.options", FUNCTIONS)
"""Mappings whose keys are the user's."""


@cache
def parse(override: str) -> Override:
    """Returns a parsed override of the command line.

    Raises:
        HydraException: If it cannot be parsed.
    """
    (parsed,) = OverridesParser.create().parse_overrides([override])
    return parsed


def with_own_keys(override: str) -> str:
    """Returns an override of a mapping that has no keys of its own as Hydra takes it; keys may be addresses."""
    if not override.startswith(tuple(f"{key}{end}" for key in OWN_KEYS for end in "=.")):
        return override
    key, _, value = override.partition("=")
    if key == FUNCTIONS and (inside := re.fullmatch(r"\{(.*)\}", value.strip())):
        pairs = (entry.rpartition(":") for entry in inside[1].split(","))
        value = ",".join(re.sub(r"(?<!\\):", r"\:", name) + f":{of}" for name, _, of in pairs)
        value = f"{{{value}}}"
    return f"++{key}={value}"


class _Files(ConfigRepository):
    """Hydra's own, which reads every file once."""

    def __init__(self, search_path: Any):
        super().__init__(search_path)
        self._read: dict[str, bytes] = {}  # unpickled four times faster than objects are copied

    def __deepcopy__(self, memo: object) -> "_Files":
        return copy(self)  # for each composition, which may add sources

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Returns a copy of an option: Hydra merges others into it."""
        if config_path not in self._read:
            if (found := super().load_config(config_path)) is None:
                return None
            if config_path == "hydra/config":
                found.defaults_list = [o for o in found.defaults_list or () if _is_read(o)]
            self._read[config_path] = pickle.dumps(found)
        return pickle.loads(self._read[config_path])


def _is_read(option: InputDefault) -> bool:
    """Returns whether an option of Hydra's settings is read here; the others take a quarter of the time."""
    return option.is_self() or getattr(option, "group", None) in ("launcher", "sweeper")


class Composer:
    """Composes the configurations of a directory with `config.yaml` and groups of options.

    Attributes:
        loader: Hydra's.
        groups: Names of the groups of options.
    """

    def __init__(self, directory: Path):
        with initialize_config_dir(str(directory), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        loader.repository = _Files(loader.get_search_path())
        self.loader = loader
        self.groups = frozenset(loader.list_groups(""))
        self._merged: dict[tuple[str, ...], tuple[bytes, bytes]] = {}

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Returns parsed overrides, whose `glob(...)` knows the options of this directory."""
        return OverridesParser.create(self.loader).parse_overrides(list(overrides))

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
        self.loader._apply_overrides_to_config([o for o in wanted if o not in chosen], cfg)
        return cfg

    def _chooses(self, override: Override) -> bool:
        """Returns whether an override chooses what is merged, and is no value."""
        key = str(override.key_or_group)
        group = key in self.groups or ("/" in key and self.loader.repository.group_exists(key))
        return key == SEARCH_PATH or (group and not isinstance(override.value(), Mapping))

    def _merge(self, chosen: tuple[str, ...]) -> tuple[bytes, bytes]:
        """Returns what Hydra merges of a choice of options, pickled, without and with its own settings."""
        cfg = self.loader.load_configuration(CONFIG_NAME, list(chosen), RunMode.RUN)
        whole = pickle.dumps(cfg)
        with open_dict(cfg):
            del cfg["hydra"]
        return pickle.dumps(cfg), whole
