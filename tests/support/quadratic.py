"""A problem of 32 numbers on which every registered method makes progress."""

import torch
from torch import Tensor

from zo.noise import NOISES
from zo.optim import OPTIMIZERS
from zo.weights.space import ParameterSpace

WORKING = [n for n, m in OPTIMIZERS.items() if not m.config.reads_weights]
"""Methods that work with every restore policy but `factors`."""
FIRST_ORDER = [name for name in WORKING if not OPTIMIZERS[name].config.replays]
ZEROTH_ORDER = [name for name in WORKING if name not in FIRST_ORDER]
ZEROTH_ORDER += ["mezo_adam signs", "bszo_b signs"]  # directions=rademacher
TRAINING = [*ZEROTH_ORDER, *FIRST_ORDER]
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
DTYPES = list(UNIT_ROUNDOFF)
POLICIES = ["subtract", "merged", "snapshot"]
ROUNDED = [
    *[(dtype, "philox", "stochastic") for dtype in DTYPES[1:]],
    *[(dtype, noise, "nearest") for noise in reversed(NOISES) for dtype in DTYPES],
    *[(dtype, noise, "compensated") for dtype, noise in zip(DTYPES[1:], NOISES, strict=True)],
]
"""The first methods, which have passes of their own that undo what `merged` has left, get Philox noise."""

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
    "es": {"n": 6},
    "es_at_scale": {"n": 6},
    "eggroll": {"n": 6},
    "lozo_m": {"momentum": 0.5},
    "sparse_mezo": {"share": 1.0},  # a mask of some would leave the others where they are
    "adam": {"adam_eps": 1e-3},  # 1e-8 is 0 in float16
}
LR = {"mezo_adam": 0.05, "adam": 0.05, "zo_sign": 0.02, "fzoo": 0.03, "zo_muon": 0.05}
LR |= {"zo_momentum": 2e-3, "adamezo": 0.02, "tezo": 0.02}
LR |= dict.fromkeys(("es", "es_at_scale", "eggroll"), 0.03)  # others take 0.01


class Quadratic:
    """½ Σ h (θ − t)² over a 1-D and a 2-D tensor, in float64; counts its calls, fails when told to."""

    device = "cpu"

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        restore: str = "subtract",
        rounding: str = "nearest",
        noise: str = "torch",
    ):
        generator = torch.Generator().manual_seed(9)
        shapes = (12,), (4, 5)
        made, target = (
            [torch.randn(shape, generator=generator) for shape in shapes] for _ in range(2)
        )
        h = [torch.rand(shape, generator=generator) * 1.9 + 0.1 for shape in shapes]
        named = zip("vm", [t.to(self.device, dtype) for t in made], strict=True)
        self.params = ParameterSpace(named, restore, ["v"], noise, rounding)
        self.target, self.h = ([x.to(self.device, torch.float64) for x in of] for of in (target, h))
        self.calls = 0
        self.answers: dict[int, float | BaseException] = {}

    def __call__(self) -> float:
        self.calls += 1
        answer = self.answers.get(self.calls)
        if isinstance(answer, BaseException):
            raise answer
        return self.value() if answer is None else answer

    def backward(self) -> float:
        """The gradient by hand; counts as a call."""
        loss = self()
        gradient = self.gradient(self.params.local)
        for p, g in zip(self.params.parameters, gradient, strict=True):
            p.grad = g
        return loss

    def gradient(self, tensors: list[Tensor]) -> list[Tensor]:
        parts = zip(tensors, self.target, self.h, strict=True)
        return [(h * (p.double() - t)).to(p.dtype) for p, t, h in parts]

    def value(self) -> float:
        return self.at(self.params.local)

    def at(self, tensors: list[Tensor]) -> float:
        parts = zip(tensors, self.target, self.h, strict=True)
        return sum(float((h * (p.double() - t) ** 2).sum()) for p, t, h in parts) / 2

    def weights(self) -> Tensor:
        return torch.cat([t.flatten() for t in self.params.local])


def start(name: str, loss: Quadratic, lr: float | None = None, seed: int = 0, **settings):
    """An optimizer with what SMALL_PROBLEM has for it."""
    method, _, signs = name.partition(" ")
    given = {**SMALL_PROBLEM.get(method, {}), **settings}
    return make(method, loss, lr, seed, **given, **{"directions": "rademacher"} if signs else {})


def make(name: str, loss: Quadratic, lr: float | None = None, seed: int = 0, **settings):
    """An optimizer with these settings alone."""
    config = OPTIMIZERS[name].config(**settings)
    lr = LR.get(name, 1e-2) if lr is None else lr
    return OPTIMIZERS[name].optimizer(loss.params, config, lr=lr, seed=seed)


def steps(opt, loss: Quadratic, count: int) -> Tensor:
    for _ in range(count):
        opt.step(loss)
    return loss.weights()


def same(a, b) -> bool:
    """Whether two states are equal, tensors bit for bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


class Interrupted(Exception):
    """Stands for anything that a forward pass may raise."""


def interrupt(*_) -> None:
    raise Interrupted
