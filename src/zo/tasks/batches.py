"""Which training examples make up a step's mini-batch: a function of (seed, step) alone."""

from functools import lru_cache

import numpy as np

STREAM = 1  # keeps this order apart from any other use of the run's seed


class BatchOrder:
    """Mini-batches drawn from an endless row of permutations, so that every one is full."""

    def __init__(self, n: int, batch_size: int, seed: int):
        self.n = n
        self.batch_size = batch_size
        self.seed = seed
        self._permutation = lru_cache(2)(self._draw)  # a mini-batch spans two epochs at most

    def indices(self, step: int) -> list[int]:
        """Returns the examples of step `step`, counted from 0: `batch_size` indices below n."""
        first = step * self.batch_size
        return [
            self._permutation(i // self.n)[i % self.n]
            for i in range(first, first + self.batch_size)
        ]

    def _draw(self, epoch: int) -> list[int]:
        generator = np.random.default_rng([self.seed, STREAM, epoch])
        found: list[int] = generator.permutation(self.n).tolist()
        return found
