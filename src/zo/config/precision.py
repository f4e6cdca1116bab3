"""Settings of how numbers are held and rounded. Imports no torch.

The names of the noises stand here, too. A test holds them equal to what `zo.noise` implements.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from zo.optim.config import AtLeast0, Positive, Settings, one_of
from zo.weights.constraints import RESTORE_POLICIES, ROUNDINGS

MISSING: Any = "???"  # OmegaConf's mark of a value that has to be given

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}  # dtype -> the YAML file's name
AUTO = "auto"
NOISES = ("torch", "philox")


@dataclass
class PrecisionConfig(Settings):
    """Precision of weights, loss and restoration.

    Attributes:
        name: The YAML file's name.
        dtype: Of the weights and the forward pass: float32, bfloat16 or float16. A checked run has one of them, a file
            may say `auto`, see `zo.config.presets.follow_path`.
        loss: Where log-softmax and cross entropy are computed: in the `model`'s dtype, as the paper's code does for
            OPT, or in `float32`.
        restore: How θ comes back after a probe: `merged`, `subtract`, `snapshot`, `streamed` or `factors`, see
            docs/noise.md. A checked run has one of them; `auto` is streamed or merged, as docs/noise.md says.
        noise: What draws directions: `torch`'s generator, or `philox`, in the pass that adds, see `zo.noise`.
        rounding: How an update is rounded to `dtype`: to `nearest`; `stochastic`, up or down at random such that the
            mean is right (with `philox`); or `compensated`, to nearest, with what that loses kept in float32 for the
            next update. The latter two are for bfloat16 and float16; probes are always rounded to nearest.
        tf32: Whether a GPU may shorten the factors of float32 matrix products to 10 bits of mantissa.
        prefix_cache_gib: Memory for hidden states that enter the first block that trains, GiB, ≥ 0. Those of a split
            are kept over steps and evaluations if they all fit, see `zo.run.reuse`; 0 keeps none.
        branch_gib: GiB that the points of a step may take which `factors` measures in one forward pass, where texts are
            written or each direction has factors of its own: more points are measured in several passes.
        graphs: Whether a GPU repeats recordings of a forward pass, one per shape of batch, see `zo.lm.scoring.graphs`.
    """

    name: str = MISSING
    dtype: Annotated[str, one_of(*NAMES, AUTO)] = "float32"
    loss: Annotated[str, one_of("model", "float32")] = "float32"
    restore: Annotated[str, one_of(*RESTORE_POLICIES, AUTO)] = AUTO
    noise: Annotated[str, one_of(*NOISES)] = "philox"
    rounding: Annotated[str, one_of(*ROUNDINGS)] = "nearest"
    branch_gib: Positive = 4.0
    tf32: bool = False
    graphs: bool = False
    prefix_cache_gib: AtLeast0 = 1.0

    legacy_defaults: ClassVar[Mapping[str, Any]] = {"restore": "merged", "noise": "torch"}
    """What is meant where nothing is written; ids are made against these."""

    def automatic_restore(
        self, reads_weights: bool, offloaded: bool, sharded: bool
    ) -> tuple[str, str]:
        """Returns the restore policy that `auto` stands for, and why it is that one."""
        if sharded or self.graphs:
            reason = "distributed.tensor" if sharded else "precision.graphs"
            return "snapshot" if reads_weights else "merged", f"streamed cannot with {reason}"
        if offloaded or reads_weights:
            return "streamed", "weights are offloaded" if offloaded else "the method reads weights"
        if self.dtype == "float32":
            return "merged", "float32 drifts little"
        return "streamed", f"{self.dtype} drifts otherwise"
