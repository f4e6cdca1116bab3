"""How numbers are held and rounded: the three places where half precision loses something."""

from dataclasses import dataclass
from typing import Any

import torch

from zo.params import RESTORE_POLICIES

MISSING: Any = "???"  # OmegaConf's mark of a value that has to be given

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LOSS_DTYPES = ("model", "float32")


@dataclass
class PrecisionConfig:
    """Precision of weights, loss and restoration.

    Attributes:
        name: The YAML file's name.
        dtype: Of the weights and the forward pass: float32 or bfloat16.
        loss: Where log-softmax and cross entropy are computed: in the `model`'s dtype, as the paper's code does for
            OPT, or in `float32`.
        restore: How θ comes back after a probe: `subtract` or `snapshot`, see `zo.params.ParamSpace`.
    """

    name: str = MISSING
    dtype: str = "float32"
    loss: str = "float32"
    restore: str = "subtract"

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, what would be right) of every value out of range."""
        choices = {"dtype": tuple(DTYPES), "loss": LOSS_DTYPES, "restore": RESTORE_POLICIES}
        return [
            (key, f"must be one of {', '.join(allowed)}")
            for key, allowed in choices.items()
            if getattr(self, key) not in allowed
        ]
