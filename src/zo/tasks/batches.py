"""Which training examples make up a step's mini-batch: a function of (seed, step) alone."""

from functools import lru_cache

import numpy as np

STREAM = 1  # keeps this order apart from any other use of the run's seed


def batch_indices(n: int, batch_size: int, seed: int, step: int) -> list[int]:
    """Returns the examples of step `step`, counted from 0: `batch_size` indices below n.

    Mini-batches come from a sequence of permutations of the examples, so that every batch is full.
    """
    first = step * batch_size
    return [_permutation(n, seed, i // n)[i % n] for i in range(first, first + batch_size)]


@lru_cache(2)  # a mini-batch spans two epochs at most
def _permutation(n: int, seed: int, epoch: int) -> list[int]:
    found: list[int] = np.random.default_rng([seed, STREAM, epoch]).permutation(n).tolist()
    return found
