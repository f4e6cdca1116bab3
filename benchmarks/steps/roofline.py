"""Estimates a step's time from its bytes, operations and normals, and from the rates that a device was measured at.

    forward = max(bytes of the weights it reads / bandwidth, operations / matrix rate)
    pass    = max(bytes read and written / bandwidth, normals / rate of normals)
    step    = Σ forwards + Σ passes

Bytes of activations, launches, the loss, Python and padding count nothing. The estimate is no bound: kernels that draw
normals in registers, or that keep data in caches, are faster than the separate measurements of the rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import nn

from zo.lm.heads import head_of
from zo.optim.config import MeZOConfig
from zo.tasks import Encoded

Probe = frozenset[int]
"""The directions that a displacement is along."""


@dataclass(frozen=True)
class Ceilings:
    """What a device does at best, per second."""

    bandwidth: float  # bytes, read or written, in a copy of large tensors
    matrix: float  # operations in a product of large matrices; one multiply-add is two
    normals: float  # standard normals


@dataclass(frozen=True)
class Workload:
    """What one forward pass of a mini-batch, and one pass over the weights, have to do."""

    values: int  # trainable, n
    read: int  # of them, whole by a forward pass: all but tables of which it looks up a few rows
    operations: int  # of one forward pass
    low_rank: int  # normals of a direction of rank 1: a matrix's row and column, all of the others

    @classmethod
    def of(cls, model: Any, kind: str, examples: Sequence[Encoded]) -> Workload:
        """Counts a model's values and the operations that these examples need, padding left out.

        2 operations per matrix value and token, attention's two products, and the head where a token is predicted: of
        the output embedding all rows where an answer has several tokens, and else, since the normaliser over the
        vocabulary is then common to an example's answers, the answers' rows.
        """
        parameters = list(model.parameters())
        outputs = model.get_output_embeddings().weight  # (V, D)
        in_head = {id(p) for p in head_of(model, kind).parameters()}  # type: ignore[attr-defined]
        whole = any(len(ids) > 1 for e in examples for ids in e.candidate_ids)
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        tables = tables - {id(outputs)} if whole else tables | {id(outputs)}
        reads = sum(_reads(e) for e in examples)
        rows = reads * len(outputs) if whole else sum(len(e.candidate_ids) for e in examples)
        matrices = [
            p for p in parameters if p.dim() > 1 and id(p) not in tables and p is not outputs
        ]
        dense = sum(p.numel() for p in matrices if id(p) in in_head)  # what every read goes through
        body = sum(p.numel() for p in matrices) - dense  # what every token goes through
        return cls(
            values=sum(p.numel() for p in parameters),
            read=sum(p.numel() for p in parameters if id(p) not in tables),
            operations=2 * body * sum(e.length for e in examples)
            + _attention(model.config, kind, examples)
            + 2 * (dense * reads + outputs.shape[1] * rows),
            low_rank=sum(
                p.shape[0] + p.numel() // p.shape[0] if p.dim() > 1 else p.numel()
                for p in parameters
            ),
        )


@dataclass(frozen=True, order=True)
class Pass:
    """One pass over the weights, per trainable value."""

    weights: float  # values of θ's dtype read and written
    state: float = 0.0  # values of the method's state read and written
    directions: float = 0.0  # normals drawn
    of_read: bool = False  # only of the values that a forward pass reads whole


def excursions(optimizer: Any) -> list[list[Probe]]:
    """Returns a step's probes, by excursion, of a method's configuration.

    Raises:
        KeyError: If the method has no rule here.
    """
    name = optimizer.name
    if name == "fzoo":
        return [[frozenset({i})] for i in range(optimizer.n)]
    if isinstance(optimizer, MeZOConfig):
        sides = 2 if optimizer.two_sided else 1
        trips = [[frozenset({i}) for i in range(optimizer.n) for _ in range(sides)]]
        candidates = [[frozenset(range(optimizer.n))] * 2] if name == "zo_conservative" else []
        return trips + candidates
    if name == "hizoo":
        return [[frozenset({0})] * 2]
    if name in ("bszo", "bszo_b"):
        sides = 2 if optimizer.two_sided else 1
        m = optimizer.k + 1 if optimizer.m is None else optimizer.m
        ways = [frozenset({i}) for i in range(optimizer.k)]
        if not optimizer.adaptive_sampling:
            ways += [frozenset({i % optimizer.k}) for i in range(optimizer.k, m)]
        elif not optimizer.reuse_probes:
            ways += [frozenset(range(optimizer.k))] * (m - optimizer.k)
        return [[way] * sides for way in ways]
    raise KeyError(f"the estimate has no rule for optimizer {name!r}")


def passes(optimizer: Any, restore: str) -> list[Pass]:
    """Returns a step's passes over the weights, fused where the policy's sequence of positions allows.

    Raises:
        KeyError: If method or policy has no rule here.
    """
    probes = excursions(optimizer)
    scaled = 1.0 if optimizer.name in ("hizoo", "conmezo") else 0.0  # H or m is read with every z
    moved = {"mezo_adam": 4.0, "zo_momentum": 3.0, "conmezo": 3.0, "hizoo": 2.0}.get(
        optimizer.name, 0.0
    )  # H; m and v: read and written; a momentum is read again, for its step or its norm
    along = frozenset(i for trip in probes for probe in trip for i in probe)
    if optimizer.name == "adamezo":
        along = frozenset(range(optimizer.window))

    def move(at: Probe, state: float = scaled) -> Pass:
        return Pass(2.0, state, len(at))

    update = move(along, moved)
    if restore == "subtract":
        positions = [[frozenset[int](), *trip, frozenset[int]()] for trip in probes]
        steps = [pair for trip in positions for pair in pairwise(trip)]
        return [move(a | b) for a, b in steps] + [update]
    if restore == "merged":
        flat = [frozenset[int](), *(probe for trip in probes for probe in trip)]
        return [move(a | b) for a, b in pairwise(flat)] + [update]
    if restore == "snapshot":
        copies = [Pass(2.0), Pass(2.0)]  # into the copy, and back
        return [p for trip in probes for p in (*copies, *map(move, trip))] + [update]
    if restore == "streamed":
        return [replace(move(p), of_read=True) for trip in probes for p in trip] + [update]
    if restore == "factors":  # W + A Vᵀ is written once per interval
        return [Pass(2.0 / optimizer.interval, 0.0, 2.0)]
    raise KeyError(f"the estimate has no rule for precision.restore={restore}")


def passes_over_weights(cfg: Any) -> float:
    """Returns how often a step of a run's configuration reads and writes the weights, copies included."""
    return sum(p.weights for p in passes(cfg.optimizer, cfg.precision.restore)) / 2


