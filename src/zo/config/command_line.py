"""What a command line asks for: every run, composed and checked before the first one starts."""

import argparse
import errno
import os
import re
import string
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from functools import cache
from itertools import product
from math import ceil
from pathlib import Path
from random import sample
from typing import Any

import yaml
from hydra import __version__
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zo.config.arms import Arm, Staged, SweeperConfig, expand, staged
from zo.config.checks import ConfigError, Problem, value_of
from zo.config.composition import (
    CONFIG_NAME,
    Composer,
    broken_files,
    check_installed,
    parse,
    with_own_keys,
)
from zo.config.explain import WORDS, explain, explain_yaml, with_nearest
from zo.config.identity import check_paths
from zo.config.method_code import with_options
from zo.config.presets import CONFIG_DIR, shared_copy, trained_with
from zo.config.schema import option_schemas, to_run_config
from zo.config.settings import RunConfig

UNCOMPOSABLE = (HydraException, OmegaConfBaseException, ValueError, AssertionError)
"""What Hydra raises; ValueError where a group is given null or a number, AssertionError for a key below null."""

OF_HYDRA = ("hydra.launcher", "hydra.mode", "hydra.searchpath", "hydra.sweeper")
"""Keys of Hydra's own that decide something here."""

BLANKS_COUNT = ("task.candidates", "task.label_words")
"""Lists of texts that follow a prompt, of which each begins with a blank."""


@dataclass(frozen=True)
class CommandLine:
    """What a command line asks for, composed and checked."""

    overrides: tuple[str, ...]  # As typed
    multirun: bool  # Whether it asks for several runs, with `-m` or in its sweep's file
    sweep: str | None  # Name of its sweep's file, with its stage if there is another one behind it
    sweeper: SweeperConfig  # What that file asks for at this stage
    launcher: tuple[str, Any]  # The option of hydra/launcher, and its settings
    # The runs in order, each with the line that it is of, if the sweep has lines
    cells: list[tuple[RunConfig, Arm | None]]
    typed_sweeps: tuple[str, ...] = ()  # Keys that were typed with several values
    estimate: bool = False  # Whether memory and time are asked for, and no run
    # GiB of the GPU that the estimate is compared with, typed as `--estimate gpu=24`
    gpu: float | None = None

    @property
    def swept(self) -> tuple[str, ...]:
        """Keys that the sweep's file gives several values, then those that were typed with several."""
        given = [parse(f"{key}={value}") for key, value in (self.sweeper.params or {}).items()]
        of_file = [str(o.key_or_group) for o in given if o.is_sweep_override()]
        return tuple(dict.fromkeys((*of_file, *self.typed_sweeps)))

    @property
    def stored_runs(self) -> Path | None:
        """The file whose runs the sweep does not make again, if it names one."""
        name = self.sweeper.stored_runs
        return None if name is None else CONFIG_DIR.parent / name


def readable(argv: Sequence[str]) -> list[str]:
    """Returns the command line as Hydra reads it: `-m` first, and `key=~/path` as `key=/home/user/path`."""
    words = sorted(argv, key=lambda word: word not in ("-m", "--multirun"))
    home = os.path.expanduser("~")
    words = [re.sub(r"^([^=]*=)~(?=/|$)", lambda key: key[1] + home, word) for word in words]
    return [with_own_keys(word) for word in words]


def in_hydra(override: str) -> str:
    """Returns an override as Hydra takes it: a stage is a value of its sweeper, a name the runs' W&B group.

    Raises:
        ConfigError: If the name of a multirun cannot be that of a directory.
    """
    key, _, value = override.partition("=")
    if key == "name":
        if not re.fullmatch(r"\w[\w.+-]*", value):
            right = "must be letters, digits, and . _ + or -, with a letter, digit or _ first"
            raise ConfigError([Problem("name", value, right)])
        return f"tracking.group={value}"
    return f"hydra.sweeper.{override}" if key == "stage" else with_options(override)


