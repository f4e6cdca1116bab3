"""Proof that a restore policy measures displaced losses: one is compared with that of weights written by hand."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_leaves

from zo.weights.directions import Terms, restricted
from zo.weights.executor import Executor
from zo.weights.loss import ClosureLoss
from zo.weights.restore import Excursion, RestoreError, RestorePolicy
from zo.weights.space import ParameterSpace
from zo.weights.updates import add_

SHARES = (1.0, 0.1)
"""Norms of displacements whose effect exceeds rounding, in the largest weight's; the first finite loss counts."""

CPU = torch.device("cpu")

OF_MODULES = {*vars(nn.Module()), "_flat_weights"}
"""What every module has, and a recurrent layer's list of its parameters."""

FEW = 8
"""Tensors that are displaced by themselves, to see whether a loss depends on them."""

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of as many bytes as a weight."""


class PolicyCheck:
    """Compares the first displaced loss of a step with the loss of the same weights, written by hand.

    It costs a copy of the weights, on the host where their device has no room for it, and a forward pass. Where the
    losses differ, or in half precision are near that of θ, a few more tell rounding from other weights. Where the
    host has no room for all, tensors are displaced a part after another, each by two forward passes; of offloaded
    weights a part takes a quarter of what is free.

    Args:
        space: θ.
        evaluate: Returns the step's loss at the current weights, that of all processes together.
        gather: Returns the numbers of all processes, which then displace all parts together.
        host: Whether the copy is on the host in any case, as for a run that reports its device memory.

    Attributes:
        said: What was compared, a sentence, once it was.
        short: Whether memory for copies was short, so that not all tensors were compared.
    """

    def __init__(
        self,
        space: ParameterSpace,
        evaluate: Callable[[], float],
        gather: Callable[[Sequence[float]], list[list[float]]],
        host: bool = False,
    ):
        self._space, self._evaluate, self._gather, self._host = space, evaluate, gather, host
        self.said, self.short = "", False
        self._at: torch.device | None = None  # where copies are; None is each tensor's device

    def kept(self, model: nn.Module) -> str | None:
        """Returns what is said of a called module that computes with what it has kept of a weight, if there is one."""
        space, called = self._space, list[nn.Module]()
        found = kept_tensors(model.modules(), space)
        if not found or not min(has for (has,) in self._gather([float(copies_fit(space, found))])):
            return None
        space.policy.finish_restore()
        with register_module_forward_hook(lambda module, *_: called.append(module)):
            base = self._evaluate()
        unused, of = unused_tensors(space, found, self._evaluate, base), kept_tensors(called, space)
        return next((keeps(space.names[i], of[i]) for i in unused if i in of), None)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the body runs, which makes a step, its first displaced loss is compared."""
        self._space.__dict__["measure"] = self._measure
        try:
            yield
        finally:
            self._space.__dict__.pop("measure", None)

    def _measure(self, loss_fn: Executor, excursions: Sequence[Excursion]) -> list[float]:
        """Does what `ParameterSpace.measure` does.

        Raises:
            RestoreError: If the policy measures a loss of other weights.
        """
        space, policy = self._space, self._space.policy
        points = [terms for points in excursions for terms in points]
        at = next((i for i, terms in enumerate(points) if terms), None)
        if at is None:
            return ParameterSpace.measure(space, loss_fn, excursions)
        del space.__dict__["measure"]
        policy.finish_restore()
        parts, total = self._parts(), len(space.like)
        fit = sum(map(len, parts))
        counts, shares = zip(*self._gather([len(parts), fit / total]), strict=True)
        self.short = min(shares) < 1
        if not min(counts):
            self.said = f"the loss under restore={policy.name} was not compared: no memory is free for a copy"
            return ParameterSpace.measure(space, loss_fn, excursions)
        whole = max(counts) == 1 and not self.short
        truth = self._by_hand(points[at], parts[0]) if whole else math.nan
        losses = ParameterSpace.measure(space, loss_fn, excursions)
        found = losses[at]
        self.said = (
            f"restore={policy.name} was compared with weights displaced by hand: loss {found}"
        )
        if self.short:
            self.said += f"; memory is free for copies of {fit} of {total} tensors, which alone were compared"
        half = any(t.dtype in (torch.bfloat16, torch.float16) for t in space.like)
        if found == truth and not half:
            return losses
        policy.finish_restore()
        base = self._evaluate()
        rounding = max(1e-3, *(torch.finfo(t.dtype).eps for t in space.like))
        if found == truth and abs(truth - base) > 10 * rounding * abs(base):
            return losses
        parts += [[]] * (int(max(counts)) - len(parts))
        self.said += f", in {len(parts)} parts" * (len(parts) > 1)
        for part in parts:
            self._compare(points[at], part, whole, base, rounding)
        return losses

    def _compare(
        self, terms: Terms, part: Sequence[int], whole: bool, base: float, rounding: float
    ) -> None:
        """Raises RestoreError if a larger displacement of a part of the tensors has the loss of other weights."""
        policy = self._space.policy
        if not whole:
            terms = [(c, restricted(z, part, self._space.like)) for c, z in terms]
        for share in SHARES:
            larger = self._enlarged(terms, part, share)
            if math.isfinite(truth := self._by_hand(larger, part)):
                break
        noise = rounding * max(abs(base), abs(truth))
        with restored([self._space.settled()[i] for i in part], self._at):
            try:
                with policy.excursion() as probe:
                    probe.to(larger)
                    (found,) = probe.losses(ClosureLoss(self._evaluate), 1)
            finally:
                policy.finish_restore()
        if abs(found - truth) > 0.02 * abs(truth - base) + 2 * noise:
            again = self._evaluate()
            if abs(again - base) > noise:
                raise ValueError(
                    f"closure: at the same weights it gave {base} and, a few calls later, {again}; draw batches and"
                    " random numbers before the step"
                )
            what = (
                f"the step measures the loss {found} where weights displaced by hand have {truth} and the"
                f" undisplaced ones {base}, so the model computes with other weights, as with `.data` or a view that it"
                " keeps instead of reading the parameter"
            )
            raise RestoreError(policy.name, what, "snapshot")
        self.said += f", and at a larger displacement {found}, by hand {truth}"

    def _enlarged(self, terms: Terms, part: Sequence[int], share: float) -> Terms:
        """Returns a displacement along the first direction that changes the largest tensor by a share at least."""
        local = self._space.settled()
        if self._space.shards or not part:  # each process would take another one
            return terms
        c, z = terms[0]
        i = max(part, key=lambda i: local[i].numel())
        p = local[i].to(self._space.like[i].device)
        size = float(z.sample(i, p).norm()) * abs(c)
        return [(c * max(1.0, share * float(p.float().norm()) / size), z)] if size else terms

    def _by_hand(self, terms: Terms, part: Sequence[int]) -> float:
        """Returns the loss of weights of which a part is displaced."""
        space, policy = self._space, self._space.policy
        tensors = [space.settled()[i] for i in part]
        left = [t for t in map(space.former, part) if t is not None]
        with restored(left, self._at), restored(tensors, self._at) as copies:

            def displaced() -> Iterator[tuple[int, Tensor, Tensor]]:
                for i, t, of in zip(part, tensors, copies, strict=True):
                    p = of.to(space.like[i].device, copy=True)
                    add_(p, p, i, terms)
                    yield i, t, p

            for i, t, p in displaced():
                t.copy_(p)
                if (other := space.former(i)) is not None:
                    other.copy_(p)
            loss = self._evaluate()
            for i, t, p in () if policy.constraints.exact else displaced():
                bits = BITS[p.itemsize]  # versions count no write through `.data` and NumPy
                if not torch.equal(t.view(bits), p.view(bits)):
                    raise writes(policy, space.names[i])
        return loss

    def _parts(self) -> list[list[int]]:
        """Returns parts of the weights whose copies fit into memory together: into the devices', else the host's."""
        self._at = None
        local = self._space.settled()
        sizes = [t.numel() * t.element_size() for t in local]
        here = not (self._host or self._space.offloaded)
        if here and all(free_bytes(t.device) > 2 * sum(sizes) for t in local):
            return [[*range(len(local))]]
        self._at = CPU
        most = 0.9 * free_bytes(CPU) / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        room = min(most, max(most / 4, *sizes)) if self._space.offloaded else most
        parts, left = list[list[int]](), 0.0
        for i, size in enumerate(sizes):
            if size <= most:
                if not parts or size > left:
                    parts.append([])
                    left = room
                parts[-1].append(i)
                left -= size
        return parts


