"""Names of the restore policies and roundings, and their conflicts. Imports no torch."""

from collections.abc import Iterator
from typing import NamedTuple


class Constraints(NamedTuple):
    """What a restore policy can do.

    Attributes:
        exact: Whether θ is bit-identical after a probe.
        low_rank: Whether it needs low-rank directions.
        knows_theta: Whether θ can be read during a probe. False where probes overwrite it.
        decay: Whether updates that accumulate in factors can apply weight decay.
        roundings: Roundings of such updates.
        graphs: Whether CUDA graphs can measure its probes. False where Python code displaces weights during the
            forward pass.
        supports_sharding: Whether it supports sharded tensors.
        copies: Whether it keeps a copy of θ during a step.
    """

    exact: bool = False
    low_rank: bool = False
    knows_theta: bool = False
    decay: bool = True
    roundings: tuple[str, ...] = ("nearest", "stochastic", "compensated")
    graphs: bool = True
    supports_sharding: bool = True
    copies: bool = False


RESTORE_POLICIES = {
    "subtract": Constraints(),
    "merged": Constraints(),
    "snapshot": Constraints(exact=True, knows_theta=True, copies=True),
    "streamed": Constraints(exact=True, knows_theta=True, graphs=False, supports_sharding=False),
    "factors": Constraints(
        exact=True,
        low_rank=True,
        decay=False,
        roundings=("nearest",),
        graphs=False,
        supports_sharding=False,
    ),
}
"""Registry: name -> constraints. The classes are in `zo.weights.restore`."""

ROUNDINGS = ("nearest", "stochastic", "compensated")


def conflicts(
    restore: str,
    rounding: str = "nearest",
    *,
    half: bool = True,
    philox: bool = True,
    low_rank: bool = True,
    accumulates_factors: bool = False,
    reads_weights: bool = False,
    decay: float = 0.0,
    anchor: bool = False,
    graphs: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yields the name of each conflicting setting, and how to correct it.

    Args:
        restore: Name of a restore policy.
        rounding: How updates are rounded.
        half: Whether all weights are bfloat16 or float16.
        philox: Whether the noise is `philox`.
        low_rank: Whether the method's directions are of low rank.
        accumulates_factors: Whether it keeps their right factor, so that updates accumulate in the left one.
        reads_weights: Whether the method's directions depend on the weights.
        decay: The method's weight decay.
        anchor: Whether the method is anchored to the start weights and cannot anchor left factors instead.
        graphs: Whether forward passes run as CUDA graphs.
    """
    policy = RESTORE_POLICIES[restore]
    if policy.low_rank and not low_rank:
        shapes = "directions are all of low rank in the tensors' own shapes"
        right = f"{restore} needs a method whose {shapes}, such as lozo"
        yield "restore", right
    if reads_weights and not policy.knows_theta:
        allowed = ", ".join(name for name, of in RESTORE_POLICIES.items() if of.knows_theta)
        right = f"must be one of {allowed}: the method's directions depend on θ, which {restore} probes overwrite"
        yield "restore", right
    if accumulates_factors and rounding not in policy.roundings:
        right = f"must be nearest with restore={restore}, which adds updates up in float32"
        yield "rounding", right
    elif rounding != "nearest" and not half:
        yield "rounding", "must be nearest for float32, in which updates are computed"
    elif rounding == "stochastic" and not philox:
        yield "rounding", "must be nearest, or noise must be philox, which draws the bits"
    if decay and accumulates_factors and not policy.decay:
        yield (
            "weight_decay",
            f"must be 0 with restore={restore}, which writes no weight until its factors are merged",
        )
    if anchor and policy.low_rank:
        kept = "l2 and directions whose right factor stays for good, as tezo's"
        yield "restore", f"must be another with anchor=start: {restore} needs anchor_norm={kept}"
    if graphs and not policy.graphs:
        yield "graphs", f"must be false with restore={restore}, which displaces weights as it goes"
