"""What the first-order references share: a gradient by backpropagation, a step by one of torch's own optimizers."""

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from zo.optim.base import Coefficients, Estimate, LossFn, ZOOptimizer
from zo.weights.space import ParameterSpace


class Backprop(ZOOptimizer):
    """A first-order method: `estimate` leaves the gradient in the parameters' `grad`, `apply` takes the step.

    There are no coefficients, since the gradient is as large as the model: such a step cannot be replayed.
    """

    unsaved = ("torch_optimizer",)

    def __init__(self, params: ParameterSpace, config: Any, *, lr: float, seed: int):
        super().__init__(params, config, lr=lr, seed=seed)
        pairs = list(zip(params.parameters, params.decays, strict=True))
        groups: list[dict[str, Any]] = [
            {"params": [p for p, decays in pairs if decays], "weight_decay": config.weight_decay},
            {"params": [p for p, decays in pairs if not decays], "weight_decay": 0.0},
        ]
        self.torch_optimizer = self.make([g for g in groups if g["params"]], config, lr)

    @abstractmethod
    def make(self, groups: list[dict[str, Any]], config: Any, lr: float) -> torch.optim.Optimizer:
        """Returns torch's optimizer of the parameter groups."""

    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Computes loss and gradient at θ."""
        self.torch_optimizer.zero_grad(set_to_none=True)
        loss = loss_fn.backward()
        norms = [p.grad.float().norm() for p in self.params.parameters if p.grad is not None]
        if not norms:
            raise RuntimeError("the loss reached no parameter: none has a gradient")
        norm = self._finite(
            "gradient norm", float(torch.stack([n.to(norms[0].device) for n in norms]).norm())
        )
        return Estimate(loss, (), {"gradient_norm": norm})

    def apply(self, coefficients: Coefficients) -> None:
        """Takes torch's step along the gradient that `estimate` left."""
        self.torch_optimizer.step()
        self.torch_optimizer.zero_grad(set_to_none=True)

    def live_state(self) -> dict[str, Any]:
        """Returns the step index and the torch optimizer's state; tensors are not copied."""
        return {**super().live_state(), "torch": self.torch_optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`."""
        super().load_state_dict(state)
        self.torch_optimizer.load_state_dict(copy.deepcopy(state["torch"]))

    def state_bytes(self) -> int:
        """Returns the bytes of the torch optimizer's tensors; they are made by the first step."""
        values = [v for of in self.torch_optimizer.state.values() for v in of.values()]
        return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))
