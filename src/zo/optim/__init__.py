"""The methods. To add one: a file here, a line in OPTIMIZERS, a YAML of its name in conf/optimizer."""

from zo.optim.base import (
    Estimate,
    LossFn,
    Method,
    NonFiniteError,
    Record,
    StepInfo,
    ZOOptimizer,
)
from zo.optim.bszo import BSZO, BSZOBConfig, BSZOConfig
from zo.optim.mezo import MeZO, MeZOConfig
from zo.optim.zero_shot import ZeroShot, ZeroShotConfig

OPTIMIZERS: dict[str, Method] = {
    "mezo": Method(MeZOConfig, MeZO),
    "bszo": Method(BSZOConfig, BSZO),
    "bszo_b": Method(BSZOBConfig, BSZO),
    "zero_shot": Method(ZeroShotConfig, ZeroShot),
}
"""Registry: name -> (configuration, class). It drives dispatch, the schema and the tests."""

__all__ = [
    "OPTIMIZERS",
    "Estimate",
    "LossFn",
    "Method",
    "NonFiniteError",
    "Record",
    "StepInfo",
    "ZOOptimizer",
]
