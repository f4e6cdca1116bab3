"""transformers' Trainer, and subclasses of it as TRL's SFTTrainer, with zeroth-order steps.

from zo.integrations.transformers import ZOTrainer
trainer = ZOTrainer(model, args, train_dataset=data, method="bszo", method_args={"k": 2})

class ZOSFTTrainer(ZOTrainerMixin, trl.SFTTrainer): ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from zo.library.methods import method_named
from zo.library.optimizer import ZerothOrder


class _StepsInTraining(ZerothOrder):
    """A method whose steps `training_step` makes; Trainer's own call of `step`, without a closure, does nothing."""

    name = ""

    def step(self, closure: Callable[[], Tensor | float] | None = None) -> float | None:  # type: ignore[override]
        """Makes a step; does nothing without a closure."""
        return None if closure is None else super().step(closure)


SURROGATES = ("GRPOTrainer", "RLOOTrainer")
"""TRL's trainers whose loss has a gradient, but a value that does not depend on the weights."""


class ZOTrainerMixin:
    """Replaces the backward pass and the optimizer of a `transformers.Trainer`; stands before it among the bases.

    Learning rate, weight decay and seed come from the training arguments, all else from `method_args`. Dropout is off.
    With gradient accumulation a step has one loss, that of all accumulated micro-batches. Under torchrun and accelerate
    a step's loss is the mean over the processes, as with gradients, and each process makes the same update itself.

    Args:
        method: `bszo`, `bszo_b`, `mezo`, `mezo_adam`, `hizoo`, `lozo` or another of `dir(zo)` by its registered name.
        method_args: Arguments of `zo.optimizer`: `eps`, `k`, `restore`, `noise`, …

    Raises:
        TypeError: If the trainer's loss is a surrogate, as GRPO's.
        ValueError: If the training arguments ask for what zeroth-order steps cannot do.
    """

    optimizer: Any
    model: Any
    args: Any

    def __init__(
        self,
        *args: Any,
        method: str = "bszo",
        method_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        if name := next((k.__name__ for k in type(self).__mro__ if k.__name__ in SURROGATES), None):
            raise TypeError(
                f"{name}: not with zeroth-order steps: its loss is a surrogate whose gradient trains, while its value"
                " stays the same at other weights; minimise the reward itself, by train.py objective=reward or in a"
                " closure of zo.optimizer that returns the negative reward of what the model writes"
            )
        self._method = type(
            f"Trained_{method}", (_StepsInTraining, method_named(method)), {"name": method}
        )
        self._method_args = dict(method_args or {})
        self._micro_batches: list[dict[str, Any]] = []
        self._model_divides: bool | None = None  # known from the first loss that is not 0
        given = next(
            (a for a in (*args, *kwargs.values()) if isinstance(a, TrainingArguments)), None
        )
        if given is not None:
            _refuse(given)
        super().__init__(*args, **kwargs)
        if self.optimizer is not None:
            raise ValueError("optimizers: the method is the optimizer; pass method and method_args")

    def create_accelerator_and_postprocess(self: Any) -> None:
        """Makes the accelerator. Of several processes it leaves the model as it is: there are no gradients for DDP."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        if self.args.world_size > 1:
            self.accelerator.prepare_model = partial(_unwrapped, self.accelerator.prepare_model)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Returns the method's optimizer of the model's trainable parameters."""
        if self.optimizer is None:
            given = {
                "lr": self.args.learning_rate,
                "weight_decay": self.args.weight_decay,
                "seed": self.args.seed,
                "group": dist.group.WORLD if self.args.world_size > 1 else None,
                **self._method_args,
            }
            self.optimizer = self._method(self.model if model is None else model, **given)
        optimizer: torch.optim.Optimizer = self.optimizer
        return optimizer

    def _inner_training_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Trains; without the micro-batches of a training that was interrupted before their step."""
        self._micro_batches = []
        return super()._inner_training_loop(*args, **kwargs)  # type: ignore[misc]

    def training_step(
        self: Any,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Keeps a micro-batch; makes a step at the last one that is accumulated.

        Returns:
            The loss of all accumulated micro-batches at the last of them, and 0 at the others.
        """
        self._micro_batches.append(self._prepare_inputs(inputs))
        if not self.accelerator.sync_gradients:
            return torch.zeros((), dtype=torch.float32, device=self.args.device)
        model.eval()
        if any(kind.__module__.startswith("trl.") for kind in type(self).__mro__):
            model.training = True  # TRL reads it to tell training from evaluation; the modules inside are in eval mode
        batches, self._micro_batches = self._micro_batches, []
        optimizer = getattr(
            self.optimizer, "optimizer", self.optimizer
        )  # accelerate's wrapper holds it
        if optimizer.step_index == 0 and (made := self.state.global_step):
            _continue(optimizer, made)
        counted = iter([True])

        def loss() -> float:
            with nullcontext() if next(counted, False) else self._uncounted():
                return float(self._accumulated_loss(model, batches, num_items_in_batch))

        return torch.tensor(optimizer.step(loss), dtype=torch.float32, device=self.args.device)

    @contextmanager
    def _uncounted(self: Any) -> Iterator[None]:
        """While the body runs TRL's trainers count no tokens and keep no metrics: a step's first loss has done so."""
        tokens = getattr(self, "_total_train_tokens", None)
        metrics = getattr(self, "_metrics", {}).get("train", {})
        kept = {key: list(values) for key, values in metrics.items()}
        try:
            yield
        finally:
            if tokens is not None:
                self._total_train_tokens = tokens
            metrics.clear()
            metrics.update(kept)

    def _divides(
        self: Any, model: nn.Module, batches: list[dict[str, Any]], count: Tensor | int
    ) -> bool:
        """Returns whether the model divides its loss by the number of items that it is told: a classifier does not.

        The first micro-batch whose loss is not 0 on some process decides it, on all of them (collective).
        """
        for inputs in batches if self._model_divides is None else ():
            with self._uncounted(), self.compute_loss_context_manager():
                one, half = (
                    float(self.compute_loss(model, dict(inputs), num_items_in_batch=n).mean())
                    for n in (count, 2 * count)
                )
            known = math.isfinite(one) and one != 0
            own = [float(known), float(known and abs(one - half) > 1e-3 * abs(one))]
            found = self.accelerator.gather(torch.tensor([own], device=self.args.device))
            decided, divides = (found.sum(0) > 0).tolist()
            if decided:
                self._model_divides = divides
                break
        return self._model_divides is not False

    def log(self: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs a step's signals in place of the norm of a gradient that there is not."""
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        if "loss" in logs and (info := getattr(optimizer, "info", None)) is not None:
            told = {"slope": optimizer.method.slope(info.coefficients), "forwards": info.forwards}
            told |= {name: x for name, x in info.scalars.items() if name == "noise_std"}
            logs = {**{k: v for k, v in logs.items() if k != "grad_norm"}, **told}
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def _accumulated_loss(
        self: Any,
        model: nn.Module,
        batches: list[dict[str, Any]],
        num_items_in_batch: Tensor | int | None,
    ) -> float:
        """Returns the sum of the micro-batches' losses, each scaled as Trainer scales it."""
        told = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        several = len(batches) > 1 or self.args.world_size > 1
        if told and several and self.compute_loss_func is None:
            told = self._divides(model, batches, num_items_in_batch)
            num_items_in_batch = (
                num_items_in_batch if told else None
            )  # else multiplied by processes
        scaled = self.loss_is_scaled_for_ga
        if scaled is None:
            scaled = told or self.compute_loss_func is not None
        share = 1.0 if scaled else 1.0 / len(batches)
        total = 0.0
        for inputs in batches:
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, dict(inputs), num_items_in_batch=num_items_in_batch)
            total += share * float(loss.mean())
        return total


class ZOTrainer(ZOTrainerMixin, Trainer):  # type: ignore[misc]
    """transformers' Trainer with zeroth-order steps; arguments as of Trainer, and `method` and `method_args`.

    Example:
        >>> args = TrainingArguments("out", max_steps=2, report_to=[], disable_tqdm=True)
        >>> trainer = ZOTrainer(model, args, train_dataset=data, method="bszo", method_args={"k": 2})
        >>> trainer.train().global_step
        {'train_runtime': ...}
        2
    """


def _continue(optimizer: ZerothOrder, made: int) -> None:
    """Lets a new optimizer go on after the steps of a checkpoint that has no optimizer state.

    Raises:
        ValueError: If the next step depends on more than the number of steps.
    """
    lost = [key for key in optimizer.method.live_state() if key != "step_index"]
    if lost or getattr(optimizer.method, "start", None) is not None:
        raise ValueError(
            f"resume_from_checkpoint: has no optimizer state, and {optimizer.name} needs its"
            f" {', '.join(lost) or 'start'}; save with save_only_model=False, or train from the checkpoint's weights"
            " as a new model, with another seed"
        )
    optimizer.method.step_index = made


def _unwrapped(
    prepare: Callable[..., nn.Module], model: nn.Module, *_: Any, **__: Any
) -> nn.Module:
    """Returns a model that accelerate neither wraps for its gradients nor moves."""
    return prepare(model, device_placement=False, evaluation_mode=True)


def _refuse(args: TrainingArguments) -> None:
    """Raises ValueError naming the first training argument that zeroth-order steps cannot do."""
    checkpointing = getattr(args, "activation_checkpointing", False) or args.gradient_checkpointing
    refused = [
        (checkpointing, "gradient_checkpointing", "there is no backward pass; set it to False"),
        (args.fp16, "fp16", "its gradient scaler needs gradients; set it to False and load the model in float16"),
        (args.deepspeed, "deepspeed", "ZeRO shards gradients, of which there are none; leave it out"),
        (bool(args.fsdp), "fsdp", "the weights have to be whole on one device; leave it out"),
        (args.n_gpu > 1, "n_gpu", "DataParallel copies weights that probes move; set CUDA_VISIBLE_DEVICES to one GPU"),
        (args.neftune_noise_alpha, "neftune_noise_alpha", "each pass would draw other noise; leave it out"),
        (args.torch_compile, "torch_compile", "compile the model yourself if its weights may change in place"),
    ]  # fmt: skip
    for asked, key, why in refused:
        if asked:
            raise ValueError(f"{key}: not with zeroth-order steps: {why}")
