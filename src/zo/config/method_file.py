"""`optimizer=my_method.py:MyMethod`: an option of the group `optimizer` made of a file's class."""

import re

from hydra.core.config_store import ConfigStore

from zo.config import method_code
from zo.config.checks import ConfigError, Problem
from zo.extras import Trust
from zo.optim import OPTIMIZERS

ADDRESS = r"[^\s,=:'\"\[\]{}]+\.py:\w+"
"""Regular expression of a file and a class in it."""


def with_options(override: str) -> str:
    """Returns an override of `optimizer` with the options that its files' classes become.

    Raises:
        ConfigError: If a file or its class cannot be used.
    """
    if not override.startswith("optimizer="):
        return override
    return re.sub(ADDRESS, lambda found: option(found[0]), override)


def option(address: str, typed: bool = True) -> str:
    """Runs a file and returns the option that its class becomes.

    Args:
        address: `file.py:Class`.
        typed: Whether the user has typed it. What a run's directory names runs with `--trust` alone.

    Raises:
        ConfigError: If it cannot be used.
    """
    from zo.optim import from_file  # here: few runs have a method of their own

    if not (typed or Trust.given or from_file.was_run(address)):
        right = "is code that a run's directory names; read it, and add --trust to run it"
        raise ConfigError([Problem("optimizer", address, right)])
    try:
        name = from_file.register(address)
        method_code.of_method.cache_clear()  # the file may have been edited since
    except ValueError as error:
        raise ConfigError([Problem("optimizer", address, str(error))]) from None
    ConfigStore.instance().store(group="optimizer", name=name, node=OPTIMIZERS[name].config)
    return name
