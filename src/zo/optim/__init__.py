"""The methods. To add one: a file here, its settings in the `config_` file of its family, a line in OPTIMIZERS.

May import `zo.weights` and `zo.noise`. Importing this package or `zo.optim.config` imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from zo.optim import config_bszo, config_evolution, config_low_rank, config_spsa
from zo.optim.config import AdamConfig, MethodConfig, SGDConfig

if TYPE_CHECKING:
    from zo.optim.base import ZOOptimizer


class Method(NamedTuple):
    """A registered method.

    Attributes:
        config: Dataclass of its settings; field defaults are the method's defaults.
        title: The method's name in print and as a class of `zo`.
        address: Module, in this package if it begins with a dot, and class that run the method.
    """

    config: type[MethodConfig]
    title: str
    address: str

    @property
    def module(self) -> str:
        """The module with the class that runs the method."""
        return resolve_name(self.address.rpartition(":")[0], __name__)

    @property
    def optimizer(self) -> type[ZOOptimizer]:
        """The class that runs the method; the first use imports torch."""
        name = self.address.rpartition(":")[2]
        found: type[ZOOptimizer] = getattr(import_module(self.module), name)
        return found

    @property
    def about(self) -> object:
        """What documents the method: its module, or its settings if the module is another method's."""
        own = self.address.endswith(f":{self.title}")
        return import_module(self.module) if own else self.config


OPTIMIZERS: dict[str, Method] = {
    "mezo": Method(config_spsa.MeZOConfig, "MeZO", ".mezo:MeZO"),
    "mezo_adam": Method(config_spsa.MeZOAdamConfig, "MeZOAdam", ".mezo_adam:MeZOAdam"),
    "hizoo": Method(config_spsa.HiZOOConfig, "HiZOO", ".hizoo:HiZOO"),
    "lozo": Method(config_low_rank.LOZOConfig, "LOZO", ".lozo:LOZO"),
    "bszo": Method(config_bszo.BSZOConfig, "BSZO", ".bszo:BSZO"),
    "bszo_b": Method(config_bszo.BSZOBConfig, "BSZOB", ".bszo:BSZO"),
    "zo_sign": Method(config_spsa.ZOSignConfig, "ZOSign", ".zo_sign:ZOSign"),
    "zo_momentum": Method(config_spsa.ZOMomentumConfig, "ZOMomentum", ".zo_momentum:ZOMomentum"),
    "zo_conservative": Method(
        config_spsa.ZOConservativeConfig, "ZOConservative", ".zo_conservative:ZOConservative"
    ),
    "sparse_mezo": Method(config_spsa.SparseMeZOConfig, "SparseMeZO", ".sparse_mezo:SparseMeZO"),
    "conmezo": Method(config_spsa.ConMeZOConfig, "ConMeZO", ".conmezo:ConMeZO"),
    "adamezo": Method(config_spsa.AdaMeZOConfig, "AdaMeZO", ".adamezo:AdaMeZO"),
    "fzoo": Method(config_spsa.FZOOConfig, "FZOO", ".fzoo:FZOO"),
    "lozo_m": Method(config_low_rank.LOZOMConfig, "LOZOM", ".lozo_m:LOZOM"),
    "subzero": Method(config_low_rank.SubZeroConfig, "SubZero", ".subzero:SubZero"),
    "tezo": Method(config_low_rank.TeZOConfig, "TeZO", ".tezo:TeZO"),
    "zo_muon": Method(config_low_rank.ZOMuonConfig, "ZOMuon", ".zo_muon:ZOMuon"),
    "es": Method(config_evolution.ESConfig, "ES", ".es:ES"),
    "es_at_scale": Method(config_evolution.ESAtScaleConfig, "ESAtScale", ".es:ES"),
    "eggroll": Method(config_evolution.EGGROLLConfig, "EGGROLL", ".es:ES"),
    "adam": Method(AdamConfig, "Adam", ".adam:Adam"),
    "sgd": Method(SGDConfig, "SGD", ".sgd:SGD"),
}
"""Registry: name -> method. It drives dispatch, the schema, the library's classes and the tests."""

SHARDABLE = tuple(name for name, method in OPTIMIZERS.items() if method.config.supports_sharding)
"""Methods that move sharded tensors as whole ones."""

__all__ = ["OPTIMIZERS", "SHARDABLE", "Method", "MethodConfig"]
