"""Digest of a method's code, so that runs of edited code are told from runs of the released one.

Files of the rooms `optim`, `weights` and `noise` count where they differ from the checked out commit, but for modules
of methods that this one does not build on. Without git no difference is seen. A method in a file of its own has that
file's digest always, and counts all that differ.
"""

from functools import cache
from pathlib import Path

from zo.config import digests, reward_code
from zo.optim import OPTIMIZERS

KEY = "optimizer.code"
"""Where the digest stands among a run's input files and in its identity."""

COMMITTED = "as committed"
"""What stands in a trajectory for code without a digest."""

PACKAGE = Path(__file__).parents[1]
ROOMS = ("optim", "weights", "noise")


@cache
def of_method(name: str, package: Path = PACKAGE) -> str | None:
    """Returns the digest of a method's code that is not a commit's of this project; None if there is none.

    Args:
        name: In `zo.optim.OPTIMIZERS`.
        package: Directory of the package `zo`.
    """
    method, module, edited = OPTIMIZERS[name], _module(package, name), _edited(package)
    if method.own is not None:
        return digests.of_files(module.parent, {module, *reward_code.imported(module), *edited})
    if edited:
        others = {_module(package, other) for other in OPTIMIZERS} - {module}
        edited -= others - reward_code.imported(module)
    return digests.of_files(package, edited) if edited else None


def _module(package: Path, name: str) -> Path:
    method = OPTIMIZERS[name]
    if method.own is not None:
        return Path(method.config.file.rpartition(":")[0])
    return package.joinpath(*method.module.split(".")[1:]).with_suffix(".py")


@cache
def _edited(package: Path) -> frozenset[Path]:
    """Returns the files of the rooms that differ from the checked out commit; empty if no commit has them."""
    if not digests.git(package, "ls-files", "optim/__init__.py"):
        return frozenset()
    changed = digests.git(package, "diff", "--name-only", "--relative", "-z", "HEAD", "--", *ROOMS)
    new = digests.git(package, "ls-files", "--others", "--exclude-standard", "-z", "--", *ROOMS)
    paths = [package / name for name in f"{changed}{new}".split("\0") if name]
    return frozenset(p for p in paths if p.is_file() and p.name != "__init__.py")
