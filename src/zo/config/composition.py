"""Composes the runs of a grid from one reading of conf/: the same configurations that Hydra composes one by one.

Hydra takes about 0.2 s for a configuration. Here files are read once and merged as plain data, and a value that varies
between runs is set in what they have in common.

This module composes plain files: their defaults lists name options of the same group, schemas, and `_self_`; that of
`config.yaml` also a group that follows another one's choice, if it has that option. It leaves everything else to Hydra,
by `NotPlainError`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, flag_override

GLOBAL = "# @package _global_"
FOLLOWER = re.compile(r"optional (\w+)"), re.compile(r"\$\{(\w+)\}")
SCHEMA = re.compile(r"(?:override )?/(schema(?:/\w+)*)@_here_")

FUNCTIONS = "objective.functions"
OWN_KEYS = ("task.options", FUNCTIONS)
"""Mappings whose keys are the user's."""

Plain = dict[str, Any]


class NotPlainError(Exception):
    """A file or an override that Hydra has to compose; the text names it."""


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


class Content(NamedTuple):
    """The merged content of an option: plain data, the schema that they follow, and whether they belong at the root."""

    data: Plain
    schema: str | None
    at_root: bool


class _Base(NamedTuple):
    """What runs have in common, the groups that refer to other values, and whether anything else does."""

    run: DictConfig
    referring: list[str]
    root_refers: bool


class Files:
    """A configuration directory: `config.yaml`, and a directory with options for each group.

    Attributes:
        groups: Group -> the option that `config.yaml` chooses.
    """

    def __init__(self, directory: Path):
        self._directory = directory
        self._options: dict[tuple[str, str], Content] = {}
        self._defaults, self._own, _ = self._read(directory / "config.yaml")
        self.groups = {k: v for k, v in self._defaults if re.fullmatch(r"\w+", k) and k != "_self_"}

    def option(self, group: str, name: str) -> Content:
        """Returns an option with those that its defaults list names.

        Raises:
            NotPlainError: If there is no such file, or Hydra has to compose it.
        """
        if (group, name) not in self._options:
            defaults, own, at_root = self._read(self._directory / group / f"{name}.yaml")
            data: Plain = {}
            schema: str | None = None
            for key, choice in defaults:
                if key == "_self_":
                    data = merged(data, own)
                elif found := SCHEMA.fullmatch(key):
                    schema = f"{found[1]}/{choice}"
                elif choice is None and re.fullmatch(r"\w[\w.-]*", key):
                    other = self.option(group, key)
                    data, schema = merged(data, other.data), other.schema
                elif not re.fullmatch(r"override hydra/(job|hydra)_logging", key):
                    raise NotPlainError(f"{group}/{name}: {key}")
            self._options[group, name] = Content(data, schema, at_root)
        return self._options[group, name]

    def compose(self, choices: Mapping[str, str | None]) -> tuple[Plain, dict[str, str | None]]:
        """Returns the plain configuration of some choices, and the schema of each group ("" is the root's).

        Args:
            choices: Group -> option; a group that is not among them has its default.

        Raises:
            NotPlainError: If Hydra has to compose it.
        """
        data: Plain = {}
        schemas: dict[str, str | None] = {}
        chosen = {**self.groups, **choices}
        for key, choice in self._defaults:
            group, name = key, chosen.get(key)
            if (own := FOLLOWER[0].fullmatch(key)) and (of := FOLLOWER[1].fullmatch(str(choice))):
                group, name = own[1], chosen[of[1]]
                if not (self._directory / group / f"{name}.yaml").exists():
                    continue
            if key == "_self_":
                data = merged(data, self._own)
            elif found := SCHEMA.fullmatch(key):
                schemas[""] = found[1] if choice is None else f"{found[1]}/{choice}"
            elif name is not None:
                content = self.option(group, name)
                data = merged(data, content.data if content.at_root else {group: content.data})
                if not content.at_root:
                    schemas[group] = content.schema
        return data, schemas

    def _read(self, path: Path) -> tuple[list[tuple[str, Any]], Plain, bool]:
        """Returns a file's defaults list, its own content, and whether that belongs at the root."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise NotPlainError(path) from error
        own: Any = OmegaConf.to_container(OmegaConf.create(text))
        given = own.pop("defaults", ["_self_"])
        if "_self_" not in given or ("@package" in text and not text.startswith(GLOBAL)):
            raise NotPlainError(path)
        defaults = [next(iter(e.items())) if isinstance(e, Mapping) else (e, None) for e in given]
        return defaults, own, text.startswith(GLOBAL)


def merged(below: Any, above: Any) -> Any:
    """Returns plain data with other data laid over them: mappings are merged, everything else is replaced."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


