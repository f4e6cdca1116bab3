"""Keys of noise vectors."""

from typing import NamedTuple

PERTURBATION = 0
"""Stream of a method's directions."""

SUBSPACE = 1
"""Stream of subspaces that are kept for several steps, as LOZO's V."""

ROUNDING = 2
"""Stream of the bits of stochastic rounding."""


SAMPLING = 8
"""Stream of the tokens that are drawn in a step, see `zo.lm.scoring.sampling`."""

EVALUATION = 9
"""Stream of the tokens that are drawn in evaluations."""


class NoiseKey(NamedTuple):
    """The key of a noise vector, which determines its values.

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
