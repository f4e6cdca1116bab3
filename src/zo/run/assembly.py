"""What a run works with, put together from its configuration.

An assembly is model, θ and optimizer, which replaying starts from, too; a session is an assembly with data and scorer.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from zo.config import RunConfig
from zo.distributed.config import local_rank, started_together
from zo.distributed.executor import AgreedLoss
from zo.distributed.processes import Processes, join
from zo.lm.baselines import EVALUATORS, reads_train
from zo.lm.config import ModelError
from zo.lm.load import Loaded, load
from zo.lm.objectives import Scorer, scorers
from zo.lm.scoring.candidates import CandidateScorer
from zo.optim import OPTIMIZERS
from zo.optim.base import ZOOptimizer
from zo.run import memory
from zo.run.command import Shared
from zo.run.losses import BatchLoss, divided
from zo.run.provenance import weights_hash
from zo.run.store.directory import base_of, digest_examples
from zo.tasks import Encoded, Example, TaskConfig, TaskError, load_splits, tokenize
from zo.tasks.checks import check_answers, check_splits, check_tokens, preview
from zo.tasks.data import complete
from zo.weights.anchor import Drift
from zo.weights.executor import Executor
from zo.weights.offloaded import OffloadRefused
from zo.weights.sharded import whole
from zo.weights.space import ParameterSpace

if TYPE_CHECKING:
    from zo.lm.scoring.baselines import InContext, LinearProbe
    from zo.lm.scoring.texts import TextScorer

Evaluator: TypeAlias = "Scorer | InContext | LinearProbe"
EASY = 0.5  # Reward of a constant answer from which a task is said to be a poor one


class DeviceError(ValueError):
    """A device that this machine does not have; one sentence that names the key."""


@dataclass
class Assembly:
    """What a run moves, and what moves it."""

    device: torch.device  # Of the weights
    loaded: Loaded  # Model and tokenizer
    params: ParameterSpace  # θ, the model's trainable tensors
    method: ZOOptimizer | None  # At step 0; None in a run without steps
    base: str  # Hash of θ at step 0, and of what is not trained
    drift: Drift  # Says how far θ is from that at step 0

    @classmethod
    def of(cls, cfg: RunConfig, scratch: Path | None = None) -> Assembly:
        """Loads the model and makes the optimizer; `scratch` is for copies of offloaded weights.

        Raises:
            DeviceError: If this machine does not have the device.
            ModelError: If the weights cannot be had as configured.
        """
        divided = cfg.distributed.tensor > 1 and started_together()
        device, loaded = load_adapted(cfg, divided, scratch)
        how = cfg.precision
        try:
            params = ParameterSpace.of(loaded.model, how.restore, how.noise, how.rounding)
            params.policy.branch_budget = how.branch_gib * memory.GIB
        except ValueError as error:
            raise ModelError(f"precision.{error}") from None
        if divided and not params.shards:
            raise ModelError(
                f"distributed.tensor={cfg.distributed.tensor}: transformers has no plan to divide {cfg.model.path}"
            )
        assert cfg.lr is not None
        if cfg.steps and getattr(cfg.optimizer, "anchored", False) and not divided:
            from zo.lm.initial_weights import rereads

            params.rereads = rereads(cfg.model, params.names, params.settled())
            loaded = replace(loaded, notes=(*loaded.notes, _anchor_note(params)))
        method = None
        if cfg.steps:
            kind = OPTIMIZERS[cfg.optimizer.name].optimizer
            try:
                method = kind(params, cfg.optimizer, lr=cfg.lr, seed=cfg.seed)
            except OffloadRefused as error:
                raise ModelError(f"model.offload={cfg.model.offload}: {error}") from None
            except ValueError as error:
                raise ModelError(f"optimizer.{error}") from None
            advice = (f"optimizer.{sentence}" for sentence in method.advice)
            loaded = replace(loaded, notes=(*loaded.notes, *advice))
        base = _base_hash(params, loaded.model)
        return cls(device, loaded, params, method, base, Drift(params))

    @property
    def optimizer(self) -> ZOOptimizer:
        """The method of a run that makes steps."""
        assert self.method is not None
        return self.method

    @property
    def freezes(self) -> bool:
        """Whether parameters of the model are not trained."""
        return bool(_frozen(self.loaded.model))

    def weights_hash(self) -> str:
        """Returns the hash of θ as it is now, with what factors hold beside the weights."""
        return weights_hash(*self.params.gathered())


@dataclass
class Also:
    """A task that evaluations score beside the run's own: what the model learnt before, and should not lose."""

    name: str  # Of the task
    examples: list[Encoded]  # Its validation split
    evaluator: Scorer  # Scores them with the model that is trained
    digest: str  # Of the examples

    @classmethod
    def open(cls, cfg: RunConfig, loaded: Loaded, processes: Processes) -> Also:
        """Loads its data. Raises TaskError if they cannot be had as configured, or do not fit the model."""
        try:
            task, _ = complete(TaskConfig(**cfg.task.also))
            validation = load_splits(task).validation
            limits = replace(cfg.objective, name="task", function=None, functions={})
            if task.kind == "preference":  # without a reference
                limits = replace(limits, name="simpo")
            _, evaluator = scorers(loaded, task, limits, cfg.precision.loss, False, processes)
            examples = tokenize(task, loaded.tokenizer, validation, cfg.model.kind)
            evaluator.check(examples)
        except TaskError as error:
            raise TaskError(f"task.also: {error}") from error
        return cls(task.name, examples, evaluator, digest_examples(validation))


