"""A command line's cells: every run that it asks for, composed and checked before the first one starts."""

import errno
import os
import re
import string
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from zo.config.addresses import missing
from zo.config.checks import ConfigError, Problem
from zo.config.composition import Composer, Files, NotPlainError, parse, with_own_keys
from zo.config.conf_files import broken_files, check_installed, check_sweep, foreign_plugins
from zo.config.explain import explain, explain_yaml
from zo.config.lines import Line, expand
from zo.config.origin import CONFIG_DIR
from zo.config.schema import checked, to_run_config
from zo.config.settings import RunConfig

CONFIG_NAME = "config"

UNCOMPOSABLE = (HydraException, OmegaConfBaseException, ValueError, AssertionError)
"""What Hydra raises; ValueError where a group is given null or a number, AssertionError for a key below null."""


def readable(argv: Sequence[str]) -> list[str]:
    """Returns the command line as Hydra reads it: `-m` first, and `key=~/path` as `key=/home/user/path`."""
    words = sorted(argv, key=lambda word: word not in ("-m", "--multirun"))
    words = [re.sub(r"(?<==)~(?=/|$)", lambda _: os.path.expanduser("~"), word) for word in words]
    return [with_own_keys(word) for word in words]


def check_command_line(argv: Sequence[str]) -> None:
    """Exits with status 2, one line per problem, if any run that `argv` asks for could not be run.

    `--help` is answered here. Hydra answers other questions (`--cfg`, `--info`, ...).
    """
    args, unknown = get_args_parser().parse_known_args(list(argv))
    informs = (args.hydra_help, args.cfg, args.info, args.shell_completion)
    try:
        check_installed()
        if args.help:
            print(help_text())
            raise SystemExit(0)
        if args.config_name or args.config_path:
            key = "--config-name" if args.config_name else "--config-path"
            right = "conf/config.yaml is the only one; choose its parts, as model=opt-13b task=rte"
            raise ConfigError([Problem(key, args.config_name or args.config_path, right)])
        if any(informs):
            return
        if unknown:
            raise ConfigError([_unknown_option(word) for word in unknown])
        if repeated := list(_repeated(args.overrides)):
            raise ConfigError(repeated)
        configs = runs(args.overrides, multirun=args.multirun)
        places = [_directory_problem(out) for out in dict.fromkeys(cfg.out for cfg in configs)]
        if len(configs) == 1 and not args.multirun:  # a multirun goes on with its other runs
            places.append(missing(configs[0]))
        if problems := [problem for problem in places if problem]:
            raise ConfigError(problems)
    except ConfigError as error:
        count = len(error.problems)
        print(f"configuration: {count} problem{'s' * (count > 1)}", file=sys.stderr)
        for problem in error.problems:
            print(f"  {problem}", file=sys.stderr)
        raise SystemExit(2) from None


def _unknown_option(word: str) -> Problem:
    """Returns what is wrong with a word that begins with a dash and is no option."""
    key = word.lstrip("-")
    if key == "dry-run":
        right = "`python -m launch.submit KEY=VALUE ... --dry-run` lists runs, `python train.py --cfg job` shows one"
        return Problem(word, ..., right)
    plainly = f"keys are written without dashes: {key}" if "=" in key else "see --help"
    return Problem(word, ..., f"no such option; {plainly}")


def _repeated(overrides: Sequence[str]) -> Iterator[Problem]:
    """Yields the keys that are given more than once, or twice over: one value would be taken without a word."""
    values: dict[str, list[str]] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        values.setdefault(key.lstrip("+"), []).append(value)
    if {"lr", "lr_index"} <= values.keys():
        right = "must be left out beside lr, which is the rate itself"
        yield Problem("lr_index", values["lr_index"][0], right)
    for key, given in values.items():
        if len(given) > 1:
            both = f"{key}={','.join(given)}"
            yield Problem(key, given[-1], f"given {len(given)} times; give it once, or -m {both}")


