"""Baselines without steps: the pretrained model as it is, with demonstrations, or under a linear probe.

Cost: no forward pass beside the evaluation; no state. **Source**: none needed. **Deviations**: none.
"""

from zo.optim.base import Estimate, LossFn, Record, ZOOptimizer


class ZeroShot(ZOOptimizer):
    """Leaves θ alone."""

    def estimate(self, loss_fn: LossFn) -> Estimate:
        """Refuses: a run of this method has no steps."""
        raise RuntimeError(f"{self.config.name} makes no steps")

    def apply(self, record: Record) -> None:
        """Changes nothing."""