@dataclass
class Session:
    """What a run works with: data as tokens, scorer, θ and optimizer."""

    train: list[Encoded]  # Examples of the mini-batches
    validation: list[Encoded]  # Examples that choose the best step
    test: list[Encoded]  # Examples that the best step is reported on
    task: TaskConfig  # Complete
    examples: dict[str, list[Example]]  # Validation and test examples before they were tokens
    scorer: Scorer  # Computes losses
    evaluator: Evaluator  # Computes predictions: the scorer, or a baseline
    assembly: Assembly  # Model, θ and optimizer
    read: dict[str, str]  # See `zo.run.store.directory.Inputs`
    # What a person should know of data and model, one sentence each
    notes: list[str] = field(default_factory=list)
    # That divide forward passes and evaluations
    processes: Processes = field(default_factory=Processes)
    shards: int = 1  # Parts of a mini-batch
    also: Also | None = None  # See `Also`; None without another task
    shared: Shared = field(default_factory=Shared)  # What earlier runs left

    @classmethod
    def open(
        cls, cfg: RunConfig, scratch: Path | None = None, shared: Shared | None = None
    ) -> Session:
        """Loads data and model and makes the optimizer; arguments as of `Assembly.of`, and what earlier runs left.

        Raises:
            TaskError, ModelError: If they cannot be had as configured or do not fit each other.
        """
        shared = shared or Shared()
        tensor = cfg.distributed.tensor > 1
        processes = join(cfg.distributed.timeout, tensor)
        dividing = Processes() if tensor else processes
        task, found = complete(cfg.task)
        rewarded = cfg.objective.of(task) == "reward"
        splits = load_splits(task, all_columns=rewarded or bool(task.own_measure))
        if cfg.batch_size > len(splits.train):
            right = f"must be at most the {len(splits.train)} training examples of {task.path}"
            raise TaskError(f"batch_size={cfg.batch_size}: {right}")
        assembly = Assembly.of(cfg, scratch)
        loaded = assembly.loaded
        how = cfg.precision.loss, cfg.precision.graphs
        scorer, evaluates_by = scorers(loaded, task, cfg.objective, *how, dividing, cfg.seed)
        read = {split: digest_examples(of) for split, of in vars(splits).items()}
        by = f"{task} {cfg.model} {loaded.tokenizer} {loaded.tokenizer.chat_template} {rewarded}"
        keys = {split: f"{by} {digest}" for split, digest in read.items()}
        encoded = {
            split: shared.encoded.get(keys[split])
            or tokenize(task, loaded.tokenizer, examples, cfg.model.kind)
            for split, examples in vars(splits).items()
        }
        shared.encoded = {keys[split]: of for split, of in encoded.items()}
        train, validation, test = encoded.values()
        scorer.check([*train, *validation, *test])
        if evaluates_by is not scorer:
            evaluates_by.check([*validation, *test])
        evaluator: Evaluator = evaluates_by
        if reads_train(cfg.optimizer):
            if not isinstance(scorer, CandidateScorer):
                raise TaskError(f"optimizer={cfg.optimizer.name}: needs a task with candidates")
            from zo.lm.scoring.baselines import Given

            given = Given(scorer, train, cfg.seed, loaded.tokenizer, cfg.eval_tokens)
            evaluator = resolve_name(EVALUATORS[cfg.optimizer.name])(cfg.optimizer, given)
        notes = [
            *loaded.notes,
            *check_tokens(task, vars(splits), encoded, loaded.tokenizer.bos_token_id),
        ]
        notes += dict.fromkeys([*scorer.notes, *evaluates_by.notes])
        if not isinstance(evaluates_by, CandidateScorer):
            if rewarded and task.kind == "prompts":
                notes += check_answers([*train, *validation, *test])
            if rewarded and task.generated_by():
                notes.append(_constant(evaluates_by, train, validation))
        if found:
            sizes = ", ".join(f"{len(of)} {name}" for name, of in encoded.items())
            first = preview(task, splits.train, train, loaded.tokenizer)
            notes = [*found, f"{sizes} examples", *first, *check_splits(task, splits), *notes]
        if cfg.objective.of(task) in ("lm", "completion") and task.kind == "classification":
            train = [example.true_candidate_alone() for example in train]
        also = None
        if cfg.task.also:
            also = Also.open(cfg, loaded, dividing)
            read["also"] = also.digest
        read["weights"] = assembly.base
        if cfg.optimizer.name in OPTIMIZERS and cfg.optimizer.replays:
            read["noise"] = assembly.params.engine.backend
            read["parameters"] = str(assembly.params.numel)
        division = processes, cfg.distributed.shards
        examples = {"validation": splits.validation, "test": splits.test}
        data = train, validation, test, task, examples
        return cls(*data, scorer, evaluator, assembly, read, notes, *division, also, shared)

    def executor(self, examples: list[Encoded]) -> Executor:
        """Returns what makes a step's forward passes on a mini-batch, whose batches are built once."""
        params = self.assembly.params
        if not params.shards and not self.shards == self.processes.world == 1:
            return divided(self.scorer, examples, self.shards, params, self.processes)
        loss = BatchLoss(self.scorer, self.scorer.collate(examples), params)
        return Executor(AgreedLoss(loss, self.processes) if params.shards else loss)


