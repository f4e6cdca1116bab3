"""Processes that begin with all libraries imported: a server imports them once, and forks."""

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from typing import Any

import pytest


def preloaded_context() -> Any:
    """Returns the context whose processes are forked from one that has imported what a run needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # this repository, too
        forkserver.ensure_running()
    return context