def check_command_line(argv: Sequence[str]) -> CommandLine | None:
    """Returns what `argv` asks for, or None if it is a question that Hydra answers (`--cfg`, `--info`, ...).

    Exits with status 2, one line per problem, if any run that it asks for could not be run. `--help` is answered here.
    """
    args, unknown = _options().parse_known_args(list(argv))
    informs = (args.hydra_help, args.cfg, args.info, args.shell_completion)
    try:
        check_installed(CONFIG_DIR)
        if args.help:
            with suppress(BrokenPipeError):  # `| head` has read enough
                print(help_text(), flush=True)
            raise SystemExit(0)
        if args.config_name or args.config_path:
            key = "--config-name" if args.config_name else "--config-path"
            right = "conf/config.yaml is the only one; choose its parts, as model=opt-13b task=rte"
            raise ConfigError([Problem(key, args.config_name or args.config_path, right)])
        if args.config_dir:
            right = f"give the directory as hydra.searchpath=[file://{Path(args.config_dir).absolute()}]"
            raise ConfigError([Problem("--config-dir", args.config_dir, right)])
        if any(informs):
            for override in args.overrides:
                in_hydra(override)
            return None
        if unknown:
            raise ConfigError([_unknown_option(word) for word in unknown])
        gpu = None
        if args.estimate:
            gpus = [word for word in args.overrides if word.startswith("gpu=")]
            args.overrides = [word for word in args.overrides if word not in gpus]
            gpu = _gib(gpus[-1]) if gpus else None
        asked = read(args.overrides, multirun=args.multirun)
        if args.estimate:
            return replace(asked, estimate=True, gpu=gpu)
        configs = [cfg for cfg, _ in asked.cells]
        places = [directory_problem(out) for out in dict.fromkeys(cfg.out for cfg in configs)]
        if len(configs) == 1 and not args.multirun:  # a multirun goes on with its other runs
            places.append(check_paths(configs[0]))
        if problems := [problem for problem in places if problem]:
            raise ConfigError(problems)
        return asked
    except ConfigError as error:
        count = len(error.problems)
        print(f"configuration: {count} problem{'s' * (count > 1)}", file=sys.stderr)
        for problem in error.problems:
            print(f"  {problem}", file=sys.stderr)
        raise SystemExit(2) from None


def _gib(word: str) -> float:
    """Returns the number of `gpu=24`."""
    value = word.removeprefix("gpu=")
    if not re.fullmatch(r"\d+(\.\d+)?", value) or not float(value):
        raise ConfigError([Problem("gpu", value, "must be the GPU's memory in GiB, as gpu=24")])
    return float(value)


def _options() -> argparse.ArgumentParser:
    """Returns a parser of Hydra's options."""
    made = argparse.ArgumentParser("zo train", add_help=False, allow_abbrev=False)
    made.add_argument("overrides", nargs="*")
    for names in ("--help -h", "--hydra-help", "--resolve", "--run -r", "--multirun -m"):
        made.add_argument(*names.split(), action="store_true")
    made.add_argument("--estimate", action="store_true")
    made.add_argument("--shell-completion", "-sc", action="store_true")
    made.add_argument("--version", action="version", version=f"Hydra {__version__}")
    made.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    made.add_argument("--info", "-i", nargs="?", const="all")
    for names in ("--package -p", "--config-path -cp", "--config-name -cn", "--config-dir -cd"):
        made.add_argument(*names.split())
    return made


def _unknown_option(word: str) -> Problem:
    """Returns what is wrong with a word that begins with a dash and is no option."""
    key = word.lstrip("-")
    if key == "dry-run":
        right = "`zo submit KEY=VALUE ... --dry-run` lists runs, `zo train --cfg job` shows one"
        return Problem(word, ..., right)
    name, equals, value = key.partition("=")
    written = f"{WORDS['neighbours'].get(name, name).partition(',')[0]}={value}"
    known = name in {of.name for of in fields(RunConfig)} | WORDS["neighbours"].keys()
    written = written if equals else f"{written}VALUE"
    plainly = f"keys are written without dashes: {written}" if equals or known else "see --help"
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


def directory_problem(out: str) -> Problem | None:
    """Returns why no directory can be made at `out`, or None; tries it in the nearest directory there is."""
    path = Path(out).absolute()
    nearest = next(p for p in (path, *path.parents) if os.path.exists(p))  # Path's own may raise
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
    """Returns the text of `--help`, from conf/config.yaml, with the options of the groups as they are on the disk."""
    text = (CONFIG_DIR / f"{CONFIG_NAME}.yaml").read_text(encoding="utf-8")
    groups = ("model", "task", "optimizer", "precision", "objective", "adapter", "sweep")
    options = {g: sorted(path.stem for path in (CONFIG_DIR / g).glob("*.yaml")) for g in groups}
    for group, kinds in option_schemas().items():
        options[group] = sorted({*options[group], *kinds})
    listed = "\n".join(f"  {group:11} {', '.join(names)}" for group, names in options.items())
    template = string.Template(yaml.safe_load(text)["hydra"]["help"]["template"])
    return template.substitute(GROUPS=listed)


