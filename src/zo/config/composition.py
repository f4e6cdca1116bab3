"""Composes the runs of a grid from one reading of conf/: the same configurations that Hydra composes one by one.

Hydra takes about 0.2 s for a configuration. Here files are read once and merged as plain data, every option is typed
once, and a value that varies between runs is set on a copy.

This module composes plain files: their defaults lists name options of the same group, schemas, and `_self_`; that of
`config.yaml` also a group that follows another one's choice, if it has that option. It leaves everything else to Hydra,
by `NotPlainError`.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import OmegaConf

GLOBAL = "# @package _global_"
FOLLOWER = re.compile(r"optional (\w+)"), re.compile(r"\$\{(\w+)\}")
HERE = re.compile(r"(override )?/(schema(?:/\w+)*)@_here_")
REFERENCE = re.compile(r"\$\{([a-z]\w*(?:\.\w+)*)\}")

SCALAR = (int, float, bool, str)

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


class Entry(NamedTuple):
    """An entry of a defaults list.

    Attributes:
        kind: self, schema, override (of a schema), option (of the same group), group (with its choice), or follower.
        key: The schema's or the group's name.
        name: The choice; None chooses nothing. Of a follower: the group whose choice it has, too.
    """

    kind: str
    key: str = ""
    name: str | None = None

    @classmethod
    def of(cls, given: Any) -> "Entry | None":
        """Reads what a file has; None for an entry that concerns Hydra's own settings alone.

        Raises:
            NotPlainError: If Hydra has to read it.
        """
        if given == "_self_":
            return cls("self")
        key, name = next(iter(given.items())) if isinstance(given, Mapping) else (given, None)
        if found := HERE.fullmatch(key):
            return cls("override" if found[1] else "schema", found[2], name)
        if key.startswith(("hydra/", "override hydra/")):
            return None
        if (own := FOLLOWER[0].fullmatch(key)) and (other := FOLLOWER[1].fullmatch(str(name))):
            return cls("follower", own[1], other[1])
        if not re.fullmatch(r"\w[\w.-]*", key):
            raise NotPlainError(key)
        return cls("group", key, name) if isinstance(given, Mapping) else cls("option", key)


class Content(NamedTuple):
    """The merged content of an option: plain data, the schema that they follow, and whether they belong at the root."""

    data: Plain
    schema: str | None = None
    at_root: bool = False


class Files:
    """A configuration directory: `config.yaml`, and a directory with options for each group.

    Attributes:
        groups: Group -> the option that `config.yaml` chooses.
    """

    def __init__(self, directory: Path):
        self._directory = directory
        self._options: dict[tuple[str, str], Content] = {}
        self._entries, self._own, _ = self._read(directory / "config.yaml")
        self.groups = {e.key: e.name for e in self._entries if e.kind == "group"}

    def option(self, group: str, name: str) -> Content:
        """Returns an option with those that its defaults list names.

        Raises:
            NotPlainError: If there is no such file, or Hydra has to compose it.
        """
        if (group, name) not in self._options:
            entries, own, at_root = self._read(self._directory / group / f"{name}.yaml")
            data: Plain = {}
            schema: str | None = None
            for entry in entries:
                if entry.kind == "group":
                    raise NotPlainError(f"{group}/{name} chooses an option of {entry.key}")
                if entry.kind == "self":
                    data = merged(data, own)
                elif entry.kind == "option":
                    other = self.option(group, entry.key)
                    data, schema = merged(data, other.data), other.schema
            named = [e for kind in ("schema", "override") for e in entries if e.kind == kind]
            schema = f"{named[-1].key}/{named[-1].name}" if named else schema
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
        for entry in self._entries:
            if entry.kind == "self":
                data = merged(data, self._own)
            elif entry.kind == "schema":
                schemas[""] = entry.key
            elif (name := self._choice(entry, choices)) is not None:
                content = self.option(entry.key, name)
                data = merged(data, content.data if content.at_root else {entry.key: content.data})
                if not content.at_root:
                    schemas[entry.key] = content.schema
        return data, schemas

    def _choice(self, entry: Entry, choices: Mapping[str, str | None]) -> str | None:
        """Returns the option of an entry's group; None for a follower that does not have it."""
        if entry.kind != "follower":
            return choices.get(entry.key, entry.name)
        assert entry.name is not None
        name = choices.get(entry.name, self.groups[entry.name])
        return name if (self._directory / entry.key / f"{name}.yaml").exists() else None

    def _read(self, path: Path) -> tuple[list[Entry], Plain, bool]:
        """Returns a file's defaults list, its own content, and whether that belongs at the root."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise NotPlainError(path) from error
        own: Any = OmegaConf.to_container(OmegaConf.create(text))
        given = own.pop("defaults", ["_self_"])
        if "_self_" not in given or ("@package" in text and not text.startswith(GLOBAL)):
            raise NotPlainError(path)
        entries = [entry for one in given if (entry := Entry.of(one)) is not None]
        return entries, own, text.startswith(GLOBAL)


def merged(below: Any, above: Any) -> Any:
    """Returns plain data with other data laid over them: mappings are merged, everything else is replaced."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


class Base(NamedTuple):
    """What the runs of some choices have in common.

    Attributes:
        run: A run.
        dependents: Key -> keys that have the same value, by a reference: `m: ${optimizer.k}`.
    """

    run: Any
    dependents: dict[str, list[str]]


