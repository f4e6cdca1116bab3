"""Comparisons: sweeps of methods, each with settings of its own, which no product of parameters describes.

In `hydra.sweeper` of a file in conf/sweep, beside `params`:

    arms: {name: {key: value or list of values}}     compared with the first of them, their p-values corrected together
    references: the same                             references and questions, outside of the correction
    grid: {key: values}                              what every line tries; null in a line leaves a key out
    stages: {name: {params: {...}, best: 3}}         what differs in `params`, and settings of each line (below);
                                                     `only: {line: {seed: [1, 2]}}` gives a line fewer runs
    equivalence_margin: 0.01                         smallest difference of interest
    levels: [0.6, 0.5, 0.45]                         losses whose forward passes are counted; settings are then chosen
                                                     by the mean loss over log passes
    stored_runs: file.parquet                        runs in it are not made again

A line's name is its method's, maybe with words behind a comma: `bszo`, `bszo, k=1`.

`stage=` chooses a stage, by default the last one. The first stage has every setting of the grid. The others have the
`best` settings that the runs of the earlier stages chose. A stage is the sweep SWEEP_STAGE to `analysis`, the last
one SWEEP.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from zo.config.checks import ConfigError, Problem
from zo.config.method_code import with_options
from zo.config.presets import CONFIG_DIR

METHOD = "optimizer"
SETTINGS = CONFIG_DIR.parent / "results" / "settings"
Values = dict[str, Any]


@dataclass
class Stage:
    """A stage of a comparison."""

    params: dict[str, str] = field(default_factory=dict)
    best: int = 1
    only: dict[str, dict[str, list[Any]]] = field(default_factory=dict)


@dataclass
class SweeperConfig:
    """`hydra.sweeper` of a file in conf/sweep."""

    params: dict[str, str] | None = None
    arms: dict[str, Any] | None = None
    references: dict[str, Any] | None = None
    grid: dict[str, Any] | None = None
    stages: dict[str, Stage] | None = None
    stage: str | None = None
    equivalence_margin: float | None = None
    levels: list[float] | None = None
    stored_runs: str | None = None


class NotChosenError(ConfigError):
    """Settings that `zo choose` has not chosen yet."""


@dataclass(frozen=True)
class Arm:
    """An arm of a comparison, and one of its settings."""

    name: str
    role: str  # `base`, `family` or `other`
    values: Mapping[str, Any]
    only: Mapping[str, Sequence[Any]]  # Of some parameters of the stage the values that it has

    @property
    def overrides(self) -> list[str]:
        """Returns its settings as typed."""
        return [f"{key}={_typed(value)}" for key, value in self.values.items()]


@dataclass(frozen=True)
class Staged:
    """A sweep at one of its stages."""

    name: str  # Of its runs' sweep
    typed: str  # What chooses it
    of: tuple[str, ...]  # Names of the stages before it, whose runs choose its settings
    best: int  # How many settings each line takes from there
    sweeper: SweeperConfig  # What it asks for
    # Of some lines the values of parameters that they have
    only: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)


def staged(sweep: str, sweeper: SweeperConfig) -> Staged:
    """Returns a sweep at the stage that its sweeper names, by default the last one. Raises ConfigError without it."""
    stages = sweeper.stages or {}
    if sweeper.stage not in (None, *stages):
        right = f"must be one of {', '.join(stages)}" if stages else "is for a sweep with stages"
        raise ConfigError([Problem("stage", sweeper.stage, right)])
    if not stages:
        return Staged(sweep, sweep, (), 0, sweeper)
    names = [f"{sweep}_{stage}" for stage in stages]
    names[-1] = sweep
    stage = sweeper.stage or list(stages)[-1]
    at, own = list(stages).index(stage), stages[stage]
    typed = f"{sweep} stage={stage}"
    merged = replace(sweeper, params={**(sweeper.params or {}), **own.params})
    return Staged(names[at], typed, tuple(names[:at]), own.best, merged, own.only)


def expand(asked: Staged) -> list[Arm]:
    """Returns every setting of every line of a sweep, line by line; none if it is a plain sweep.

    Raises:
        NotChosenError: If the sweep takes chosen settings and there is no file of them, or a line is not in it.
    """
    sweeper = asked.sweeper
    lines, others, only = (
        {
            with_options(f"{METHOD}={name}").removeprefix(f"{METHOD}="): own
            for name, own in of.items()
        }
        for of in (sweeper.arms or {}, sweeper.references or {}, asked.only)
    )
    if repeated := sorted(lines.keys() & others.keys()):
        raise ConfigError([Problem("references", repeated[0], "is an arm already")])
    if unknown := sorted(only.keys() - lines.keys() - others.keys()):
        right = f"must be a line of {asked.name}: {', '.join([*lines, *others])}"
        raise ConfigError([Problem("only", unknown[0], right)])
    roles = {**dict.fromkeys(others, "other"), **dict.fromkeys(lines, "family")}
    roles |= dict.fromkeys(list(lines)[:1], "base")
    chosen = _chosen_settings(asked) if lines and asked.of else None
    grid = sweeper.grid or {}
    return [
        Arm(name, roles[name], values, only.get(name, {}))
        for name, own in {**lines, **others}.items()
        for values in _settings(asked, name, {**grid, **(own or {})}, chosen)
    ]


def _chosen_settings(asked: Staged) -> dict[str, list[Values]]:
    """Returns the chosen settings of a sweep's lines. Raises NotChosenError without a file of them."""
    path = SETTINGS / f"{asked.name}.csv"
    if not path.is_file():
        raise _not_chosen(asked, f"there is no results/settings/{path.name}")
    found: dict[str, list[Values]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            found.setdefault(row["line"], []).append(json.loads(row["setting"]))
    return found


def _settings(
    asked: Staged, name: str, values: Values, chosen: Mapping[str, list[Values]] | None
) -> Iterator[Values]:
    """Yields the values of each setting of a line."""
    values = {METHOD: name.partition(",")[0], **values}
    values = {key: value for key, value in values.items() if value is not None}
    tried = {key: value for key, value in values.items() if isinstance(value, list)}
    if not tried or chosen is None:
        for some in product(*tried.values()):
            yield {**values, **dict(zip(tried, some, strict=True))}
        return
    if name not in chosen:
        raise _not_chosen(asked, f"results/settings/{asked.name}.csv has no settings of {name}")
    for setting in chosen[name]:
        yield {**values, **{key: setting[key] for key in tried}}


def _not_chosen(asked: Staged, why: str) -> NotChosenError:
    choose = f"choose {asked.name} --of {' '.join(asked.of)} --best {asked.best}"
    right = f"{why}; after the tuning runs, `zo {choose}` writes them"
    return NotChosenError([Problem("sweep", asked.typed, right)])


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
