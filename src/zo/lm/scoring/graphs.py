"""A GPU's kernel launches of a computation, recorded once per shape of its batch and repeated as one launch.

What a recording reads and writes lies where it lay when it was made: the weights, which are moved in place, are seen as
they are at every repetition; a batch is copied to where the recorded one was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from zo.lm.scoring.collate import Batch

Record: TypeAlias = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], object]]]
"""Runs a computation; returns its result's place, and what computes it again into that place."""

STEP = 32
"""Rows are padded to a multiple of this many tokens, so that few shapes come up."""

MOST = 32
"""Recordings that are kept: widths of a task's rows, in steps, times the numbers of rows that are usual."""


class Graphs:
    """Calls `compute`, recorded.

    Args:
        compute: a function of the batch's tensors and of weights that stay where they are; waits
            for nothing that the device computes.
        record: as CUDA does it, or in its place.
        most: recordings that are kept, > 0; the one that was used longest ago goes first.
    """

    def __init__(
        self,
        compute: Callable[[Batch], Tensor],
        record: Record | None = None,
        most: int = MOST,
    ) -> None:
        self._compute, self._most = compute, most
        self._record = Recorder() if record is None else record
        self._kept: dict[Any, _Recording] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """Returns what `compute` would, in a place that the next call with such a batch overwrites."""
        shapes = tuple((name, t.shape) for name, t in batch.tensors().items())
        recording = self._kept.pop(shapes, None)
        if recording is None:
            while len(self._kept) >= self._most:
                del self._kept[next(iter(self._kept))]
            copies: dict[str, Any] = {name: t.clone() for name, t in batch.tensors().items()}
            own = replace(batch, **copies)
            recording = _Recording(own, batch, *self._record(lambda: self._compute(own)))
        self._kept[shapes] = recording
        return recording.repeat(batch)


@dataclass
class _Recording:
    """One computation, recorded."""

    own: Batch
    holds: Batch
    result: Tensor
    again: Callable[[], object]

    def repeat(self, batch: Batch) -> Tensor:
        """Computes the batch's result."""
        if batch is not self.holds:
            for name, tensor in batch.tensors().items():
                getattr(self.own, name).copy_(tensor)
            self.holds = batch
        self.again()
        return self.result


class Recorder:
    """Records with CUDA; all recordings share their memory, since only one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        """Runs `compute` on the side until all that libraries allocate at first use is there, then records it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = compute()
        return result, graph.replay
