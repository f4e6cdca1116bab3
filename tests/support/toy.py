"""A method on a problem of 23 numbers: milliseconds per step."""

import torch

from zo.optim import OPTIMIZERS
from zo.weights.space import ParameterSpace


class Toy:
    """A method on a bowl of 23 numbers, and its loss, with a gradient for those that want one."""

    def __init__(
        self,
        name: str = "mezo_adam",
        dtype: torch.dtype = torch.float32,
        rows: int = 4,
        restore: str = "subtract",
        rounding: str = "nearest",
    ):
        generator = torch.Generator().manual_seed(0)
        self.theta = [
            torch.randn(shape, generator=generator).to(dtype).requires_grad_()
            for shape in ((rows, 5), (3,))
        ]
        method = OPTIMIZERS[name]
        named = zip(("w", "b"), self.theta, strict=True)
        self.params = ParameterSpace(named, restore, rounding=rounding)
        config = method.config()
        if hasattr(config, "eps"):
            config.eps = 1e-2  # in half precision a probe of 1e-4 along signs moves no weight
        self.optimizer = method.optimizer(self.params, config, lr=1e-2, seed=3)

    def __call__(self) -> float:
        return float(sum((p.detach().float() ** 2).sum() for p in self.theta))

    def backward(self) -> float:
        loss = sum((p.float() ** 2).sum() for p in self.theta)
        loss.backward()
        return loss.item()

    def steps(self, count: int) -> "Toy":
        for _ in range(count):
            self.optimizer.step(self)
        return self

    def bits(self) -> list[bytes]:
        return [p.view(torch.uint8).numpy().tobytes() for p in self.params.tensors]