def runs(overrides: Sequence[str], multirun: bool = False) -> list[RunConfig]:
    """Returns the configuration of every run that the overrides ask for, in the order in which they would run.

    For programs: the last of several values of one key counts. Overrides are as typed: `optimizer=bszo,mezo`,
    `sweep=quickstart`. `multirun`: whether `-m` was given; a sweep file can ask for it, too.

    Raises:
        ConfigError: With every problem of every run, each once.
    """
    return [cfg for cfg, _ in _asked(overrides, multirun).cells]


def read(overrides: Sequence[str], multirun: bool = False) -> CommandLine:
    """Returns what a command line asks for, which gives no key twice; arguments and errors are those of `runs`.

    Of a sweep's lines, a typed value of a key that they set chooses those that have it: `optimizer=mezo`.
    """
    if repeated := list(_repeated(overrides)):
        raise ConfigError(repeated)
    return _asked(overrides, multirun)


def stages(sweep: str) -> list[Staged]:
    """Returns a comparison at each of its stages, in order. Raises ConfigError if there are none."""
    composer = _composer(CONFIG_DIR)
    hydra = _compose_common(composer, composer.parse([f"sweep={sweep}"]), True).hydra
    sweeper: SweeperConfig = OmegaConf.to_object(hydra.sweeper)  # type: ignore[assignment]
    if not sweeper.stages:
        raise ConfigError([Problem("sweep", sweep, "has no stages; `zo train -m` makes it")])
    return [staged(sweep, replace(sweeper, stage=name)) for name in sweeper.stages]


def _asked(overrides: Sequence[str], multirun: bool) -> CommandLine:
    check_installed(CONFIG_DIR)
    typed = [with_own_keys(override) for override in overrides]
    if unreadable := list(_syntax_problems(typed)):
        raise ConfigError(unreadable)
    try:
        return _read(_composer(CONFIG_DIR), tuple(typed), multirun)
    except yaml.YAMLError as error:
        unread = [Problem("conf", ..., explain_yaml(error))]
        raise ConfigError(broken_files(CONFIG_DIR) or unread) from None


def _read(composer: Composer, overrides: tuple[str, ...], multirun: bool) -> CommandLine:
    typed = [in_hydra(override) for override in overrides]
    parsed = composer.parse(typed)
    hydra = _compose_common(composer, parsed, multirun).hydra
    multirun = multirun or hydra.mode == RunMode.MULTIRUN
    sweeper, choices = OmegaConf.to_object(hydra.sweeper), hydra.runtime.choices
    launcher, sweep = choices["hydra/launcher"], choices.get("sweep")
    if not isinstance(sweeper, SweeperConfig):
        right = "must be basic, and a grid's values, as lr=1e-6,1e-7"
        raise ConfigError([Problem("hydra/sweeper", choices["hydra/sweeper"], right)])
    if launcher != "basic" and not multirun:
        right = "add -m to give it one run or more"
        raise ConfigError([Problem("hydra/launcher", launcher, right)])
    if sweep and "tracking.group" in [o.key_or_group for o in parsed]:
        right = f"must be left out: the runs have the sweep's name, {sweep}"
        raise ConfigError([Problem("name", ..., right)])
    asked = staged(sweep or "", sweeper)
    cells: list[tuple[RunConfig, Arm | None]]
    if lines := expand(asked):
        cells = _cells_of_lines(composer, asked, lines, parsed)
    else:
        grid = _grid(asked.sweeper, parsed) if multirun else [typed]
        cells = [(cfg, None) for cfg in _composed(composer, grid)]
    settings = (launcher, OmegaConf.to_object(hydra.launcher))
    swept = tuple(str(o.key_or_group) for o in parsed if o.is_sweep_override())
    name = asked.name or None
    return CommandLine(overrides, multirun, name, asked.sweeper, settings, cells, swept)


@cache
def _composer(directory: Path) -> Composer:
    return Composer(directory)


def _compose_common(composer: Composer, parsed: Sequence[Override], multirun: bool) -> DictConfig:
    """Returns what the runs have in common, with what Hydra is asked for."""
    fixed = [o for o in parsed if not o.is_sweep_override()]
    swept = [str(o.input_line).partition("=")[::2] for o in parsed if o not in fixed]
    try:
        cfg = composer.compose(fixed, hydra=True)
    except UNCOMPOSABLE as error:
        words = [str(o.input_line) for o in fixed]
        raise ConfigError(_override_problems(composer, words, error)) from None
    if swept and not multirun:
        raise ConfigError([Problem(k, v, "add -m to run several values") for k, v in swept])
    if wrong := [(k, v) for k, v in swept if k.startswith("hydra") or k in ("sweep", "stage")]:
        raise ConfigError([Problem(k, v, "must be one value for all runs") for k, v in wrong])
    return cfg


