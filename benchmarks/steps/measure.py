"""Steps, timed in turns with the released code's, and the memory that they need."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple, TypeAlias
from unittest import mock

import numpy as np
import torch

from benchmarks.steps.cases import FORWARD, LR, Case
from benchmarks.steps.released import ReleasedStep
from benchmarks.steps.shapes import SHAPES, batches
from zo.config import register
from zo.lm.load import load
from zo.lm.scoring import CandidateScorer
from zo.optim import OPTIMIZERS
from zo.run import memory
from zo.run.assembly import Assembly
from zo.run.losses import BatchLoss
from zo.weights.space import ParameterSpace

MODELLING = ("transformers.models.auto.modeling_auto", "transformers.models.opt.modeling_opt")
"""What every child needs, imported once."""

STEPS_FOR_MEMORY = 2
MAPPED = 2**16
"""Bytes from which the C library gives a freed tensor back at once, so that resident memory is memory in use."""

TOGETHER = 6 * 2**30
"""Bytes of weights and state that cases timed in turns may have together."""


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
        loaded = self.assembly.loaded
        pad_id = loaded.tokenizer.pad_token_id
        self.scorer = CandidateScorer(loaded.model, pad_id, cfg.precision.loss, cfg.model.kind)
        self.batches = batches(SHAPES[case.shape], case.examples, case.batch_size, case.batches)
        if case.method != FORWARD and hasattr(cfg.optimizer, "window"):
            for _ in range(cfg.optimizer.window + 1):  # AdaMeZO's first steps, which are MeZO's
                self.assembly.optimizer.replay([0.0, 0.0])

    @property
    def bytes(self) -> int:
        """Bytes of weights, copies and state."""
        params = self.assembly.params
        weights = sum(t.numel() * t.element_size() for t in params.tensors)
        copies = 2 if params.restore == "snapshot" else 1
        return copies * weights + self.assembly.optimizer.state_bytes()

    def step(self) -> Times:
        """Makes one step on every mini-batch, or one forward pass."""
        params = self.assembly.params
        moved, forward, passes = params.seconds, params.measuring_seconds, params.passes

        def work() -> None:
            for examples in self.batches:
                loss = FiniteLoss(self.scorer, self.scorer.collate(examples), params)
                if self.case.method == FORWARD:
                    loss()
                else:
                    self.assembly.optimizer.step(loss)

        clocked = _clock(work, self.assembly.device)
        spent = params.measuring_seconds - forward, params.seconds - moved
        totals = (*clocked, *spent, params.passes - passes)
        return Times(*(total / len(self.batches) for total in totals))


class ReleasedStepper:
    """Makes the same method's steps as the released code does, on a model of its own."""

    def __init__(self, case: Case):
        cfg, self.device = case.config(), torch.device(case.device)
        loaded = load(cfg.model, getattr(torch, cfg.precision.dtype), self.device)
        self.released = ReleasedStep(
            loaded.model, loaded.tokenizer.pad_token_id, cfg.optimizer, lr=LR
        )
        self.batches = batches(SHAPES[case.shape], case.examples, case.batch_size, case.batches)

    def step(self) -> Times:
        """Makes one step on every mini-batch."""
        clocked = _clock(lambda: [self.released(b) for b in self.batches], self.device)
        return Times(*(total / len(self.batches) for total in clocked))


Loaded: TypeAlias = list[tuple[Stepper, Peak]]


def loaded(cases: Sequence[Case], failed: dict[Case, str]) -> Iterator[Loaded]:
    """Yields cases, as many as memory takes together (on a GPU one); `failed` gets the reasons of the others."""
    chunk: Loaded = []
    for case in cases:
        on_gpu = case.device.startswith("cuda")
        try:
            chunk.append(peak_here(case) if on_gpu else (Stepper(case), peak_of_child(case)))
        except RuntimeError as error:  # out of memory among them
            failed[case] = str(error).strip()
            continue
        if on_gpu or sum(stepper.bytes for stepper, _ in chunk) >= TOGETHER:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def in_turns(steppers: Sequence[Stepper | ReleasedStepper], rounds: int) -> list[Times]:
    """Returns the median times of each, all measured once per round; a first round does not count."""
    found = [[stepper.step() for stepper in steppers] for _ in range(rounds + 1)]
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
        stepper.step()
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
    with mock.patch.dict(os.environ, MALLOC_MMAP_THRESHOLD_=str(MAPPED)):  # for the children
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", __name__, *MODELLING])
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            return executor.submit(_peak_alone, case).result()


def _peak_alone(case: Case) -> Peak:
    register()
    return peak_here(case)[1]


def _clock(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Returns seconds and processor seconds of work, on a GPU until it has ended there."""
    _wait(device)
    start, busy = time.perf_counter(), time.process_time()
    work()
    _wait(device)
    return time.perf_counter() - start, time.process_time() - busy


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
