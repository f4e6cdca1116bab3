"""The methods. To add one: a file here, a line in OPTIMIZERS, a YAML of its name in conf/optimizer."""

from zo.optim.adam import Adam, AdamConfig
from zo.optim.base import (
    BranchedLoss,
    DifferentiableLoss,
    Estimate,
    LossFn,
    Method,
    NonFiniteError,
    Record,
    StepInfo,
    ZOOptimizer,
)
from zo.optim.bszo import BSZO, BSZOBConfig, BSZOConfig
from zo.optim.hizoo import HiZOO, HiZOOConfig
from zo.optim.lozo import LOZO, LOZOConfig
from zo.optim.mezo import MeZO, MeZOConfig
from zo.optim.mezo_adam import MeZOAdam, MeZOAdamConfig
from zo.optim.sgd import SGD, SGDConfig
from zo.optim.zero_shot import ZeroShot, ZeroShotConfig

OPTIMIZERS: dict[str, Method] = {
    "mezo": Method(MeZOConfig, MeZO),
    "mezo_adam": Method(MeZOAdamConfig, MeZOAdam),
    "hizoo": Method(HiZOOConfig, HiZOO),
    "lozo": Method(LOZOConfig, LOZO),
    "bszo": Method(BSZOConfig, BSZO),
    "bszo_b": Method(BSZOBConfig, BSZO),
    "adam": Method(AdamConfig, Adam),
    "sgd": Method(SGDConfig, SGD),
    "zero_shot": Method(ZeroShotConfig, ZeroShot),
}
"""Registry: name -> (configuration, class). It drives dispatch, the schema and the tests."""

__all__ = [
    "OPTIMIZERS",
    "BranchedLoss",
    "DifferentiableLoss",
    "Estimate",
    "LossFn",
    "Method",
    "NonFiniteError",
    "Record",
    "StepInfo",
    "ZOOptimizer",
]