def _cells_of_lines(
    composer: Composer, asked: Staged, lines: Sequence[Arm], parsed: Sequence[Override]
) -> list[tuple[RunConfig, Arm | None]]:
    """Returns the runs of the lines that the overrides choose."""
    keys = {key for line in lines for key in line.values}
    chosen = [o for o in parsed if o.key_or_group in keys]
    wanted = {str(o.key_or_group): _values(o) for o in chosen}
    lines = [
        line
        for line in lines
        if all(line.values.get(key, values[0]) in values for key, values in wanted.items())
    ]
    given = {key: _values(parse(f"{key}={v}")) for key, v in (asked.sweeper.params or {}).items()}
    for line in lines:
        for key, values in line.only.items():
            if wrong := [v for v in values if v not in given.get(key, ())]:
                right = f"must be among the {key} of {asked.typed}: {given.get(key, 'none')}"
                raise ConfigError([Problem(f"only.{line.name}.{key}", wrong[0], right)])
    batch = _grid(asked.sweeper, [o for o in parsed if o not in chosen])
    several = [(line, [*cell, *line.overrides]) for cell in batch for line in lines]
    configs = _composed(composer, [cell for _, cell in several])
    found: list[tuple[RunConfig, Arm | None]] = [
        (cfg, line)
        for (line, _), cfg in zip(several, configs, strict=True)
        if all(value_of(cfg, k) in some for k, some in (*line.only.items(), *wanted.items()))
    ]
    if not found:
        bounds = {*keys, *(key for line in lines for key in line.only)}
        typed = " ".join(str(o.input_line) for o in parsed if o.key_or_group in bounds)
        raise ConfigError([Problem("sweep", asked.typed, f"no line has {typed}")])
    return found


def _values(override: Override) -> list[Any]:
    """Returns the values that an override gives its key; those of a range as they are typed: 3 * 0.0008 is 0.0024."""
    if override.value_type == ValueType.RANGE_SWEEP:
        spec: Any = override.value()
        start, stop, step = (Decimal(f"{v:.15g}") for v in (spec.start, spec.stop, spec.step))
        kind = int if all(isinstance(v, int) for v in (spec.start, spec.stop, spec.step)) else float
        count = ceil((stop - start) / step) if step else 0
        values = [kind(start + i * step) for i in range(count)]
        return sample(values, len(values)) if spec.shuffle else values
    return list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]


def _composed(composer: Composer, expanded: list[list[str]]) -> list[RunConfig]:
    """Returns the checked configuration of every run."""
    configs: list[RunConfig] = []
    problems: dict[str, Problem] = {}
    refused: set[str] = set()  # overrides that were explained once
    for cell in expanded:
        if not refused.isdisjoint(cell):
            continue
        try:
            typed = [*map(parse, cell)]
            keys = {str(of.key_or_group) for of in typed}
            configs.append(to_run_config(composer.compose(typed), keys))
        except ConfigError as error:
            problems |= {str(p): p for p in error.problems}
        except UNCOMPOSABLE as error:
            found = _override_problems(composer, cell, error)
            problems |= {str(p): p for p in found}
            refused |= {f"{p.key}={p.value}" for p in found}
    if shared := shared_copy(cfg.task for cfg in configs):
        path, names = shared
        given = f"{', '.join(names)} are of different data"
        right = f"must be one copy for one task, and {given}; give each its own command"
        problems["task.path"] = Problem("task.path", path, right)
    for cfg in configs:
        before = trained_with(cfg.model.path, getattr(cfg.adapter, "path", None))
        if cfg.steps and cfg.seed in before:
            right = "a run with it made these weights; its batches and directions would come again; give"
            right += f" {max(before) + 1}"
            problems["seed"] = Problem("seed", cfg.seed, right)
    if problems:
        raise ConfigError(list(problems.values()))
    return configs


