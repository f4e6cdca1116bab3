"""Zeroth-order fine-tuning: methods that train with forward passes alone, as torch optimizers.

    import zo
    optimizer = zo.BSZO(model, lr=1e-6, k=2)
    loss = optimizer.step(lambda: model(**batch).loss)

What is not in `__all__` is internal. Importing the package imports nothing else; the first use of a name imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zo.distributed.processes import ProcessesError, ProcessLostError
    from zo.library import ZerothOrder, optimizer, replay
    from zo.methods import (
        BSZO,
        BSZOB,
        EGGROLL,
        ES,
        FZOO,
        LOZO,
        LOZOM,
        AdaMeZO,
        ConMeZO,
        ESAtScale,
        HiZOO,
        MeZO,
        MeZOAdam,
        SparseMeZO,
        SubZero,
        TeZO,
        ZOConservative,
        ZOMomentum,
        ZOMuon,
        ZOSign,
    )
    from zo.optim.base import NonFiniteError, StepInfo
    from zo.run.store.trajectory import TrajectoryError
    from zo.weights.offload.begin import offload
    from zo.weights.offload.stored import OffloadError

    __version__: str

__all__ = [
    "BSZO",
    "BSZOB",
    "EGGROLL",
    "ES",
    "FZOO",
    "LOZO",
    "LOZOM",
    "AdaMeZO",
    "ConMeZO",
    "ESAtScale",
    "HiZOO",
    "MeZO",
    "MeZOAdam",
    "NonFiniteError",
    "OffloadError",
    "ProcessLostError",
    "ProcessesError",
    "SparseMeZO",
    "StepInfo",
    "SubZero",
    "TeZO",
    "TrajectoryError",
    "ZOConservative",
    "ZOMomentum",
    "ZOMuon",
    "ZOSign",
    "ZerothOrder",
    "__version__",
    "offload",
    "optimizer",
    "replay",
]

_HOMES = {
    "NonFiniteError": "zo.optim.base",
    "OffloadError": "zo.weights.offload.stored",
    "ProcessLostError": "zo.distributed.processes",
    "ProcessesError": "zo.distributed.processes",
    "StepInfo": "zo.optim.base",
    "TrajectoryError": "zo.run.store.trajectory",
    "ZerothOrder": "zo.library",
    "offload": "zo.weights.offload.begin",
    "optimizer": "zo.library",
    "replay": "zo.library",
}
"""Where a name is defined; the others are methods."""


if not TYPE_CHECKING:  # a checker would take every name for one of the package's

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("zo-suite")
        if name not in __all__:
            raise AttributeError(f"module 'zo' has no attribute {name!r}")
        return getattr(import_module(_HOMES.get(name, "zo.methods")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
