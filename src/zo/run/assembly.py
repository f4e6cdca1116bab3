"""Model, θ and optimizer of a configuration, put together: what training and replaying both start from."""

from dataclasses import dataclass

import torch

from zo.config import RunConfig
from zo.lm.load import Loaded, load
from zo.optim import OPTIMIZERS
from zo.optim.base import ZOOptimizer
from zo.run.provenance import weights_hash
from zo.weights.space import ParameterSpace


@dataclass
class Assembly:
    """What a run moves, and what moves it.

    Attributes:
        device: Of the weights.
        loaded: Model and tokenizer.
        params: θ, the model's trainable tensors.
        optimizer: At step 0.
        base: Hash of θ at step 0.
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
            ModelError: If the weights cannot be had as configured.
        """
        if cfg.threads is not None:
            torch.set_num_threads(cfg.threads)
        device = torch.device(_resolve(cfg.device))
        how = cfg.precision
        torch.backends.cuda.matmul.allow_tf32 = how.tf32
        torch.backends.cudnn.allow_tf32 = how.tf32
        loaded = load(cfg.model, getattr(torch, how.dtype), device)
        params = ParameterSpace.of(loaded.model, how.restore, how.noise, how.rounding)
        assert cfg.lr is not None
        optimizer = OPTIMIZERS[cfg.optimizer.name].optimizer(
            params, cfg.optimizer, lr=cfg.lr, seed=cfg.seed
        )
        return cls(device, loaded, params, optimizer, weights_hash(*params.parts()))

    def weights_hash(self) -> str:
        """Returns the hash of θ as it is now, with what factors hold beside the weights."""
        return weights_hash(*self.params.parts())


def _resolve(name: str) -> str:
    """Resolves `auto`: the GPU if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name
