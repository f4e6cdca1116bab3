"""transformers without its progress bars and chatter."""

from __future__ import annotations

import logging as python_logging
from collections.abc import Iterator
from contextlib import contextmanager

CHATTY = ("torchao", "torch.utils._pytree")
"""Loggers that report, on a machine without a GPU, what transformers' import of torchao could not load."""


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no chatter from the library, as it was before on exit."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    levels = {name: python_logging.getLogger(name).level for name in CHATTY}
    for name in CHATTY:
        python_logging.getLogger(name).setLevel(python_logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            python_logging.getLogger(name).setLevel(level)
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
