"""CUDA graphs: a computation's kernel launches, recorded once per shape of its batch and replayed as one launch.

A recording reads and writes fixed addresses. Weights move in place, so a replay reads their current values. A batch is
copied to the address of the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from zo.lm.scoring.collate import Batch

Record: TypeAlias = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], object]]]
"""Function that runs a computation; returns its result, and a function that recomputes it in place."""

STEP = 32  # Rows are padded to a multiple of this many tokens, so that there are few shapes
MOST = 32  # Most recordings: widths of a task's rows, in steps, times the usual numbers of rows


class Graphs:
    """Replays recordings of `compute`.

    Args:
        compute: a function of the batch's tensors and of weights at fixed addresses; it must not synchronise with
            the device.
        record: records by CUDA, or a substitute.
        most: recordings to keep, > 0; the least recently used one is dropped first.
    """

    def __init__(
        self, compute: Callable[[Batch], Tensor], record: Record | None = None, most: int = MOST
    ) -> None:
        self._compute, self._most = compute, most
        self._record = Recorder() if record is None else record
        self._kept: dict[Any, _Recording] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """Returns the result of `compute`; the next call with a batch of this shape overwrites it."""
        shapes = tuple((name, t.shape) for name, t in batch.tensors().items())
        recording = self._kept.pop(shapes, None)
        if recording is None:
            copies: dict[str, Any] = {name: t.clone() for name, t in batch.tensors().items()}
            own = replace(batch, **copies)
            recording = _Recording(own, batch, *self._record(lambda: self._compute(own)))
            # Only now: torch refuses memory that no recording holds.
            while len(self._kept) >= self._most:
                del self._kept[next(iter(self._kept))]
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
    """Records with CUDA; all recordings share memory, since only one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        """Warms up `compute` on a side stream, so that libraries have allocated their memory, then records it."""
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