def _directory_problem(out: str) -> Problem | None:
    """Returns why no directory can be made at `out`, or None; tries it in the nearest directory there is."""
    path = Path(out).absolute()
    nearest = next(p for p in (path, *path.parents) if p.exists())
    if not nearest.is_dir():
        return Problem("out", out, f"{nearest} is a file; choose another directory")
    try:
        with tempfile.TemporaryDirectory(prefix=".zo-", dir=nearest):
            return None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = error.strerror if full else f"cannot be written ({error.strerror})"
        return Problem("out", out, f"{nearest}: {why}; choose another directory")


def help_text() -> str:
    """Returns the text of `--help`, from conf/config.yaml.

    Hydra would print the same text, but it lists all groups of all its plugins before, which takes three times as long.
    """
    template = yaml.safe_load((CONFIG_DIR / f"{CONFIG_NAME}.yaml").read_text())["hydra"]["help"]
    return string.Template(template["template"]).substitute()


def runs(overrides: Sequence[str], multirun: bool = False) -> list[RunConfig]:
    """Returns the configuration of every run that the overrides ask for, in the order in which they would run.

    Args:
        overrides: As typed: `optimizer=bszo,mezo`, `lr=1e-6`, `sweep=quickstart`.
        multirun: Whether `-m` was given; a sweep file can ask for it, too.

    Raises:
        ConfigError: With every problem of every run, each once.
    """
    return [cfg for cfg, _ in cells(overrides, multirun)]


def cells(overrides: Sequence[str], multirun: bool = False) -> list[tuple[RunConfig, Line | None]]:
    """Returns what `runs` does, each run with the line that it is of, if the sweep has lines.

    Of a sweep's lines, a typed value of a key that they set chooses those that have it: `optimizer=mezo`.
    """
    check_installed()
    try:
        return _cells_of(overrides, multirun)
    except yaml.YAMLError as error:
        raise ConfigError(
            list(broken_files()) or [Problem("conf", ..., explain_yaml(error))]
        ) from None


def _cells_of(
    overrides: Sequence[str], multirun: bool = False
) -> list[tuple[RunConfig, Line | None]]:
    overrides = [with_own_keys(override) for override in overrides]
    if problems_of_syntax := _syntax_problems(overrides):
        raise ConfigError(problems_of_syntax)
    sweep, sweeper = _lines_of(overrides)
    lines = expand(sweep, sweeper)
    if not lines:
        return [(cfg, None) for cfg in _composed(_expand(list(overrides), multirun))]
    keys = {key for line in lines for key in line.values}
    chosen = [o for o in overrides if o.partition("=")[0] in keys]
    wanted = {parse(o).key_or_group: _values(o) for o in chosen}
    lines = [
        line
        for line in lines
        if all(line.values.get(key, values[0]) in values for key, values in wanted.items())
    ]
    batch = _expand([o for o in overrides if o not in chosen], True)
    several = [(line, [*cell, *line.overrides]) for cell in batch for line in lines]
    configs = _composed([cell for _, cell in several])
    found: list[tuple[RunConfig, Line | None]] = [
        (cfg, line)
        for (line, _), cfg in zip(several, configs, strict=True)
        if all(value_of(cfg, key) in values for key, values in wanted.items())
    ]
    if not found:
        raise ConfigError([Problem("sweep", sweep, f"no line has {' '.join(chosen)}")])
    return found


def value_of(cfg: RunConfig, key: str) -> Any:
    """Returns a run's value of a key, None where it has none; a group's is the name of its choice."""
    value: Any = cfg
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    is_choice = is_dataclass(value)
    return value.name if is_choice else value


def _values(override: str) -> list[Any]:
    """Returns the values that an override gives its key."""
    parsed = parse(override)
    return list(parsed.sweep_iterator()) if parsed.is_sweep_override() else [parsed.value()]


