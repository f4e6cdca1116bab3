"""Settings of how numbers are held and rounded. Imports no torch.

The names of policies, noises and roundings stand here, too. A test holds them equal to what `zo.weights` and `zo.noise`
implement.
"""

from dataclasses import dataclass
from typing import Any

MISSING: Any = "???"  # OmegaConf's mark of a value that has to be given

DTYPES = ("float32", "bfloat16", "float16")
RESTORE_POLICIES = ("subtract", "merged", "snapshot", "streamed", "factors")
NOISES = ("torch", "philox")
ROUNDINGS = ("nearest", "stochastic", "compensated")
LOSS_DTYPES = ("model", "float32")
RECOMPUTED = ("streamed", "factors")
"""Policies under which Python code displaces weights in every forward pass, which a recording would leave out."""


@dataclass
class PrecisionConfig:
    """Precision of weights, loss and restoration.

    Attributes:
        name: The YAML file's name.
        dtype: Of the weights and the forward pass: float32, bfloat16 or float16.
        loss: Where log-softmax and cross entropy are computed: in the `model`'s dtype, as the paper's code does for
            OPT, or in `float32`.
        restore: How θ comes back after a probe, one of RESTORE_POLICIES, see `zo.weights.space.ParameterSpace`.
        noise: What draws directions: `torch`'s generator, or `philox`, in the pass that adds, see `zo.noise`.
        rounding: How an update is rounded to `dtype`: to `nearest`; `stochastic`, up or down at random such that the
            mean is right (with `philox`); or `compensated`, to nearest, with what that loses kept in float32 for the
            next update. The latter two are for bfloat16 and float16; probes are always rounded to nearest.
        tf32: Whether a GPU may shorten the factors of float32 matrix products to 10 bits of mantissa.
        graphs: Whether a GPU repeats recordings of a forward pass, one per shape of mini-batch, see `zo.lm.graphs`.
    """

    name: str = MISSING
    dtype: str = "float32"
    loss: str = "float32"
    restore: str = "merged"
    noise: str = "torch"
    rounding: str = "nearest"
    tf32: bool = False
    graphs: bool = False

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, what would be right) of every value out of range."""
        choices = {
            "dtype": DTYPES,
            "loss": LOSS_DTYPES,
            "restore": RESTORE_POLICIES,
            "noise": NOISES,
            "rounding": ROUNDINGS,
        }
        found = [
            (key, f"must be one of {', '.join(allowed)}")
            for key, allowed in choices.items()
            if getattr(self, key) not in allowed
        ]
        if self.rounding in ("stochastic", "compensated") and self.dtype == "float32":
            found.append(("rounding", "must be nearest for float32, in which updates are computed"))
        if self.rounding == "stochastic" and self.noise == "torch":
            found.append(
                ("rounding", "must be nearest, or noise must be philox, which draws the bits")
            )
        if self.graphs and self.restore in RECOMPUTED:
            right = f"must be false with restore={self.restore}, which displaces weights as it goes"
            found.append(("graphs", right))
        return found
