"""Code that a run's directory calls: run without asking only if a command of this user's has named it here."""

from contextlib import suppress
from pathlib import Path

from zo.config import RunConfig, reward_code


class UntrustedError(ValueError):
    """A directory that calls code which no command here has named; one sentence."""


def remember(cfg: RunConfig) -> None:
    """Notes that the user has named the code of a run's reward, as it is now."""
    if (path := _note(cfg)) is not None:
        with suppress(OSError):  # where the cache cannot be written, the user is asked again
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def check(cfg: RunConfig, directory: Path) -> None:
    """Makes sure that the user has named the code of a run's reward before.

    Raises:
        UntrustedError: If not, or if the code is another one now.
    """
    path = _note(cfg)
    if path is not None and not path.exists():
        raise UntrustedError(
            f"{directory}: its reward calls objective.function={', '.join(cfg.objective.code())}, code that no command"
            " here has named; read it, and add --trust to run it"
        )


def _note(cfg: RunConfig) -> Path | None:
    """Returns the file that stands for a run's code, in the user's cache; None if the run calls none."""
    functions = cfg.objective.code()
    if not functions or cfg.objective.of(cfg.task) != "reward":
        return None
    return reward_code.note_of(*functions)
