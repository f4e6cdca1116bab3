"""Settings of the methods whose directions are of low rank. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zo.optim.config import FOREVER, AtLeast0, Count, Decay, OneOf, Positive, Rule, gaussian_alone
from zo.optim.config_spsa import MeZOConfig

Variant = OneOf["sgd", "momentum", "adam"]
MatrixSign = OneOf["newton_schulz", "svd"]

ONE = Rule("n", lambda of: of.n == 1, "must be 1: the momentum is along one direction")


@dataclass(kw_only=True)
class LOZOConfig(MeZOConfig):
    """Settings of LOZO: those of MeZO, and of its directions.

    Attributes:
        rank: r ≥ 1.
        interval: Steps, ≥ 1, for which V is kept.
        divide_by_rank: The paper's factor 1/r of the update of matrices, which the released code leaves out.
        directions: `gaussian` alone.
    """

    name: str = "lozo"
    rank: Count = 2
    interval: Count = 50
    divide_by_rank: bool = False

    supports_sharding: ClassVar[bool] = False

    @property
    def low_rank(self) -> bool:
        """True."""
        return True

    @property
    def anchors_factors(self) -> bool:
        """Whether θ − θ₀ is A Vᵀ with one V, and the pull scales it."""
        return self.interval == FOREVER and self.anchor_norm == "l2"

    rules: ClassVar[tuple[Rule, ...]] = (
        gaussian_alone("U and V are; they are small, and signs would save no time"),
    )


@dataclass(kw_only=True)
class LOZOMConfig(LOZOConfig):
    """Settings of LOZO-M: those of LOZO, and of the momentum.

    Attributes:
        momentum: β in [0, 1); 0 is LOZO.
    """

    name: str = "lozo_m"
    eps: Positive = 1e-3
    momentum: Decay = 0.9

    @property
    def revision(self) -> int:
        """1 since biases and norms, which have no rank, are not divided by it."""
        return int(self.divide_by_rank)

    rules: ClassVar[tuple[Rule, ...]] = (ONE,)


@dataclass(kw_only=True)
class ScaledConfig(LOZOConfig):
    """Settings of methods of low rank whose directions are scaled to entries of variance 1.

    Attributes:
        divide_by_rank: False alone.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "divide_by_rank",
            lambda of: not of.divide_by_rank,
            "must be false: the directions are scaled to entries of variance 1",
        ),
    )


@dataclass(kw_only=True)
class SubZeroConfig(ScaledConfig):
    """Settings of SubZero: those of MeZO, and of its subspaces.

    Attributes:
        rank: r ≥ 1, of both bases.
        interval: Steps, ≥ 1, for which both bases are kept.
        square: Whether a tensor's values count as a matrix that is as nearly square as its number allows; None is True
            in a run whose adapter is LoRA, prefix or prompt, and False elsewhere.
    """

    name: str = "subzero"
    eps: Positive = 1e-3
    rank: Count = 48
    interval: Count = 1000
    square: bool | None = None

    legacy_defaults: ClassVar[Mapping[str, Any]] = {"square": False}

    @property
    def low_rank(self) -> bool:
        """False in another shape than the tensor's."""
        return not self.square


@dataclass(kw_only=True)
class TeZOConfig(ScaledConfig):
    """Settings of TeZO: those of MeZO, of its factors, and of its moments.

    Attributes:
        rank: r ≥ 1.
        interval: Steps, ≥ 1, for which both factors are kept; the paper keeps them for good.
        variant: What moves along the factors: τ itself (`sgd`), its momentum, or Adam's step.
        beta1: β₁ in [0, 1), of `momentum` and `adam`.
        beta2: β₂ in [0, 1), of `adam`.
        adam_eps: δ > 0, of `adam`.
    """

    name: str = "tezo"
    eps: Positive = 1e-3
    rank: Count = 24
    interval: Count = FOREVER
    variant: Variant = "sgd"
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    adam_eps: Positive = 1e-8

    @property
    def low_rank(self) -> bool:
        """False with Adam, whose step is a quotient of products of low rank."""
        return self.variant != "adam"

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("n", lambda of: of.n == 1 or of.variant == "sgd", ONE.right),
    )


@dataclass(kw_only=True)
class ZOMuonConfig(MeZOConfig):
    """Settings of ZO-Muon: those of MeZO, and of its subspaces.

    Attributes:
        rank: r ≥ 1.
        interval: Steps, ≥ 1, for which P is kept.
        vector_lr: Learning rate of biases and norms over that of matrices, ≥ 0.
        msign: How the estimate is orthogonalised: by `newton_schulz` in five steps, or by `svd`.
    """

    name: str = "zo_muon"
    eps: Positive = 1e-3
    two_sided: bool = False
    n: Count = 4
    rank: Count = 64
    interval: Count = 100
    vector_lr: AtLeast0 = 1e-5
    msign: MatrixSign = "newton_schulz"

    supports_sharding: ClassVar[bool] = False
    scale_invariant: ClassVar[bool] = True

    rules: ClassVar[tuple[Rule, ...]] = (gaussian_alone("Ψ is"),)