@contextmanager
def restored(
    tensors: Sequence[Tensor], device: torch.device | None = None
) -> Iterator[list[Tensor]]:
    """Yields copies of tensors, on their devices unless one is given; writes them back afterwards."""
    copies = [t.to(device or t.device, copy=True) for t in tensors]
    try:
        yield copies
    finally:
        for t, of in zip(tensors, copies, strict=True):
            t.copy_(of)


def writes(policy: RestorePolicy, what: str) -> RestoreError:
    """Returns the error of a forward pass that writes what a policy moves in place."""
    said = f"the forward pass writes {what}, as max_norm and clamps do, and θ would drift"
    return RestoreError(policy.name, said, "snapshot")


def kept_tensors(modules: Iterable[nn.Module], space: ParameterSpace) -> dict[int, str]:
    """Returns tensors and arrays that are no parameters and buffers, by the positions of the weights beside them."""
    index = {id(p): i for i, p in enumerate(space.parameters)}
    return {
        index[id(p)]: f"{key} of its {type(m).__name__}"
        for m in modules
        for key, value in vars(m).items()
        if key not in OF_MODULES
        and any(isinstance(of, Tensor | np.ndarray) for of in tree_leaves(value))
        for p in m._parameters.values()
        if id(p) in index
    }


def keeps(name: str, kept: str) -> str:
    """Returns what is said of a weight that a module does not read again."""
    return f"{name} changes no loss, where {kept} seems to be kept of earlier weights; make that anew in each call"


