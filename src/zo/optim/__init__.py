"""The methods. To add one: a file here, its settings in the `config_` file of its family, a line in OPTIMIZERS.

May import `zo.weights` and `zo.noise`. Importing this package or `zo.optim.config` imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from zo.optim import config_bszo, config_evolution, config_low_rank, config_spsa
from zo.optim.config import AdamConfig, MethodConfig, SGDConfig

if TYPE_CHECKING:
    from zo.optim.base import ZOOptimizer


class Method(NamedTuple):
    """A registered method.

    Attributes:
        config: Dataclass of its settings; field defaults are the method's defaults.
        own: The class that runs it, of a method in a file of one's own.
    """

    config: type[MethodConfig]
    own: type[ZOOptimizer] | None = None

    @property
    def title(self) -> str:
        """The method's name in print and as a class of `zo`: its settings' without the ending."""
        return self.config.__name__.removesuffix("Config")

    @property
    def module(self) -> str:
        """The module with the class that runs the method."""
        return self.own.__module__ if self.own else f"zo.optim.{self._home[0]}"

    @property
    def optimizer(self) -> type[ZOOptimizer]:
        """The class that runs the method; the first use imports torch."""
        if self.own is not None:
            return self.own
        found: type[ZOOptimizer] = getattr(import_module(self.module), self._home[1])
        return found

    @property
    def _home(self) -> tuple[str, str]:
        module, _, name = self.config.run_by.partition(".")
        return (module, name) if module else (self.config.name, self.title)


OPTIMIZERS: dict[str, Method] = {
    config.name: Method(config)
    for config in (
        config_spsa.MeZOConfig,
        config_spsa.MeZOAdamConfig,
        config_spsa.HiZOOConfig,
        config_low_rank.LOZOConfig,
        config_bszo.BSZOConfig,
        config_bszo.BSZOBConfig,
        config_spsa.ZOSignConfig,
        config_spsa.ZOMomentumConfig,
        config_spsa.ZOConservativeConfig,
        config_spsa.SparseMeZOConfig,
        config_spsa.ConMeZOConfig,
        config_spsa.AdaMeZOConfig,
        config_spsa.FZOOConfig,
        config_low_rank.LOZOMConfig,
        config_low_rank.SubZeroConfig,
        config_low_rank.TeZOConfig,
        config_low_rank.ZOMuonConfig,
        config_evolution.ESConfig,
        config_evolution.ESAtScaleConfig,
        config_evolution.EGGROLLConfig,
        AdamConfig,
        SGDConfig,
    )
}
"""Registry: name -> method. It drives dispatch, the schema, the library's classes and the tests."""

SHARDABLE = tuple(name for name, method in OPTIMIZERS.items() if method.config.supports_sharding)
"""Methods that move sharded tensors as whole ones."""

__all__ = ["OPTIMIZERS", "SHARDABLE", "Method", "MethodConfig"]
