"""A command line's cells: every run that it asks for, composed and checked before the first one starts."""

import difflib
import pickle
import string
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zo.config import ConfigError, Problem, RunConfig, to_run_config
from zo.config.origin import CONFIG_DIR

CONFIG_NAME = "config"
GROUPS = ("model", "task", "optimizer", "precision")
TOP_LEVEL = {f.name for f in fields(RunConfig)} - {*GROUPS, "checkpoint", "tracking"}


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
    configs: list[RunConfig] = []
    problems: dict[str, Problem] = {}
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        composer = _Composer()
        for cell in _expand(list(overrides), multirun):
            try:
                configs.append(to_run_config(composer.compose(cell)))
            except ConfigError as error:
                problems.update({str(p): p for p in error.problems})
    if problems:
        raise ConfigError(list(problems.values()))
    return configs


def parameters(sweep: str) -> dict[str, str]:
    """Returns what a sweep's file, with the sweeps that it builds on, gives its parameters, as text: {"seed": "0,1,2"}.

    Args:
        sweep: Name of a file in conf/sweep.
    """
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        base = loader.load_configuration(CONFIG_NAME, [f"sweep={sweep}"], RunMode.MULTIRUN).hydra
    return {key: str(given) for key, given in (base.sweeper.params or {}).items()}


def _expand(overrides: list[str], multirun: bool) -> list[list[str]]:
    """Returns the overrides of each run: Hydra's basic sweep, the sweep file's parameters first."""
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


class _Composer:
    """Composes cells; those that differ in values alone (seed, optimizer.k), not in choices, share one composition."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, ...], bytes] = {}  # pickled: copied in half the time
        self._parser = OverridesParser.create()

    def compose(self, overrides: list[str]) -> DictConfig:
        """Composes one run's configuration.

        Raises:
            ConfigError: Naming every override that cannot be composed.
        """
        values = [o for o in overrides if _is_value(o.partition("=")[0])]
        rest = tuple(o for o in overrides if o not in values)
        try:
            if rest not in self._shared:
                self._shared[rest] = pickle.dumps(compose(CONFIG_NAME, overrides=list(rest)))
            cfg: DictConfig = pickle.loads(self._shared[rest])
            for override in self._parser.parse_overrides(values):
                OmegaConf.update(cfg, override.key_or_group, override.value())
        except (HydraException, OmegaConfBaseException) as error:
            problems = _override_problems(overrides)
            raise ConfigError(problems or [Problem("conf", CONFIG_NAME, _explain(error))]) from None
        return cfg


def _is_value(key: str) -> bool:
    """Returns whether an override's key is a value of the run or of one of its groups."""
    group, dot, _ = key.partition(".")
    return key in TOP_LEVEL or (bool(dot) and group in GROUPS)


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
