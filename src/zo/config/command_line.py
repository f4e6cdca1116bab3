"""A command line's cells: every run that it asks for, composed and checked before the first one starts."""

import difflib
import string
import sys
from collections.abc import Sequence
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

from zo.config.composition import Composer, Files, NotPlainError, parse
from zo.config.origin import CONFIG_DIR
from zo.config.schema import ConfigError, Problem, RunConfig, checked, to_run_config

CONFIG_NAME = "config"


def check_command_line(argv: Sequence[str]) -> None:
    """Exits with status 2, one line per problem, if any run that `argv` asks for could not be run.

    `--help` is answered here. Hydra answers other questions (`--cfg`, `--info`, ...).

    Args:
        argv: The command line after the program's name.
    """
    args = get_args_parser().parse_known_args(list(argv))[0]
    if args.help:
        print(help_text())
        raise SystemExit(0)
    informs = (args.hydra_help, args.cfg, args.info, args.shell_completion)
    if any(informs):
        return
    try:
        runs(args.overrides, multirun=args.multirun)
    except ConfigError as error:
        count = len(error.problems)
        print(f"configuration: {count} problem{'s' * (count > 1)}", file=sys.stderr)
        for problem in error.problems:
            print(f"  {problem}", file=sys.stderr)
        raise SystemExit(2) from None


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
    """Returns what a sweep's file, with the sweeps that it builds on, gives its parameters, as text: {"seed": "0,1,2"}.

    Args:
        sweep: Name of a file in conf/sweep.
    """
    return _sweeper([f"sweep={sweep}"])[1]


@cache
def _files(directory: Path) -> Files:
    return Files(directory)


def _run(composer: Composer, overrides: list[str]) -> RunConfig:
    """Returns one checked run.

    Raises:
        ConfigError: With every problem of it.
    """
    try:
        return checked(composer.compose(overrides))
    except (NotPlainError, HydraException, OmegaConfBaseException):
        with _hydra():  # composes what is not plain, and explains what is wrong
            try:
                return to_run_config(compose(CONFIG_NAME, overrides=overrides))
            except (HydraException, OmegaConfBaseException) as error:
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
    data, _ = files.compose({key: name for key, name in chosen.items() if key in files.groups})
    own = data.get("hydra", {})
    params = own.get("sweeper", {}).get("params") or {}
    return own.get("mode"), {key: str(given) for key, given in params.items()}


def _expand_by_hydra(overrides: list[str], multirun: bool) -> list[list[str]]:
    loader = GlobalHydra.instance().config_loader()
    try:
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
        mode = RunMode.MULTIRUN if multirun else RunMode.RUN
        base = loader.load_configuration(CONFIG_NAME, overrides, run_mode=mode).hydra
    except (HydraException, OmegaConfBaseException):
        fixed = [
            o for o in overrides if "," not in o
        ]  # a list of values cannot be composed at once
        problems = _override_problems(fixed)
        if not problems and not multirun:
            several = [o.partition("=") for o in overrides if o not in fixed]
            problems = [Problem(key, v, "add -m to run several values") for key, _, v in several]
        if problems:
            raise ConfigError(problems) from None
        raise
    if not multirun and base.mode != RunMode.MULTIRUN:
        return [overrides]
    swept = [f"{key}={value}" for key, value in (base.sweeper.params or {}).items()]
    parser = OverridesParser.create(config_loader=loader)
    (batch,) = BasicSweeper.split_arguments(
        [*parser.parse_overrides(swept), *parsed], max_batch_size=None
    )
    return [list(cell) for cell in batch]


def _override_problems(overrides: list[str]) -> list[Problem]:
    """Tries the overrides one after the other, groups first, and explains each that does not compose."""
    groups = set(GlobalHydra.instance().config_loader().list_groups(""))
    accepted: list[str] = []
    problems = []
    for override in sorted(overrides, key=lambda o: o.lstrip("+~").split("=")[0] not in groups):
        try:
            compose(CONFIG_NAME, overrides=[*accepted, override])
            accepted.append(override)
        except (HydraException, OmegaConfBaseException) as error:
            key, _, value = override.partition("=")
            problems.append(Problem(key, value, _explain(error)))
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
        close = difflib.get_close_matches(str(key), names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        return f"no such key; {hint}"
    return lines[0]
