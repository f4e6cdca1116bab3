"""Zero-shot: the pretrained model as it is, the row that every method is compared with.

Cost: no forward pass beside the evaluation; no state. **Source**: none needed. **Deviations**: none.
"""

from dataclasses import dataclass

from zo.optim.base import Estimate, LossFn, Record, ZOOptimizer


@dataclass
class ZeroShotConfig:
    """Nothing to set."""

    name: str = "zero_shot"

    def problems(self) -> list[tuple[str, str]]:
        """Returns no problem."""
        return []


class ZeroShot(ZOOptimizer):
    """Leaves θ alone."""

    trains = False

    @property
    def forwards_per_step(self) -> int:
        """Always 0."""
        return 0

    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Refuses: a run of this method has no steps."""
        raise RuntimeError("zero_shot makes no steps")

    def apply(self, record: Record) -> None:
        """Changes nothing."""
