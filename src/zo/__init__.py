"""Zeroth-order fine-tuning: methods that train with forward passes alone, as torch optimizers.

    import zo
    optimizer = zo.BSZO(model, lr=1e-6, k=2)
    loss = optimizer.step(lambda: model(**batch).loss)

What is not in `dir(zo)` is internal. Importing the package imports nothing else; the first use of a name imports torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zo.distributed.processes import ProcessesError as ProcessesError
    from zo.distributed.processes import ProcessLostError as ProcessLostError
    from zo.library.methods import *  # noqa: F403
    from zo.library.optimizer import ZerothOrder as ZerothOrder
    from zo.optim.base import NonFiniteError as NonFiniteError
    from zo.optim.base import StepInfo as StepInfo
    from zo.record.trajectory import TrajectoryError as TrajectoryError
    from zo.weights.offload.setup import offload as offload
    from zo.weights.offloaded import OffloadError as OffloadError

    __version__: str

_HOMES = {
    "NonFiniteError": "zo.optim.base",
    "OffloadError": "zo.weights.offloaded",
    "ProcessLostError": "zo.distributed.processes",
    "ProcessesError": "zo.distributed.processes",
    "StepInfo": "zo.optim.base",
    "TrajectoryError": "zo.record.trajectory",
    "ZerothOrder": "zo.library.optimizer",
    "offload": "zo.weights.offload.setup",
    "optimizer": "zo.library.methods",
    "replay": "zo.library.methods",
}
"""Where a name is defined; the others are methods."""


def __dir__() -> list[str]:
    from zo.optim import OPTIMIZERS

    methods = (method.title for method in OPTIMIZERS.values() if method.config.replays)
    return sorted([*_HOMES, *methods, "__version__"])


if not TYPE_CHECKING:  # a checker would take every name for one of the package's

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("zo-suite")
        if name == "__all__":
            return __dir__()
        if name not in _HOMES and (name.startswith("_") or name not in __dir__()):
            said = f"module 'zo' has no attribute {name!r}"
            raise AttributeError(said, name=name, obj=sys.modules[__name__])
        return getattr(import_module(_HOMES.get(name, "zo.library.methods")), name)
