"""Code of methods: its digest, and `optimizer=my_method.py:MyMethod`, an option made of a file's class.

The digest tells runs of edited code from runs of the released one. Files of the rooms `optim`, `weights` and `noise`
count where they differ from the checked out commit, but for modules of methods that this one does not build on.
Without git no difference is seen. A method in a file of its own always has the digest of the Python files beside
it, and counts all that differ.
"""

import re
from functools import cache
from pathlib import Path

from hydra.core.config_store import ConfigStore

from zo.config import digests, reward_code
from zo.config.checks import ConfigError, Problem
from zo.extras import Trust
from zo.optim import OPTIMIZERS

ADDRESS = r"[^\s,=:'\"\[\]{}]+\.py:\w+"  # Regular expression of a file and a class in it
KEY = "optimizer.code"  # Where the digest stands among a run's input files and in its identity
COMMITTED = "as committed"  # What stands in a trajectory for code without a digest
PACKAGE = Path(__file__).parents[1]
ROOMS = ("optim", "weights", "noise")


class UntrustedError(ConfigError):
    """A directory names a method's file, which runs with `--trust` alone."""


@cache
def of_method(name: str, package: Path = PACKAGE) -> str | None:
    """Returns the digest of a method's code that is not a commit's of this project; None if there is none."""
    method, module, edited = OPTIMIZERS[name], _module(package, name), _edited(package)
    if method.config.file:
        beside = reward_code.beside(module, "optimizer")
        return digests.of_files(module.parent, {module, *beside, *edited})
    if edited:
        others = {_module(package, other) for other in OPTIMIZERS} - {module}
        edited -= others - _builds_on(module)
    return digests.of_files(package, edited) if edited else None


def _module(package: Path, name: str) -> Path:
    method = OPTIMIZERS[name]
    if method.config.file:
        return Path(method.config.file.rpartition(":")[0])
    return package.joinpath(*method.module.split(".")[1:]).with_suffix(".py")


def _builds_on(module: Path) -> set[Path]:
    """Returns a module of `zo.optim` and those that it imports, directly or not."""
    text = module.read_text(encoding="utf-8")
    names = re.findall(r"^from zo\.optim\.(\w+) import", text, re.M)
    paths = [module.with_name(f"{name}.py") for name in names]
    return {module}.union(*(_builds_on(path) for path in paths if path.is_file()))


@cache
def _edited(package: Path) -> frozenset[Path]:
    """Returns the files of the rooms that differ from the checked out commit; empty if no commit has them."""
    if not digests.git(package, "ls-files", "optim/__init__.py"):
        return frozenset()
    changed = digests.git(package, "diff", "--name-only", "--relative", "-z", "HEAD", "--", *ROOMS)
    new = digests.git(package, "ls-files", "--others", "--exclude-standard", "-z", "--", *ROOMS)
    paths = [package / name for name in f"{changed}{new}".split("\0") if name]
    return frozenset(p for p in paths if p.is_file() and p.name != "__init__.py")


def with_options(override: str) -> str:
    """Returns an override of `optimizer` with the options that its files' classes become. May raise ConfigError."""
    if not override.startswith("optimizer="):
        return override
    for found in re.finditer(ADDRESS, override):
        before = override[: found.start()].rstrip()
        if not before.endswith((",", "[", "(", "'", '"')) and before != "optimizer=":
            right = "is a path with a blank or =, which no file of a method can have; move the file"
            raise ConfigError([Problem("optimizer", override.partition("=")[2], right)])
    return re.sub(ADDRESS, lambda found: option(found[0]), override)


def option(address: str, typed: bool = True) -> str:
    """Runs the file of `file.py:Class` and returns the option that its class becomes.

    What a run's directory names, and nobody has `typed`, runs with `--trust` alone.

    Raises:
        ConfigError: If it cannot be used.
    """
    from zo.optim import from_file  # here: few runs have a method of their own

    if not (typed or Trust.given or from_file.was_run(address)):
        right = "is code that a run's directory names; read it, and add --trust to run it"
        raise UntrustedError([Problem("optimizer", address, right)])
    try:
        name = from_file.register(address)
        of_method.cache_clear()  # the file may have been edited since
    except ValueError as error:
        raise ConfigError([Problem("optimizer", address, str(error))]) from None
    ConfigStore.instance().store(group="optimizer", name=name, node=OPTIMIZERS[name].config)
    return name