def _constant(scorer: TextScorer, train: list[Encoded], validation: list[Encoded]) -> str:
    """Measures what the best constant answer is worth; returns a sentence about it."""
    scorer.measure_constants(train, validation)
    assert scorer.constant is not None
    text, reward = scorer.constant
    said = f"reward of the best constant answer, {text!r}: {reward:.3g} (eval/val_constant)"
    if reward <= EASY:
        return said
    return f"{said}; a model may learn it in place of the task, so take other task.options or another task.name"


def load_adapted(
    cfg: RunConfig, divided: bool = False, scratch: Path | None = None
) -> tuple[torch.device, Loaded]:
    """Returns the device and the model with its adapter; sets threads and TF32 as configured.

    Raises:
        DeviceError: If this machine does not have the device.
        ModelError: If the weights cannot be had as configured.
    """
    if cfg.threads is not None:
        torch.set_num_threads(_threads(cfg.threads))
    device = find_device(cfg.device)
    torch.backends.cuda.matmul.allow_tf32 = cfg.precision.tf32
    torch.backends.cudnn.allow_tf32 = cfg.precision.tf32
    dtype = getattr(torch, cfg.precision.dtype)
    loaded = load(cfg.model, dtype, device, divided, scratch)
    if cfg.adapter.name == "none":
        return device, loaded
    from zo.lm.adapters.adapt import adapt

    found = adapt(loaded, cfg.adapter, cfg.seed)
    base = base_of(getattr(cfg.adapter, "path", None))
    if base is not None and base.quantization != cfg.model.quantization:
        over = "whole" if base.quantization is None else base.quantization
        has = f"model.quantization={base.quantization or 'null'} has them"
        note = f"adapter.path: it was trained over {over} weights; {has}"
        found = replace(found, notes=(*found.notes, note))
    return device, found


def _anchor_note(params: ParameterSpace) -> str:
    """Returns where θ₀ is kept."""
    sizes = [t.numel() * t.element_size() for t in params.like]
    read = sum(sizes[i] for i in params.rereads)
    held = f"{(sum(sizes) - read) / memory.GIB:.2g} GiB of the start's weights are on the host"
    more = f", {read / memory.GIB:.2g} GiB are read from the model's files at each step"
    return f"optimizer.anchor=start: {held}{more if read else ''}"


def _base_hash(params: ParameterSpace, model: nn.Module) -> str:
    """Returns the hash of θ and of the model's other parameters, if there are any."""
    names, tensors = params.gathered()
    frozen = _frozen(model)
    return weights_hash([*names, *frozen], chain(tensors, map(whole, frozen.values())))


def frozen_hash(model: nn.Module) -> str:
    """Returns the hash of the parameters that are not trained."""
    frozen = _frozen(model)
    return weights_hash([*frozen], map(whole, frozen.values()))


def _frozen(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if not p.requires_grad}


def find_device(name: str) -> torch.device:
    """Returns the device of a name; `auto` is a GPU if there is one, one per process. May raise DeviceError."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto" and count > 1 and started_together():
        return torch.device("cuda", local_rank() % count)
    if name == "auto":
        return torch.device("cuda" if count else "cpu")
    if name.startswith("cuda") and not count:
        raise DeviceError(f"device={name}: torch finds no CUDA device here; give cpu or auto")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"device={name}: must be auto, cpu, cuda or cuda:N") from None
    if (device.index or 0) >= max(count, 1):
        raise DeviceError(f"device={name}: torch finds cuda:0 to cuda:{count - 1} here")
    return device


def _threads(wanted: int) -> int:
    """Returns the number of threads to use: at most one per core."""
    cores = os.cpu_count() or 1
    if wanted > cores:
        print(f"threads={wanted}: this machine has {cores} cores; {cores} used", file=sys.stderr)
    return min(wanted, cores)
