"""Whether the files of conf/ are there and are YAML."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from zo.config.checks import ConfigError, Problem
from zo.config.explain import explain_yaml
from zo.config.presets import CONFIG_DIR


def check_installed() -> None:
    """Makes sure that the files of conf/ are beside the package.

    Raises:
        ConfigError: If they are not.
    """
    if not CONFIG_DIR.is_dir():
        place = Path(__file__).resolve().parents[1]
        right = f"is not installed with {place}; run `pip install -e '.[suite]'` in a copy of the repository"
        raise ConfigError([Problem("conf", ..., right)])


def broken_files() -> Iterator[Problem]:
    """Yields the files of conf/ that are not YAML."""
    for path in sorted(CONFIG_DIR.rglob("*.yaml")):
        try:
            yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            yield Problem(str(path), ..., explain_yaml(error))
