"""What a draw depends on, and nothing else."""

from typing import NamedTuple

PERTURBATION = 0
"""Stream of the directions that a method moves along."""

SUBSPACE = 1
"""Stream of what is redrawn only every so often and holds for the steps between: LOZO's V."""

ROUNDING = 2
"""Stream of the bits that decide which way an update is rounded."""


SAMPLING = 8
"""Stream of the tokens that are drawn in a step, see `zo.lm.scoring.sampling`."""

EVALUATION = 9
"""Stream of the tokens that are drawn in evaluations."""


class NoiseKey(NamedTuple):
    """What a noise vector depends on.

    Attributes:
        seed: The run's seed, any 64-bit integer.
        stream: Purpose of the draw, 0 to 255; different purposes never share noise.
        step: Optimizer step, from 0.
        direction: Index of the direction within its step, from 0.
    """

    seed: int
    stream: int
    step: int
    direction: int