def _composed(expanded: list[list[str]]) -> list[RunConfig]:
    """Returns the checked configuration of every run."""
    common = set.intersection(*map(set, expanded)) if expanded else set()
    varying = {parse(o).key_or_group for cell in expanded for o in cell if o not in common}
    composer = Composer(_files(CONFIG_DIR), varying)
    configs: list[RunConfig] = []
    problems: dict[str, Problem] = {}
    refused: set[str] = set()  # overrides that were explained once
    for cell in expanded:
        if refused.isdisjoint(cell):
            try:
                configs.append(_run(composer, cell))
            except ConfigError as error:
                problems |= {str(p): p for p in error.problems}
                if isinstance(error, _UncomposedError):
                    refused |= {f"{p.key}={p.value}" for p in error.problems}
    if problems:
        raise ConfigError(list(problems.values()))
    return configs


def parameters(sweep: str) -> dict[str, str]:
    """Returns what a sweep's file, with the sweeps that it builds on, gives its parameters: {"seed": "0,1,2"}."""
    return _params(_sweeper([f"sweep={sweep}"])[1])


def recorded(overrides: Sequence[str]) -> Path | None:
    """Returns the file whose runs a sweep does not make again, if it names one."""
    name = _lines_of(overrides)[1].get("recorded")
    return None if name is None else CONFIG_DIR.parent / str(name)


