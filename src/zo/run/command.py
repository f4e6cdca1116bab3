"""One run as a command: its title, its exit status, and one line for whatever the user can fix."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from zo.config import RunConfig, describe
from zo.config.settings import chosen_mode
from zo.distributed.config import follows
from zo.run.logs.progress import Screen
from zo.run.signals import CTRL_C

if TYPE_CHECKING:
    from zo.lm.scoring.states import KeptStates
    from zo.tasks import Encoded


@dataclass
class Shared:
    """What the last run of a multirun left."""

    # Splits, and hidden states of frozen blocks, each by all that they come from
    encoded: dict[str, list[Encoded]] = field(default_factory=dict)
    states: dict[str, KeptStates] = field(default_factory=dict)
    wandb_failed: bool = False  # Whether W&B could not be logged to; it is not tried again


def make(cfg: RunConfig, directory: Path | None = None) -> int:
    """Makes one run, says on stderr what stopped it, and returns the exit status.

    0 the run has ended, 2 it cannot be made as configured, 75 another process has it, 130 Ctrl-C twice. Raises
    Interrupted if a signal asked to stop; its exit status is 143, after Ctrl-C 130.
    """
    Screen().say(describe(cfg))
    import_wandb(cfg.tracking.mode)
    from zo.run import runner  # here, so that the title is shown before torch is imported
    from zo.run.store import lock

    try:
        runner.run(cfg, directory)
    except KeyboardInterrupt:
        return CTRL_C
    except lock.LockedError as error:
        print(error, file=sys.stderr)
        return os.EX_TEMPFAIL
    except runner.UNUSABLE as error:
        if not follows():  # process 0 has the same error
            print(error, file=sys.stderr)
        return 2
    return 0


def import_wandb(mode: str) -> None:
    """Imports W&B where the run is logged there; called before torch is imported.

    Pydantic reads the sources of W&B's classes and searches all modules for each of them: a second more after torch.
    """
    if chosen_mode(mode) != "disabled":
        import wandb.apis.public  # noqa: F401
