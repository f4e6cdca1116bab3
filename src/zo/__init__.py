"""Zeroth-order fine-tuning: methods that train with forward passes alone, as torch optimizers.

    import zo
    optimizer = zo.BSZO(model, lr=1e-6, k=2)
    loss = optimizer.step(lambda: model(**batch).loss)

The names are those of `dir(zo)`: a class for each registered zeroth-order method, `optimizer`, `replay`, `Elastic` and
`NonFiniteError`. Everything else is internal. Importing the package imports nothing else; the first use of a name
imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zo.library import optimizer as optimizer
    from zo.library import replay as replay
    from zo.optim.base import NonFiniteError as NonFiniteError

_HOMES = {
    "NonFiniteError": "zo.optim.base",
    "optimizer": "zo.library",
    "replay": "zo.library",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name not in __dir__():
        raise AttributeError(f"module 'zo' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "zo.library")), name)


def __dir__() -> list[str]:
    from zo.optim import OPTIMIZERS  # imports no torch

    methods = [m.title for m in OPTIMIZERS.values() if m.config.trains and m.config.replays]
    return sorted([*methods, *_HOMES])
