"""A problem of 32 numbers on which every registered method makes progress."""

import torch
from torch import Tensor

from zo.optim import OPTIMIZERS
from zo.weights.space import ParameterSpace

TRAINING = [n for n, m in OPTIMIZERS.items() if m.config.trains and not m.config.reads_weights]
"""Those that work with every restore policy; tests/optim/test_variants.py has the other."""
ZEROTH_ORDER = [name for name in TRAINING if OPTIMIZERS[name].config.replays]
FIRST_ORDER = [name for name in TRAINING if name not in ZEROTH_ORDER]
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
DTYPES = list(UNIT_ROUNDOFF)
POLICIES = ["subtract", "merged", "snapshot"]

# Settings under which a method makes progress on 32 weights; a method that needs none is not here.
UNIT_SCALE = {"prior_std": 4.0, "noise_std": 1.0, "eps": 1e-3}
SMALL_PROBLEM = {
    "bszo": UNIT_SCALE,
    "bszo_b": UNIT_SCALE,
    "mezo_adam": {"state_dtype": "float32", "eps": 1e-3},  # float16 moments underflow
    "hizoo": {"hessian_smooth": 1e-4, "eps": 1e-3},
    "fzoo": {"eps": 1e-3},
    "zo_muon": {"vector_lr": 0.1},
    "adamezo": {"scale": 1.0},
    "lozo_m": {"momentum": 0.5},
    "sparse_mezo": {"share": 1.0},  # a mask of some would leave the others where they are
    "adam": {"adam_eps": 1e-3},  # 1e-8 is 0 in float16
}
LR = {
    "mezo_adam": 0.05,
    "adam": 0.05,
    "zo_sign": 0.02,
    "fzoo": 0.03,
    "zo_muon": 0.05,
}  # of normalised steps
LR |= {"zo_momentum": 2e-3, "adamezo": 0.02, "tezo": 0.02}  # others take 0.01


class Quadratic:
    """½ Σ (θ − t)² over a 1-D and a 2-D tensor, in float64; counts its calls, fails when told to."""

    device = "cpu"

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        restore: str = "subtract",
        rounding: str = "nearest",
        noise: str = "torch",
    ):
        generator = torch.Generator().manual_seed(9)
        shapes = {"v": (12,), "m": (4, 5)}
        made = [torch.randn(shape, generator=generator) for shape in shapes.values()]
        target = [torch.randn(shape, generator=generator) for shape in shapes.values()]
        tensors = [t.to(self.device, dtype) for t in made]
        self.named = list(zip(shapes, tensors, strict=True))
        self.target = [t.to(self.device, torch.float64) for t in target]
        self.params = ParameterSpace(self.named, restore, noise=noise, rounding=rounding)
        self.calls = 0
        self.answers: dict[int, float | BaseException] = {}

    def __call__(self) -> float:
        self.calls += 1
        answer = self.answers.get(self.calls)
        if isinstance(answer, BaseException):
            raise answer
        return self.value() if answer is None else answer

    def backward(self) -> float:
        """The gradient θ − t, by hand; counts as a call."""
        loss = self()
        for p, t in zip(self.params.parameters, self.target, strict=True):
            p.grad = (p.double() - t).to(p.dtype)
        return loss

    def value(self) -> float:
        pairs = zip(self.params.tensors, self.target, strict=True)
        return sum(float(((p.double() - t) ** 2).sum()) for p, t in pairs) / 2

    def weights(self) -> list[Tensor]:
        return [t.clone() for t in self.params.tensors]


def start(name: str, loss: Quadratic, lr: float | None = None, seed: int = 0, **settings):
    config = OPTIMIZERS[name].config(**{**SMALL_PROBLEM.get(name, {}), **settings})
    lr = LR.get(name, 1e-2) if lr is None else lr
    return OPTIMIZERS[name].optimizer(loss.params, config, lr=lr, seed=seed)


def same(a, b) -> bool:
    """Whether two states are equal, tensors bit for bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


class Interrupted(Exception):
    """Stands for anything that a forward pass may raise."""