class Composer:
    """Composes the runs of one command line.

    Args:
        files: Of the configuration directory.
        varying: Keys whose values differ between these runs; each run gives all of them.
    """

    def __init__(self, files: Files, varying: Collection[str]):
        self._files = files
        self._varying = {key for key in varying if key not in files.groups and key.count(".") < 2}
        self._bases: dict[tuple[str, ...], _Base] = {}
        self._runs: dict[tuple[str, ...], Any] = {}

    def compose(self, overrides: Sequence[str]) -> Any:
        """Returns the object that `OmegaConf.to_object` makes of Hydra's composition, a new one every time.

        Raises:
            NotPlainError: If Hydra has to compose this run.
            HydraException, OmegaConfBaseException: If it cannot be composed.
        """
        values = [o for o in map(parse, overrides) if self._is_value(o)]
        rest = tuple(o for o in overrides if parse(o) not in values)
        if rest not in self._bases:
            self._bases[rest] = self._base([parse(o) for o in rest])
        base, referring, root_refers = self._bases[rest]
        given = {override.key_or_group: _set(base, override) for override in values}
        if root_refers or any("${" in str(override.value()) for override in values):
            return OmegaConf.to_object(base)
        if rest not in self._runs:
            self._runs[rest] = OmegaConf.to_object(base)
        run = deepcopy(self._runs[rest])
        for key, value in given.items():
            *above, name = key.split(".")
            setattr(getattr(run, above[0]) if above else run, name, value)
        for group in referring:
            setattr(run, group, OmegaConf.to_object(base[group]))
        return run

    def _is_value(self, override: Override) -> bool:
        """Returns whether an override sets one value, which differs between runs, of the run or of a group."""
        value = override.value()
        scalar = value is None or isinstance(value, (int, float, bool, str))
        return scalar and override.key_or_group in self._varying

    def _base(self, overrides: Sequence[Override]) -> _Base:
        """Returns what the runs with these overrides have in common."""
        own = [o for o in overrides if not o.is_hydra_override()]
        chosen: dict[str, str] = {}
        for override in own:
            if override.key_or_group in self._files.groups:
                name = override.value()
                if (
                    override.type != OverrideType.CHANGE
                    or override.package
                    or type(name) is not str
                ):
                    raise NotPlainError(override.input_line)
                chosen[override.key_or_group] = name
        data, schemas = self._files.compose(chosen)
        data.pop("hydra", None)
        root = _node(schemas.pop(""))
        groups = {of: OmegaConf.merge(_node(schemas[of]), data.pop(of)) for of in schemas}
        run = OmegaConf.merge(root, data)
        assert isinstance(run, DictConfig)
        with flag_override(run, "no_deepcopy_set_nodes", True):
            for group, node in groups.items():
                run[group] = node
        for override in own:
            if override.key_or_group not in chosen:
                _set(run, override)
        plain: Any = OmegaConf.to_container(run)
        referring = [of for of in plain if "${" in str(plain[of])]
        in_groups = [of for of in referring if of in groups]
        return _Base(run, in_groups, len(in_groups) < len(referring))


def _node(schema: str | None) -> Any:
    """Returns a registered schema."""
    if schema is None:
        raise NotPlainError("an option without a schema")
    return ConfigStore.instance().load(f"{schema}.yaml").node


def _set(run: DictConfig, override: Override) -> Any:
    """Sets a value where there is one already, as Hydra wants it; returns it in the type that the schema gives it."""
    above, _, name = override.key_or_group.rpartition(".")
    node = OmegaConf.select(run, above) if above else run
    value = override.value()
    there = isinstance(node, DictConfig) and name in node.keys()  # noqa: SIM118  also a missing value
    plain = override.type == OverrideType.CHANGE and not override.package
    if not (there and plain) or isinstance(value, Mapping):
        raise NotPlainError(override.input_line)
    node[name] = value
    return node[name]