class Composer:
    """Composes the runs of one command line.

    Args:
        files: Of the configuration directory.
        varying: Keys whose values differ between these runs.
    """

    def __init__(self, files: Files, varying: Collection[str]):
        self._files = files
        self._varying = varying
        self._bases: dict[tuple[str, ...], Base] = {}
        self._typed: dict[str, Any] = {}
        self._values: dict[tuple[type, str, str], Any] = {}

    def compose(self, overrides: Sequence[str]) -> Any:
        """Returns the object that `OmegaConf.to_object` makes of Hydra's composition, a new one every time.

        Raises:
            NotPlainError: If Hydra has to compose this run.
            HydraException, OmegaConfBaseException: If it cannot be composed.
        """
        values = [o for o in overrides if self._is_value(parse(o))]
        rest = tuple(o for o in overrides if o not in values)
        if rest not in self._bases:
            self._bases[rest] = self._base([parse(o) for o in rest])
        run = deepcopy(self._bases[rest].run)
        given = {parse(o).key_or_group for o in values}
        for override in values:
            key = parse(override).key_or_group
            dependents = self._bases[rest].dependents.get(key, ())
            for one in (key, *(d for d in dependents if d not in given)):
                *group, name = one.split(".")
                node = getattr(run, group[0]) if group else run
                setattr(node, name, self._converted(type(node), name, override))
        return run

    def _is_value(self, override: Override) -> bool:
        """Returns whether an override sets one value, which differs between runs, of the run or of a group."""
        key, value = override.key_or_group, override.value()
        plain = isinstance(value, (*SCALAR, type(None))) and "${" not in str(value)
        return (
            plain and key in self._varying and key not in self._files.groups and key.count(".") < 2
        )

    def _base(self, overrides: Sequence[Override]) -> Base:
        """Returns what the runs with these overrides have in common."""
        own = [o for o in overrides if not o.is_hydra_override()]
        for override in own:
            group = override.key_or_group in self._files.groups
            named = not group or isinstance(override.value(), str)
            if override.type != OverrideType.CHANGE or override.package or not named:
                raise NotPlainError(override.input_line)
        chosen = {o.key_or_group: o.value() for o in own if o.key_or_group in self._files.groups}
        data, schemas = self._files.compose(chosen)  # type: ignore[arg-type]
        for override in own:
            if override.key_or_group not in chosen:
                _set(data, override)
        data.pop("hydra", None)
        dependents = _resolve(data)
        groups = {group: data.pop(group, {}) for group in schemas if group}
        made = {group: self._object(schemas[group], content) for group, content in groups.items()}
        root: Any = OmegaConf.merge(_node(schemas[""]), data)
        schema: Any = OmegaConf.get_type(root)
        rest = {f.name: root[f.name] for f in fields(schema) if f.name not in made}
        rest = {k: OmegaConf.to_object(v) if OmegaConf.is_config(v) else v for k, v in rest.items()}
        return Base(schema(**rest, **made), dependents)

    def _object(self, schema: str | None, content: Plain) -> Any:
        """Returns a group's content as its schema's object."""
        key = f"{schema} {content}"
        if key not in self._typed:
            self._typed[key] = OmegaConf.to_object(OmegaConf.merge(_node(schema), content))
        return self._typed[key]

    def _converted(self, schema: type, name: str, override: str) -> Any:
        """Returns an override's value in the type that a schema gives the key."""
        if (schema, name, override) not in self._values:
            node = OmegaConf.structured(schema)
            node[name] = parse(override).value()
            self._values[schema, name, override] = node[name]
        return self._values[schema, name, override]


def _node(schema: str | None) -> Any:
    """Returns a registered schema."""
    if schema is None:
        raise NotPlainError("an option without a schema")
    return ConfigStore.instance().load(f"{schema}.yaml").node


def _set(data: Plain, override: Override) -> None:
    """Sets a value; below a key of a group there must be one already, as Hydra wants it."""
    *path, name = override.key_or_group.split(".")
    value = override.value()
    if isinstance(value, Mapping):
        raise NotPlainError(override.input_line)
    for key in path:
        if not isinstance(data.get(key), dict):
            raise NotPlainError(override.input_line)
        data[key] = dict(data[key])  # the files' own content stays as it is
        data = data[key]
    if len(path) > 1 and name not in data:
        raise NotPlainError(override.input_line)
    data[name] = value


def _resolve(data: Plain) -> dict[str, list[str]]:
    """Puts values in the place of references, `${optimizer.k}`; returns key -> keys that refer to it."""
    found: dict[str, list[str]] = {}
    for path, text in list(_references(data, ())):
        match = REFERENCE.fullmatch(text)
        value: Any = data
        for key in match[1].split(".") if match else ():
            value = value.get(key) if isinstance(value, Mapping) else None
        if match is None or len(path) != 2 or not isinstance(value, SCALAR) or "$" in str(value):
            raise NotPlainError(text)
        data[path[0]] = {**data[path[0]], path[1]: value}
        found.setdefault(match[1], []).append(".".join(path))
    return found


def _references(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields path and text of every text with a reference."""
    if isinstance(value, str) and "${" in value:
        yield path, value
    elif isinstance(value, Mapping | list):
        for key, one in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _references(one, (*path, str(key)))
