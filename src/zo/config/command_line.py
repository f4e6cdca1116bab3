"""A command line's cells: every run that it asks for, composed and checked before the first one starts."""

import difflib
import errno
import os
import re
import string
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from zo.config.addresses import missing
from zo.config.checks import ConfigError, Problem
from zo.config.composition import Composer, Files, NotPlainError, parse
from zo.config.origin import CONFIG_DIR
from zo.config.schema import checked, to_run_config
from zo.config.settings import RunConfig

CONFIG_NAME = "config"

UNCOMPOSABLE = (HydraException, OmegaConfBaseException, ValueError)
"""What Hydra raises; ValueError where a group is given null or a number."""

EXPECTED = {
    "Integer": "must be a whole number",
    "Float": "must be a number, as 1e-6",
    "is not a valid bool": "must be true or false",
    "not Optional": "must not be null",
    "is not in struct": "no such key",
    "is not a ListConfig": "must be a list, as [a,b]",
    "to Dict[": "must be a mapping, as {a:1}",
    "to string": "must be a text",
    "is not a subclass of": "is a group of keys; give one of them",
}
"""OmegaConf's words -> what would be right."""


def readable(argv: Sequence[str]) -> list[str]:
    """Returns the command line as Hydra reads it: `-m` first, and `key=~/path` as `key=/home/user/path`."""
    words = sorted(argv, key=lambda word: word not in ("-m", "--multirun"))
    return [re.sub(r"(?<==)~(?=/|$)", lambda _: os.path.expanduser("~"), word) for word in words]


def check_command_line(argv: Sequence[str]) -> None:
    """Exits with status 2, one line per problem, if any run that `argv` asks for could not be run.

    `--help` is answered here. Hydra answers other questions (`--cfg`, `--info`, ...).
    """
    args, unknown = get_args_parser().parse_known_args(list(argv))
    if args.help:
        print(help_text())
        raise SystemExit(0)
    informs = (args.hydra_help, args.cfg, args.info, args.shell_completion)
    if any(informs):
        return
    try:
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
    plainly = f"keys are written without dashes: {key}" if "=" in key else "see --help"
    return Problem(word, ..., f"no such option; {plainly}")


def _repeated(overrides: Sequence[str]) -> Iterator[Problem]:
    """Yields the keys that are given more than once: Hydra would take the last value without a word."""
    values: dict[str, list[str]] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        values.setdefault(key.lstrip("+"), []).append(value)
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
    if problems_of_syntax := _syntax_problems(overrides):
        raise ConfigError(problems_of_syntax)
    expanded = _expand(list(overrides), multirun)
    common = set(expanded[0]).intersection(*expanded)
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
    return _sweeper([f"sweep={sweep}"])[1]


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
                problems = found or [Problem("conf", CONFIG_NAME, _explain(error))]
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
        mode, params = _sweeper(
            [o for o, p in zip(overrides, parsed, strict=True) if not p.is_sweep_override()]
        )
    except (NotPlainError, HydraException):
        with _hydra():
            return _expand_by_hydra(overrides, multirun)
    if not multirun and mode != RunMode.MULTIRUN.name:
        return [overrides]
    swept = [parse(f"{key}={value}") for key, value in params.items()]
    (batch,) = BasicSweeper.split_arguments([*swept, *parsed], max_batch_size=None)
    return [list(cell) for cell in batch]


def _sweeper(overrides: list[str]) -> tuple[str | None, dict[str, str]]:
    """Returns Hydra's mode, and the parameters of its sweeper, as the files have them."""
    files = _files(CONFIG_DIR)
    chosen = {parse(o).key_or_group: parse(o).value() for o in overrides}
    groups = {key: name for key, name in chosen.items() if key in files.groups}
    choices = {key: name for key, name in groups.items() if isinstance(name, str)}
    if len(choices) < len(groups):
        raise NotPlainError("a group without an option's name")
    data, _ = files.compose(choices)
    own = data.get("hydra", {})
    params = own.get("sweeper", {}).get("params") or {}
    return own.get("mode"), {key: str(given) for key, given in params.items()}


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
        raise ConfigError(problems or [Problem("conf", CONFIG_NAME, _explain(error))]) from None
    if not multirun and base.mode != RunMode.MULTIRUN:
        return [overrides]
    swept = [f"{key}={value}" for key, value in (base.sweeper.params or {}).items()]
    parser = OverridesParser.create(config_loader=loader)
    (batch,) = BasicSweeper.split_arguments(
        [*parser.parse_overrides(swept), *parsed], max_batch_size=None
    )
    return [list(cell) for cell in batch]


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
            right = _explain(error)
            if key.lstrip("+") in groups and isinstance(error, ValueError):
                options = loader.get_group_options(key.lstrip("+"))
                right = f"must be one of {', '.join(options)}"
            problems.append(Problem(key, value if equals else ..., right))
    return problems


def _explain(error: BaseException) -> str:
    """Says in one sentence what would be right, from Hydra's or OmegaConf's exception."""
    while isinstance(error.__cause__, (HydraException, OmegaConfBaseException)):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Available options") for line in lines):
        start = next(i for i, line in enumerate(lines) if line.startswith("Available options"))
        options = [
            line
            for line in lines[start + 1 :]
            if not line.startswith(("Config search", "provider="))
        ]
        return f"must be one of {', '.join(options)}"
    object_type = getattr(error, "object_type", None)
    key = getattr(error, "key", None)
    if is_dataclass(object_type) and "not in" in lines[0]:
        names = [f.name for f in fields(object_type)]
        close = difflib.get_close_matches(str(key).lower(), names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        return f"no such key; {hint}"
    if whole := re.search(r"Value '(-?\d+)\.0' of type 'float'.*Integer", lines[0]):
        return f"must be a whole number, written {whole[1]}"
    return next((right for said, right in EXPECTED.items() if said in lines[0]), lines[0])
