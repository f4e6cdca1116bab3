"""Steps, interleaved, and their memory."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch

from benchmarks.steps.cases import FORWARD, LR, Case
from zo.config import register
from zo.lm.scoring.candidates import CandidateScorer
from zo.optim import OPTIMIZERS
from zo.run import memory
from zo.run.assembly import Assembly
from zo.run.losses import BatchLoss
from zo.tasks import Encoded
from zo.weights.space import ParameterSpace

MODELLING = ("transformers.models.auto.modeling_auto", "transformers.models.opt.modeling_opt")
"""What every child needs, imported once."""

STEPS_FOR_MEMORY = 2
TOGETHER = 6.0
"""GiB that interleaved cases may need together."""


class Times(NamedTuple):
    """Seconds of a step, the mean over the mini-batches."""

    step: float  # from the mini-batch's tokens to θ moved
    processor: float  # of all of the process's threads
    forward: float = 0.0  # of the step, in forward passes
    weights: float = 0.0  # of the step, in passes over the weights
    passes: float = 0.0  # over the weights; a count


class Peak(NamedTuple):
    """Memory, GiB."""

    peak: float  # the most that steps needed
    before: float  # what was there before the model: on a CPU the libraries, on a GPU nothing


class FiniteLoss(BatchLoss):
    """The loss of one mini-batch; one that is not finite (random weights in float16) counts as 1."""

    def __call__(self) -> float:
        """Returns the loss at the current θ."""
        loss = super().__call__()
        return loss if math.isfinite(loss) else 1.0

    def branches(self, n: int) -> list[float]:
        """Returns the losses of n copies of the mini-batch that go through the model together."""
        return [loss if math.isfinite(loss) else 1.0 for loss in super().branches(n)]


class Stepper:
    """Makes steps of one case, as a run makes them."""

    def __init__(self, case: Case):
        cfg = case.config()
        self.case, self.assembly = case, Assembly.of(cfg)
        self.batches = [case.batch(seed) for seed in range(case.batches)]
        loaded = self.assembly.loaded
        pad_id = loaded.tokenizer.pad_token_id
        self.scorer = CandidateScorer(loaded.model, pad_id, cfg.precision.loss)
        if case.method != FORWARD and hasattr(cfg.optimizer, "window"):
            for _ in range(cfg.optimizer.window + 1):  # AdaMeZO's first steps, which are MeZO's
                self.assembly.optimizer.replay([0.0, 0.0])

    def _step(self, examples: Sequence[Encoded]) -> None:
        """Makes one step on a mini-batch, or one forward pass."""
        loss = FiniteLoss(self.scorer, self.scorer.collate(examples), self.assembly.params)
        if self.case.method == FORWARD:
            loss()
        else:
            self.assembly.optimizer.step(loss)

    def timed(self) -> Times:
        """Makes one step on every mini-batch."""
        before = self._clocks()
        for examples in self.batches:
            self._step(examples)
        totals = np.subtract(self._clocks(), before) / len(self.batches)
        return Times(*totals.tolist())

    def _clocks(self) -> tuple[float, ...]:
        """Returns what `Times` is a difference of, on a GPU when its work has ended."""
        if self.assembly.device.type == "cuda":
            torch.cuda.synchronize(self.assembly.device)
        clock = self.assembly.params.stopwatch
        spent = clock.seconds("loss"), clock.seconds("weights"), clock.counts["weights"]
        return time.perf_counter(), time.process_time(), *spent


def loaded(cases: Sequence[Case], failed: dict[Case, str]) -> Iterator[list[tuple[Stepper, Peak]]]:
    """Yields cases, as many as memory takes together (on a GPU one); `failed` gets the reasons of the others."""
    chunk = []
    for case in cases:
        on_gpu = case.device.startswith("cuda")
        try:
            chunk.append(peak_here(case) if on_gpu else (Stepper(case), peak_of_child(case)))
        except RuntimeError as error:  # out of memory among them
            failed[case] = str(error).strip()
            continue
        if on_gpu or sum(peak.peak - peak.before for _, peak in chunk) >= TOGETHER:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def interleaved(steppers: Sequence[Stepper], rounds: int) -> list[Times]:
    """Returns the median times of each, all measured once per round; a first round does not count."""
    found = [[stepper.timed() for stepper in steppers] for _ in range(rounds + 1)]
    return [Times(*np.median(times[1:], axis=0).tolist()) for times in zip(*found, strict=True)]


def peak_here(case: Case) -> tuple[Stepper, Peak]:
    """Loads a case and makes its first steps; returns it with the memory that it needed.

    On a GPU what PyTorch had allocated; on a CPU resident memory, which is true in a fresh process alone.
    """
    device = torch.device(case.device)
    _prepare(case)
    gc.collect()
    memory.reset_peak(device)
    before = memory.peak_gib(device)
    stepper = Stepper(case)
    memory.reset_peak(device)
    for _ in range(STEPS_FOR_MEMORY):
        stepper.timed()
    return stepper, Peak(memory.peak_gib(device), before)


def _prepare(case: Case) -> None:
    """Moves a few values, so that compilers and libraries that noise needs are not counted as a step's memory."""
    p = torch.zeros(8, dtype=getattr(torch, case.dtype), device=case.device)
    space, method = ParameterSpace([("p", p)], noise=case.noise), OPTIMIZERS["bszo"]
    method.optimizer(space, method.config(), lr=LR, seed=0).step(lambda: 1.0)


def peak_of_child(case: Case) -> Peak:
    """Returns the memory that a case needs in a process of its own.

    Raises:
        RuntimeError: If that process ends without an answer.
    """
    # From 64 KiB on the C library gives a freed tensor back at once: resident memory is memory in use.
    with mock.patch.dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536"):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", __name__, *MODELLING])
        with ProcessPoolExecutor(1, mp_context=context, initializer=register) as executor:
            return executor.submit(_peak_alone, case).result()


def _peak_alone(case: Case) -> Peak:
    return peak_here(case)[1]
