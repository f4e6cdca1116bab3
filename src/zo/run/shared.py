"""What the runs of a process leave for the next one. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zo.lm.scoring.states import KeptStates
    from zo.tasks import Encoded


@dataclass
class Shared:
    """What the last run of a multirun left.

    Attributes:
        encoded: Splits, by all that their tokens come from.
        states: Hidden states of frozen blocks, by all that they come from.
        wandb_failed: Whether W&B could not be logged to; it is not tried again.
    """

    encoded: dict[str, list[Encoded]] = field(default_factory=dict)
    states: dict[str, KeptStates] = field(default_factory=dict)
    wandb_failed: bool = False
