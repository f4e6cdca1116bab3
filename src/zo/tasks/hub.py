"""The hub of models and data sets: a quick check that it answers, reading from its cache, and quiet logging."""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from zo.extras import in_time

SECONDS = 5.0  # How long the hub has to answer
ELSEWHERE = "set HF_HOME to a directory that can be written"


def cannot_write(error: BaseException | None) -> bool:
    """Returns whether an error means that the hub's cache on this machine cannot be written."""
    from huggingface_hub import constants

    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            cache, at = str(constants.HF_HOME), str(error.filename)
            return cache.startswith(at) or at.startswith(cache)
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def patient(local: bool = False) -> Iterator[None]:
    """Reads from the hub, or from its cache alone if the hub does not answer; it is not asked for what is `local`.

    Raises:
        ConnectionError: If the hub does not answer and the cache does not have it; one sentence.
    """
    from huggingface_hub import constants

    if local or constants.HF_HUB_OFFLINE or answers():
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    except Exception as error:
        raise ConnectionError(
            f"{constants.ENDPOINT} does not answer within {SECONDS:g} s, and its cache here has no copy"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = False


@contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Silences progress bars and logs of the library with this logging module; restores them on exit."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@functools.cache
def answers() -> bool:
    """Returns whether the hub answers; without a name, a route or a certificate it is out of reach."""
    from huggingface_hub import constants, get_session

    found = in_time(lambda: get_session().head(constants.ENDPOINT, timeout=SECONDS), SECONDS)
    return not (found is None or isinstance(found, Exception))


def file(repository: str, name: str, revision: str | None = None) -> str:
    """Returns the path of a model's file on this machine; downloads it if the cache does not have it.

    Raises:
        OSError: If neither has it.
        ValueError: If no repository can have that name.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    found = try_to_load_from_cache(repository, name, revision=revision)
    if isinstance(found, str):
        return found
    with patient():
        return hf_hub_download(repository, name, revision=revision)


def first_line(error: Exception) -> str:
    """Returns an exception's first line, without its full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else repr(error)