@dataclass(frozen=True)
class Roofline:
    """Seconds of a step's forward passes and of its passes over the weights."""

    forward: float
    weights: float


def forward_roofline(
    work: Workload, ceilings: Ceilings, value_bytes: int, branches: int = 1
) -> float:
    """Returns the estimated seconds of a forward pass of so many copies of the mini-batch."""
    read = work.read * value_bytes / ceilings.bandwidth
    return max(read, branches * work.operations / ceilings.matrix)


def roofline(
    cfg: Any, work: Workload, ceilings: Ceilings, forwards: int, value_bytes: int, state_bytes: int
) -> Roofline:
    """Returns the estimated time of a step; bytes are those of a value of θ and of a value of the method's state."""
    method, restore = cfg.optimizer, cfg.precision.restore
    drawn = method.rank * work.low_rank if hasattr(method, "rank") else work.values
    together = forwards if restore == "factors" else 1  # branches that share one reading of θ
    forward = forward_roofline(work, ceilings, value_bytes, together)
    weights = 0.0
    for p in passes(method, restore):
        values = work.read if p.of_read else work.values
        moved = values * (p.weights * value_bytes + p.state * state_bytes)
        normals = p.directions * min(drawn, values)
        weights += max(moved / ceilings.bandwidth, normals / ceilings.normals)
    return Roofline(forward * forwards / together, weights)


def _reads(example: Encoded) -> int:
    """Places where a token is predicted: the mask; or the prompt's end and each candidate but its last token."""
    if example.mask_at is not None:
        return 1
    return 1 + sum(len(ids) - 1 for ids in example.candidate_ids)


def _attention(config: Any, kind: str, examples: Sequence[Encoded]) -> int:
    """Operations of queries · keys and of weights · values: a decoder's token sees itself and what stands before."""
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    lengths = [e.length for e in examples]
    pairs = sum(n * n if kind == "masked" else n * (n + 1) // 2 for n in lengths)
    return config.num_hidden_layers * 2 * 2 * width * pairs
