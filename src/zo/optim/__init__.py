"""The methods. To add one: its settings in `config.py`, a file here, a line in OPTIMIZERS, a YAML in conf/optimizer.

May import `zo.weights` and `zo.noise`. Importing this package or `zo.optim.config` imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from zo.optim.config import (
    BSZOBConfig,
    BSZOConfig,
    HiZOOConfig,
    LOZOConfig,
    MethodConfig,
    MeZOAdamConfig,
    MeZOConfig,
)
from zo.optim.config_baselines import AdamConfig, SGDConfig
from zo.optim.config_evolution import EGGROLLConfig, ESAtScaleConfig, ESConfig
from zo.optim.config_low_rank import LOZOMConfig, SubZeroConfig, TeZOConfig, ZOMuonConfig
from zo.optim.config_variants import (
    AdaMeZOConfig,
    ConMeZOConfig,
    FZOOConfig,
    SparseMeZOConfig,
    ZOConservativeConfig,
    ZOMomentumConfig,
    ZOSignConfig,
)

if TYPE_CHECKING:
    from zo.optim.base import ZOOptimizer


class Method(NamedTuple):
    """A registered method.

    Attributes:
        config: Dataclass of its settings; field defaults are the method's defaults.
        module: Module of this package that holds its class.
        name: Name of that class.
    """

    config: type[MethodConfig]
    module: str
    name: str

    @property
    def title(self) -> str:
        """The method's name in print and as a class of `zo`: its settings' without the ending."""
        return self.config.__name__.removesuffix("Config")

    @property
    def optimizer(self) -> type[ZOOptimizer]:
        """The class that runs the method; the first use imports torch."""
        found: type[ZOOptimizer] = getattr(import_module(f"zo.optim.{self.module}"), self.name)
        return found


OPTIMIZERS: dict[str, Method] = {
    "mezo": Method(MeZOConfig, "mezo", "MeZO"),
    "mezo_adam": Method(MeZOAdamConfig, "mezo_adam", "MeZOAdam"),
    "hizoo": Method(HiZOOConfig, "hizoo", "HiZOO"),
    "lozo": Method(LOZOConfig, "lozo", "LOZO"),
    "bszo": Method(BSZOConfig, "bszo", "BSZO"),
    "bszo_b": Method(BSZOBConfig, "bszo", "BSZO"),
    "zo_sign": Method(ZOSignConfig, "zo_sign", "ZOSign"),
    "zo_momentum": Method(ZOMomentumConfig, "zo_momentum", "ZOMomentum"),
    "zo_conservative": Method(ZOConservativeConfig, "zo_conservative", "ZOConservative"),
    "sparse_mezo": Method(SparseMeZOConfig, "sparse_mezo", "SparseMeZO"),
    "conmezo": Method(ConMeZOConfig, "conmezo", "ConMeZO"),
    "adamezo": Method(AdaMeZOConfig, "adamezo", "AdaMeZO"),
    "fzoo": Method(FZOOConfig, "fzoo", "FZOO"),
    "lozo_m": Method(LOZOMConfig, "lozo_m", "LOZOM"),
    "subzero": Method(SubZeroConfig, "subzero", "SubZero"),
    "tezo": Method(TeZOConfig, "tezo", "TeZO"),
    "zo_muon": Method(ZOMuonConfig, "zo_muon", "ZOMuon"),
    "es": Method(ESConfig, "es", "ES"),
    "es_at_scale": Method(ESAtScaleConfig, "es", "ES"),
    "eggroll": Method(EGGROLLConfig, "es", "ES"),
    "adam": Method(AdamConfig, "adam", "Adam"),
    "sgd": Method(SGDConfig, "sgd", "SGD"),
}
"""Registry: name -> (settings, class). It drives dispatch, the schema and the tests."""

SHARDABLE = tuple(name for name, method in OPTIMIZERS.items() if method.config.shards)
"""Methods that move sharded tensors as whole ones."""

__all__ = ["OPTIMIZERS", "SHARDABLE", "Method", "MethodConfig"]
