"""Runs from the words of a command line, in this process: their configurations, their rows, and one that is stopped."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.victims import At, armed
from zo import config
from zo.config import RunConfig, command_line
from zo.run.runner import run
from zo.run.signals import Interrupted
from zo.run.store.directory import directory_of
from zo.run.store.rows import read_rows
from zo.tasks import package_files

MADE = "zo.distributed.agreement.Watch.after_step"
"""What a run calls once a step is made."""

REVIEWS_TINY = package_files.resolve("package:zo/assets/reviews-tiny")


def composed(out: Path, *overrides: str) -> RunConfig:
    """Returns the checked configuration of one run, which tracks nothing."""
    config.register()
    (cfg,) = command_line.runs([f"out={out}", "tracking.mode=disabled", *overrides])
    return cfg


def rows_of(cfg: RunConfig) -> list[dict[str, Any]]:
    return read_rows(directory_of(cfg))


def rows_once_run(cfg: RunConfig) -> list[dict[str, Any]]:
    run(cfg)
    return rows_of(cfg)


@contextmanager
def stopped_after(step: int) -> Iterator[None]:
    """Has the run of its body stop behind the nth step that it makes, as by SIGTERM."""
    with armed(At(MADE, step, number=signal.SIGTERM)), pytest.raises(Interrupted):
        yield
