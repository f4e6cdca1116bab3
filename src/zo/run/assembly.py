"""Model, θ and optimizer of a configuration, put together: what training and replaying both start from."""

import os
import sys
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from zo.config import RunConfig
from zo.distributed.environment import local_rank, started_together
from zo.lm.adapt import adapt
from zo.lm.config import ModelError
from zo.lm.load import Loaded, load
from zo.optim import OPTIMIZERS
from zo.optim.base import ZOOptimizer
from zo.run.provenance import weights_hash
from zo.weights.sharded import whole
from zo.weights.space import ParameterSpace


class DeviceError(ValueError):
    """A device that this machine does not have; one sentence that names the key."""


@dataclass
class Assembly:
    """What a run moves, and what moves it.

    Attributes:
        device: Of the weights.
        loaded: Model and tokenizer.
        params: θ, the model's trainable tensors.
        optimizer: At step 0.
        base: Hash of θ at step 0, and of what is not trained.
    """

    device: torch.device
    loaded: Loaded
    params: ParameterSpace
    optimizer: ZOOptimizer
    base: str

    @classmethod
    def of(cls, cfg: RunConfig) -> "Assembly":
        """Loads the model and makes the optimizer; sets threads and TF32 as configured.

        Raises:
            DeviceError: If this machine does not have the device.
            ModelError: If the weights cannot be had as configured.
        """
        if cfg.threads is not None:
            torch.set_num_threads(_threads(cfg.threads))
        device = find_device(cfg.device)
        how = cfg.precision
        torch.backends.cuda.matmul.allow_tf32 = how.tf32
        torch.backends.cudnn.allow_tf32 = how.tf32
        divided = cfg.distributed.tensor > 1 and started_together()
        loaded = load(cfg.model, getattr(torch, how.dtype), device, tensor_parallel=divided)
        loaded = adapt(loaded, cfg.adapter, cfg.seed)
        try:
            params = ParameterSpace.of(loaded.model, how.restore, how.noise, how.rounding)
        except ValueError as error:
            raise ModelError(f"precision.{error}") from None
        if divided and not params.sharded:
            raise ModelError(
                f"distributed.tensor={cfg.distributed.tensor}: transformers has no plan to divide {cfg.model.path}"
            )
        assert cfg.lr is not None
        optimizer = OPTIMIZERS[cfg.optimizer.name].optimizer(
            params, cfg.optimizer, lr=cfg.lr, seed=cfg.seed
        )
        return cls(device, loaded, params, optimizer, _base_hash(params, loaded.model))

    def weights_hash(self) -> str:
        """Returns the hash of θ as it is now, with what factors hold beside the weights."""
        return weights_hash(*self.params.wholes())


def _base_hash(params: ParameterSpace, model: nn.Module) -> str:
    """Returns the hash of θ and of the model's other parameters, if there are any."""
    names, tensors = params.wholes()
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return weights_hash([*names, *frozen], chain(tensors, map(whole, frozen.values())))


def find_device(name: str) -> torch.device:
    """Returns the device that a name stands for; `auto` is the GPU if there is one, and a GPU for each process.

    Raises:
        DeviceError: If this machine does not have it.
    """
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