def _lines_of(overrides: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Returns the name of the sweep that the overrides choose, and what its file gives Hydra's sweeper."""
    sweep = next((o.partition("=")[2] for o in overrides if o.startswith("sweep=")), "")
    try:
        return sweep, _sweeper([f"sweep={sweep}"])[1] if sweep else {}
    except (NotPlainError, HydraException):  # whoever composes it says what is wrong
        return sweep, {}


@cache
def _files(directory: Path) -> Files:
    return Files(directory)


def _run(composer: Composer, overrides: list[str]) -> RunConfig:
    """Returns one checked run."""
    try:
        return checked(composer.compose(overrides))
    except (NotPlainError, *UNCOMPOSABLE) as error:
        if isinstance(error, ConfigError):
            raise
        with _hydra():  # composes what is not plain, and explains what is wrong
            try:
                return to_run_config(compose(CONFIG_NAME, overrides=overrides))
            except ConfigError:
                raise
            except UNCOMPOSABLE as error:
                found = _override_problems(overrides)
                problems = found or [Problem("conf", CONFIG_NAME, explain(error))]
                raise _UncomposedError(problems) from None


class _UncomposedError(ConfigError):
    """Overrides that Hydra does not compose."""


def _hydra() -> AbstractContextManager[None]:
    return initialize_config_dir(str(CONFIG_DIR), version_base="1.3")  # type: ignore[return-value]


def _expand(overrides: list[str], multirun: bool) -> list[list[str]]:
    """Returns the overrides of each run: Hydra's basic sweep, the sweep file's parameters first."""
    try:
        parsed = [parse(o) for o in overrides]
        several = any(p.is_sweep_override() for p in parsed)
        if any(p.is_hydra_override() or "glob(" in str(p.input_line) for p in parsed):
            raise NotPlainError("settings of Hydra's own")
        if several and not multirun:
            raise NotPlainError("refused by Hydra")
        mode, sweeper = _sweeper(
            [o for o, p in zip(overrides, parsed, strict=True) if not p.is_sweep_override()]
        )
    except (NotPlainError, HydraException):
        with _hydra():
            return _expand_by_hydra(overrides, multirun)
    if not multirun and mode != RunMode.MULTIRUN.name:
        return [overrides]
    swept = [parse(f"{key}={value}") for key, value in _params(sweeper).items()]
    return _cells([*swept, *parsed])


def _cells(parsed: list[Override]) -> list[list[str]]:
    """Returns the overrides of each run that lists of values ask for."""
    problems = [
        Problem(o.key_or_group, ..., "a grid takes values, as lr=1e-6,1e-7, and no interval(...)")
        for o in parsed
        if o.value_type == ValueType.INTERVAL_SWEEP
    ]
    if problems:
        raise ConfigError(problems)
    (batch,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    if not batch:
        empty = [o for o in parsed if o.is_sweep_override() and not [*o.sweep_string_iterator()]]
        raise ConfigError([Problem(str(o.input_line), ..., "stands for no value") for o in empty])
    return [list(cell) for cell in batch]


def _sweeper(overrides: list[str]) -> tuple[str | None, dict[str, Any]]:
    """Returns Hydra's mode, and the settings of its sweeper, as the files have them."""
    files = _files(CONFIG_DIR)
    chosen = {parse(o).key_or_group: parse(o).value() for o in overrides}
    groups = {key: name for key, name in chosen.items() if key in files.groups}
    choices = {key: name for key, name in groups.items() if isinstance(name, str)}
    if len(choices) < len(groups):
        raise NotPlainError("a group without an option's name")
    data, _ = files.compose(choices)
    own = data.get("hydra", {})
    sweeper = own.get("sweeper", {})
    check_sweep(str(choices.get("sweep")), own)
    return own.get("mode"), sweeper


def _params(sweeper: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(given) for key, given in (sweeper.get("params") or {}).items()}


def _expand_by_hydra(overrides: list[str], multirun: bool) -> list[list[str]]:
    """Does what `_expand` does where Hydra has to compose."""
    loader = GlobalHydra.instance().config_loader()
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    try:
        mode = RunMode.MULTIRUN if multirun else RunMode.RUN
        base = loader.load_configuration(CONFIG_NAME, overrides, run_mode=mode).hydra
    except UNCOMPOSABLE as error:
        several = [str(o.input_line).split("=", 1) for o in parsed if o.is_sweep_override()]
        fixed = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
        problems = _override_problems(fixed)  # a list of values cannot be composed at once
        if not problems and not multirun:
            problems = [Problem(key, v, "add -m to run several values") for key, v in several]
        raise ConfigError(problems or [Problem("conf", CONFIG_NAME, explain(error))]) from None
    if not multirun and base.mode != RunMode.MULTIRUN:
        return [overrides]
    swept = [f"{key}={value}" for key, value in (base.sweeper.params or {}).items()]
    if foreign := [*foreign_plugins(base)]:
        raise ConfigError(foreign)
    parser = OverridesParser.create(config_loader=loader)
    return _cells([*parser.parse_overrides(swept), *parsed])


def _syntax_problems(overrides: Sequence[str]) -> list[Problem]:
    """Returns the overrides that are not written as Hydra reads them."""
    problems = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals and not override.startswith("~"):
            problems.append(Problem(override, ..., "write key=value, as lr=1e-6"))
        elif not key.strip("+"):
            right = "no key in front of =; write key=value, as lr=1e-6"
            problems.append(Problem(override, ..., right))
        else:
            try:
                parse(override)
            except HydraException:
                quoted = f"'{key}=\"{value}\"'"
                right = f"Hydra cannot read this value; put it in quotes: {quoted}"
                if value.endswith(","):
                    right = "a value is missing behind the last comma"
                problems.append(Problem(override, ..., right))
    return problems


def _override_problems(overrides: list[str]) -> list[Problem]:
    """Tries the overrides one after the other, groups first, and explains each that does not compose."""
    loader = GlobalHydra.instance().config_loader()
    groups = set(loader.list_groups(""))
    accepted: list[str] = []
    problems = []
    for override in sorted(overrides, key=lambda o: o.lstrip("+~").split("=")[0] not in groups):
        try:
            compose(CONFIG_NAME, overrides=[*accepted, override])
            accepted.append(override)
        except UNCOMPOSABLE as error:
            key, equals, value = override.partition("=")
            right = explain(error)
            if key.lstrip("+") in groups and isinstance(error, ValueError):
                options = loader.get_group_options(key.lstrip("+"))
                right = f"must be one of {', '.join(options)}"
            problems.append(Problem(key, value if equals else ..., right))
    return problems
