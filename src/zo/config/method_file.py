"""`optimizer=my_method.py:MyMethod`: an option of the group `optimizer` made of a file's class."""

import re
from contextlib import suppress
from pathlib import Path

from hydra.core.config_store import ConfigStore

from zo.config import method_code, reward_code
from zo.config.checks import ConfigError, Problem
from zo.optim import OPTIMIZERS, from_file


def with_options(override: str) -> str:
    """Returns an override of `optimizer` with the options that its files' classes become.

    Raises:
        ConfigError: If a file or its class cannot be used.
    """
    if not override.startswith("optimizer="):
        return override
    return re.sub(from_file.ADDRESS, lambda found: option(found[0]), override)


def option(address: str, named: bool = True) -> str:
    """Runs a file and returns the option that its class becomes.

    Args:
        address: `file.py:Class`.
        named: Whether the user has just named it. Other code runs only as it was when a command named it.

    Raises:
        ConfigError: If it cannot be used.
    """
    place, _, name = address.rpartition(":")
    note = reward_code.note_of(f"{Path(place).expanduser().resolve()}:{name}")
    if not named and not note.exists():
        right = "code that no command here has named as it is now; read it, and add --trust to run it, or name it as"
        raise ConfigError([Problem("optimizer", address, f"{right} optimizer= of a command")])
    try:
        from_file.register(address)
        method_code.of_method.cache_clear()  # the file may have been edited since
    except ValueError as error:
        raise ConfigError([Problem("optimizer", address, str(error))]) from None
    with suppress(OSError):  # where the cache cannot be written, the user is asked again
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
    ConfigStore.instance().store(group="optimizer", name=name, node=OPTIMIZERS[name].config)
    return name
