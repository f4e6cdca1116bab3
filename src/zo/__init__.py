"""Zeroth-order fine-tuning: methods that train with forward passes alone, as torch optimizers.

    import zo
    optimizer = zo.BSZO(model, lr=1e-6, k=2)
    loss = optimizer.step(lambda: model(**batch).loss)

Everything that is not listed here is internal. Importing the package imports nothing else; the first use of a name
imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zo.library import BSZO, BSZOB, LOZO, HiZOO, MeZO, MeZOAdam, optimizer
    from zo.optim.base import NonFiniteError
    from zo.record import replay

__all__ = [
    "BSZO",
    "BSZOB",
    "LOZO",
    "HiZOO",
    "MeZO",
    "MeZOAdam",
    "NonFiniteError",
    "optimizer",
    "replay",
]

_HOMES = {"NonFiniteError": "zo.optim.base", "replay": "zo.record"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'zo' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "zo.library")), name)


def __dir__() -> list[str]:
    return __all__
