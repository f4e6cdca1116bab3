"""The parameter space of a method: measures the loss at points around θ, and updates θ."""

import math
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from zo.noise import NoiseKey, PhiloxEngine
from zo.weights.constraints import RESTORE_POLICIES, ROUNDINGS, conflicts
from zo.weights.executor import Executor
from zo.weights.restore import Excursion, policy
from zo.weights.sharded import whole
from zo.weights.tensors import TrainableTensors
from zo.weights.updates import LinearUpdate, ParameterUpdate


class ParameterSpace(TrainableTensors):
    """θ with its restore policy.

    Args:
        named: As of `TrainableTensors`.
        restore: Name of the restore policy, see `zo.weights.restore`: `subtract`, `merged`, `snapshot`, `streamed` or
            `factors`.
        exempt: Names of the tensors without weight decay.
        noise: `torch` or `philox`, see `zo.noise`.
        rounding: How an update is rounded to the tensors' dtype: to `nearest`; `stochastic`, unbiased; or
            `compensated`, to nearest with a float32 compensation term (Kahan). Probes are always rounded to nearest.
        model: Holds the tensors and computes the loss; `streamed` and `factors` need it, and `factors` changes it.

    Attributes:
        policy: The restore policy.

    Raises:
        ValueError: If a name is unknown, there is no tensor, one cannot be moved in place, or the policy or the
            rounding does not go with the tensors, the noise or the model.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        restore: str = "subtract",
        exempt: Collection[str] = (),
        noise: str = "torch",
        rounding: str = "nearest",
        model: nn.Module | None = None,
    ):
        for setting, value, allowed in (
            ("restore", restore, RESTORE_POLICIES),
            ("rounding", rounding, ROUNDINGS),
        ):
            if value not in allowed:
                raise ValueError(f"{setting}={value!r}: must be one of {', '.join(allowed)}")
        super().__init__(named, exempt, noise, rounding, model)
        self._check(restore)
        self.policy = policy(restore)(self, model)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        restore: str = "subtract",
        noise: str = "torch",
        rounding: str = "nearest",
    ) -> "ParameterSpace":
        """Returns the space of all parameters of `model` that require gradients, in `named_parameters` order.

        Weight decay does not apply to biases and to normalisation layers.
        """
        trainable = ((n, p) for n, p in model.named_parameters() if p.requires_grad)
        return cls(trainable, restore, _not_decayed(model), noise, rounding, model)

    def _check(self, restore: str) -> None:
        """Raises ValueError if a policy or the rounding does not go with the tensors."""
        if self.shards and not RESTORE_POLICIES[restore].supports_sharding:
            name = self.names[min(self.shards)]
            raise ValueError(f"restore={restore!r}: {name} is sharded; snapshot or merged move it")
        half = all(t.dtype in (torch.bfloat16, torch.float16) for t in self.like)
        philox = isinstance(self.engine, PhiloxEngine)
        given = {"restore": restore, "rounding": self.rounding}
        for setting, right in conflicts(restore, self.rounding, half=half, philox=philox):
            raise ValueError(f"{setting}={given[setting]!r}: {right}")
        if self.offloaded and self.residuals is not None:
            raise ValueError(
                f"rounding={self.rounding!r}: keeps 4 bytes per weight on the device, and the weights are offloaded;"
                " use nearest or stochastic"
            )

    def apply_update(
        self, update: ParameterUpdate, decay: float = 0.0, key: NoiseKey | None = None
    ) -> None:
        """Updates θ and a method's own state in one pass: float32 arithmetic, rounded to the tensors' dtype once.

        A displacement that `restore=merged` has not yet undone is subtracted first, rounded to nearest.

        Args:
            update: See `ParameterUpdate`.
            decay: Share of θ, ≥ 0, that is taken away in the same pass where weight decay applies.
            key: Key of the bits that round an update under `rounding=stochastic`. None for probes, which are rounded to
                nearest without compensation.

        Raises:
            ValueError: If θ is to decay under `restore=factors`.
        """
        if decay or not isinstance(update, LinearUpdate) or update.of:
            self.policy.apply_update(update, decay, key)

    def measure(self, loss_fn: Executor, excursions: Sequence[Excursion]) -> list[float]:
        """Returns the losses at the points of independent excursions, in their order.

        Under `subtract` and `merged` the rounding of θ depends on which points share an excursion.

        Args:
            loss_fn: Makes the forward passes.
            excursions: Points of each. θ alone, `[[]]`, is measured without a probe.
        """
        return loss_fn.measure(self.policy, excursions)

    def gathered(self, collect: bool = True) -> tuple[list[str], Iterable[Tensor]]:
        """Returns names and tensors of θ, with the factors that `restore=factors` keeps beside the weights.

        Offloaded and gathered tensors are in memory one at a time.

        Args:
            collect: Whether to all-gather sharded tensors (collective); else they are this process's parts.
        """
        names, tensors = self.policy.factor_tensors()
        if self.offloaded or (collect and self.shards):
            return self.names + names, chain(map(whole, self.parameters), tensors)
        return self.names + names, self.settled() + tensors


def non_finite(space: ParameterSpace) -> tuple[str, float] | None:
    """Returns name and largest magnitude (nan or inf) of the first tensor with a non-finite entry, or None."""
    names, tensors = space.gathered(collect=False)
    if space.offloaded:  # one is in memory at a time
        norms = [torch.linalg.vector_norm(t, math.inf) for t in tensors]
    else:
        norms = list(torch._foreach_norm([*tensors], math.inf))
    largest = torch.stack([m.to(norms[0].device, torch.float32) for m in norms])
    if bool(largest.isfinite().all()):  # the only wait for the device where all is well
        return None
    values = zip(names, largest.tolist(), strict=True)
    return next((name, value) for name, value in values if not math.isfinite(value))


def _not_decayed(model: nn.Module) -> set[str]:
    """Returns the full names of biases and of all tensors of normalisation layers."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name, p in module.named_parameters(recurse=False)
        if _is_bias_or_norm(prefix, module, name, p)
    }


def _is_bias_or_norm(path: str, module: nn.Module, name: str, p: Tensor) -> bool:
    """Returns whether a parameter is a bias or of a normalisation layer.

    A bias is named `bias`, `bias_...` or `..._bias`. A layer is known by its class (`LlamaRMSNorm`, `BatchNorm2d`).
    A tensor of one dimension is also known by its own name (`ln_weight`) or its layer's (`q_norm`).
    """
    if re.search(r"(^|_)bias(_|$)", name):
        return True
    if any(
        re.search(r"Norm(alization)?(Gated|[0-9_]|$)", kind.__name__)
        for kind in type(module).__mro__
    ):
        return True
    called = (name, path.rpartition(".")[2])
    return p.dim() < 2 and any(
        re.search(r"(^|_)(ln|\w*norm)([0-9_]|$)", of.lower()) for of in called
    )