def _grid(sweeper: SweeperConfig, parsed: Sequence[Override]) -> list[list[str]]:
    """Returns the overrides of each run: Hydra's basic sweep, the sweep file's parameters first."""
    swept = [parse(f"{key}={value}") for key, value in (sweeper.params or {}).items()]
    overrides = [*swept, *parsed]
    if intervals := [o for o in overrides if o.value_type == ValueType.INTERVAL_SWEEP]:
        right = "a grid takes values, as lr=1e-6,1e-7, and no interval(...)"
        raise ConfigError([Problem(str(o.key_or_group), ..., right) for o in intervals])
    # Of a key that is given twice the last values count, in the first place
    values: dict[str, list[str]] = {}
    for o in overrides:
        key, several = o.get_key_element(), o.is_sweep_override()
        typed = str(o.input_line).partition("=")[2] or o.get_value_element_as_str()
        texts = o.sweep_string_iterator() if several else [typed]
        if o.value_type == ValueType.RANGE_SWEEP:
            texts = map(str, _values(o))
        values[key] = [f"{key}={text}" for text in texts]
        if not values[key]:
            raise ConfigError([Problem(str(o.input_line), ..., "stands for no value")])
    return [list(cell) for cell in product(*values.values())]


def _syntax_problems(overrides: Sequence[str]) -> Iterator[Problem]:
    """Yields the overrides that are not written as Hydra reads them."""
    for override in map(" ".join, _torn(overrides)):
        key, equals, value = override.partition("=")
        if not equals and not override.startswith("~"):
            word, *rest = override.split()
            written = f"{word}={rest[0]}" if len(rest) == 1 else "key=value, as lr=1e-6"
            yield Problem(word, ..., f"write {written}, without blanks")
        elif not key.strip("+"):
            right = "no key in front of =; write key=value, as lr=1e-6, without blanks"
            yield Problem(override, ..., right)
        elif key != key.strip() or override not in overrides:
            written = _written(key.strip(), value)
            manner = "in quotes" if written.startswith("'") else "without blanks"
            yield Problem(override, ..., f"write {written}, {manner}")
        elif key.startswith("hydra.") and not key.startswith(OF_HYDRA):
            right = f"is not read; of Hydra's own keys {', '.join(OF_HYDRA)} are"
            yield Problem(key, value, right)
        elif key in BLANKS_COUNT and re.search(r"[\[,]\s+[^\s\"']", value):
            yield Problem(key, value, f"loses its blanks; write {_written(key, value)}")
        elif not _readable(override):
            right = f"Hydra cannot read this value; put it in quotes: {_written(key, value)}"
            if value[:1] in ("'", '"') and value.count(value[0]) == 1:
                right = f"the quote is not closed; write {_written(key, value)}"
            if value.endswith(","):
                right = "a value is missing behind the last comma"
            yield Problem(override, ..., right)


def _torn(overrides: Sequence[str]) -> Iterator[list[str]]:
    """Yields the words of each override: a blank inside of it makes several."""
    words: list[str] = []
    keys = {of.name for of in fields(RunConfig)}
    for word, following in zip(overrides, [*overrides[1:], ""], strict=False):
        begins = "=" in word[1:] or word[:1] == "~" or following[:1] == "=" or word in keys
        if words and begins:
            yield words
            words = []
        words.append(word)
    if words:
        yield words


def _written(key: str, value: str) -> str:
    """Returns a setting as a shell and Hydra read it, from a value whose quotes or blanks they do not."""
    value = re.sub(r"([,\[])\s+", r"\1", value.strip())
    if key in BLANKS_COUNT and (inside := re.fullmatch(r"\[(.*)\]", value)):
        value = "[" + ",".join(f'" {word.strip()}"' for word in inside[1].split(",")) + "]"
    if not _readable(f"{key}={value}"):
        value = '"' + value.strip("\"'") + '"'
    word = f"{key}={value}"
    return word if re.fullmatch(r"[\w.,=+/:-]*", word) else f"'{word}'"


def _readable(override: str) -> bool:
    try:
        parse(override)
    except HydraException:
        return False
    return True


def _override_problems(
    composer: Composer, overrides: Sequence[str], together: Exception
) -> list[Problem]:
    """Tries the overrides one after the other, groups first, and explains each that does not compose.

    If each does, it explains what they raise `together`.
    """
    groups = composer.groups
    accepted: list[Override] = []
    problems = []
    for override in sorted(overrides, key=lambda o: o.lstrip("+~").split("=")[0] not in groups):
        try:
            composer.compose([*accepted, parse(override)], hydra=True)
            accepted.append(parse(override))
        except UNCOMPOSABLE as error:
            key, equals, value = override.partition("=")
            right = explain(error)
            if key.lstrip("+") in groups and isinstance(error, ValueError):
                options = composer.loader.get_group_options(key.lstrip("+"))
                right = f"must be one of {', '.join(options)}"
            if right.startswith("must be one of"):
                right = with_nearest(key, value, right)
            problems.append(Problem(key, value if equals else ..., right))
    return problems or [Problem("conf", CONFIG_NAME, explain(together))]
