"""Predicts the time of a step on several GPUs from counted floors; nothing here is measured.

    python -m benchmarks.scaling

    forward = max(2 · parameters · tokens / shards / matrix rate, bytes of the weights / bandwidth)
    pass    = 2 · bytes of the weights / bandwidth
    step    = ⌈points · shards / processes⌉ forward + passes of one process

The floors are those of a perfect kernel: the dense matrix rate and the bandwidth of the data sheet. Collectives count
nothing.
"""

import argparse
import math
from typing import NamedTuple


class Device(NamedTuple):
    """A GPU by its data sheet.

    Attributes:
        matrix: Operations per second of dense 16-bit matrix products.
        bandwidth: Bytes per second.
    """

    matrix: float
    bandwidth: float


class Method(NamedTuple):
    """What a step asks for.

    Attributes:
        points: Where losses are measured.
        displaced: Of them, those that are not θ.
    """

    points: int
    displaced: int


H200 = Device(matrix=989e12, bandwidth=4.8e12)
OPT_13B, EXAMPLES, TOKENS = 13e9, 16, 64
METHODS = {
    "MeZO": Method(2, 2),
    "HiZOO": Method(3, 2),
    "BSZO, k = 3": Method(4, 3),
    "n-SPSA, n = 4": Method(8, 8),
}
WORLDS = (1, 8, 64)
SHARDS = (1, 2, 4, 8, 16)


def forward_seconds(shards: int, device: Device = H200) -> float:
    """Returns the time of one forward pass of a shard of the mini-batch, 16-bit weights."""
    operations = 2 * OPT_13B * EXAMPLES * TOKENS / shards
    return max(operations / device.matrix, 2 * OPT_13B / device.bandwidth)


def step_seconds(method: Method, world: int, shards: int, exact: bool) -> float:
    """Returns the time of a step.

    Args:
        method: What it asks for.
        world: Processes.
        shards: Parts of the mini-batch.
        exact: Whether a process displaces θ to its own points alone, as with `streamed`.
    """
    passes = math.ceil(method.points * shards / world)
    own = min(method.displaced, math.ceil(passes / shards))
    noise = (own if exact else method.displaced) + 1  # and the update
    one_pass = 2 * 2 * OPT_13B / H200.bandwidth
    return passes * forward_seconds(shards) + noise * one_pass


def factors_seconds(world: int, shards: int) -> float:
    """Returns the time of a step of LOZO with `factors`: one forward pass of both points, no pass over the weights."""
    operations = 2 * 2 * OPT_13B * EXAMPLES * TOKENS / shards
    one = max(operations / H200.matrix, 2 * OPT_13B / H200.bandwidth)
    return math.ceil(shards / world) * one


def best(seconds: list[float]) -> float:
    """Returns the shortest time, in milliseconds."""
    return 1e3 * min(seconds)


def table() -> list[str]:
    """Returns the rows of a Markdown table: milliseconds with the best number of shards."""
    rows = ["| predicted, ms | restore | " + " | ".join(f"{w} GPUs" for w in WORLDS) + " |"]
    rows.append("|---|---|" + "---:|" * len(WORLDS))
    for name, method in METHODS.items():
        for policy, exact in (("merged", False), ("streamed", True)):
            times = [best([step_seconds(method, w, s, exact) for s in SHARDS]) for w in WORLDS]
            rows.append(f"| {name} | `{policy}` | " + " | ".join(f"{t:.0f}" for t in times) + " |")
    times = [best([factors_seconds(w, s) for s in SHARDS]) for w in WORLDS]
    rows.append("| LOZO | `factors` | " + " | ".join(f"{t:.0f}" for t in times) + " |")
    return rows


def main() -> None:
    """Prints the table."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    print("\n".join(table()))


if __name__ == "__main__":
    main()