def copies_fit(space: ParameterSpace, positions: Iterable[int]) -> bool:
    """Returns whether the host has room for copies of tensors."""
    return 4 * sum(space.like[i].nbytes for i in positions) <= free_bytes(CPU)


def unused_tensors(
    space: ParameterSpace, positions: Collection[int], evaluate: Callable[[], float], base: float
) -> list[int]:
    """Returns which tensors do not change a loss.

    Many are displaced together, and if that changes the loss, some by themselves. Sharded ones are displaced one by
    one, so that all processes make the same forward passes.
    """
    thetas, found = space.settled(), list[int]()
    every = 1 if space.shards else -(-len(positions) // FEW)
    parts = [[i] for i in [*positions][:: every or 1]]
    for some in parts if every < 2 else [[*positions], *parts]:
        if some[0] in found:
            continue
        tensors = [thetas[i] for i in some]
        with restored(tensors, CPU):
            for t in tensors:  # not by a constant, which softmax and norms take out
                ramp = torch.linspace(1, 2, t.numel(), dtype=t.dtype, device=t.device)
                t.add_(ramp.square_().view(t.shape))
            found += some * (evaluate() == base)
    return found


def free_bytes(device: torch.device) -> float:
    """Returns the bytes that are free on a device, of the host those of its control group, too; infinite if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return math.inf

    def read(path: str, entry: str = r"^(\d+)$", unit: int = 1) -> float:
        text = Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""
        found = re.search(entry, text, re.MULTILINE)
        return int(found[1]) * unit if found else math.inf

    group = "/sys/fs/cgroup/memory"
    left = read(f"{group}.max")
    if left < math.inf:
        cache = read(f"{group}.stat", r"^inactive_file (\d+)$")
        left -= read(f"{group}.current") - (cache if cache < math.inf else 0)
    return max(0.0, min(left, read("/proc/meminfo", r"^MemAvailable:\s*(\d+) kB", 1024)))
