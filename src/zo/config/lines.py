"""Sweeps of lines: methods, each with settings of its own, which no product of parameters describes.

In `hydra.sweeper` of a file in conf/sweep, beside `params`:

    lines: {name: {key: value or list of values}}    compared with the first of them, their p-values corrected together
    others: the same                                 references and questions, outside of the correction
    grid: {key: values}                              what every line tries; null in a line leaves a key out
    settings: {of: [sweep], best: 3}                 instead of the grid, what each line's runs in these sweeps chose
    smallest: 0.01                                   smallest difference of interest
    recorded: file.parquet                           runs in it are not made again

A line's name is its method's, maybe with words behind a comma: `bszo`, `bszo, k=1`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import yaml

from zo.config.checks import ConfigError, Problem
from zo.config.origin import CONFIG_DIR

METHOD = "optimizer"
Values = dict[str, Any]


@dataclass
class SweeperConfig:
    """`hydra.sweeper` of a file in conf/sweep."""

    params: dict[str, str] | None = None
    lines: dict[str, Any] | None = None
    others: dict[str, Any] | None = None
    grid: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    smallest: float | None = None
    recorded: str | None = None


class NotChosenError(ConfigError):
    """Settings that `python -m analysis choose` has not chosen yet."""


@dataclass(frozen=True)
class Line:
    """A line of a comparison, and one of its settings."""

    name: str
    role: str  # `base`, `family` or `other`
    values: Mapping[str, Any]

    @property
    def overrides(self) -> list[str]:
        """Returns its settings as typed."""
        return [f"{key}={_typed(value)}" for key, value in self.values.items()]


def expand(sweep: str, sweeper: SweeperConfig) -> list[Line]:
    """Returns every setting of every line of a sweep, line by line; none if it is a plain sweep.

    Raises:
        NotChosenError: If the sweep takes chosen settings and there is no file of them, or a line is not in it.
    """
    lines, others = sweeper.lines or {}, sweeper.others or {}
    if repeated := sorted(lines.keys() & others.keys()):
        raise ConfigError([Problem("others", repeated[0], "is a line already")])
    roles = {**dict.fromkeys(others, "other"), **dict.fromkeys(lines, "family")}
    roles |= dict.fromkeys(list(lines)[:1], "base")
    rule = sweeper.settings if lines else None
    chosen = settings_of(sweep, rule) if rule else None
    grid = sweeper.grid or {}
    return [
        Line(name, roles[name], values)
        for name, own in {**lines, **others}.items()
        for values in _settings(sweep, name, {**grid, **(own or {})}, rule or {}, chosen)
    ]


def settings_of(sweep: str, rule: Mapping[str, Any]) -> dict[str, list[Values]]:
    """Returns the chosen settings of a sweep's lines.

    Raises:
        NotChosenError: If there is no file of them.
    """
    path = CONFIG_DIR / "settings" / f"{sweep}.yaml"
    if not path.is_file():
        raise _not_chosen(sweep, rule, f"there is no conf/settings/{path.name}")
    found: dict[str, list[Values]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def _settings(
    sweep: str,
    name: str,
    values: Values,
    rule: Mapping[str, Any],
    chosen: Mapping[str, list[Values]] | None,
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
        raise _not_chosen(sweep, rule, f"conf/settings/{sweep}.yaml has no settings of {name}")
    for setting in chosen[name]:
        yield {**values, **{key: setting[key] for key in tried}}


def _not_chosen(sweep: str, rule: Mapping[str, Any], why: str) -> NotChosenError:
    choose = f"choose {sweep} --of {' '.join(rule['of'])} --best {rule['best']}"
    right = f"{why}; after the tuning runs, `python -m analysis {choose}` writes them"
    return NotChosenError([Problem("sweep", sweep, right)])


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
