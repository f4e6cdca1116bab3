"""restore=factors: θ = W + A Vᵀ for every matrix; a low-rank method moves A, and its probes run as one batch through W.

A linear layer y = x Wᵀ whose W is displaced by ε U Vᵀ computes y + ε (x V) Uᵀ. The rows of a batch can therefore belong
to different points of θ, here called branches: all go through the same W, and each gets its own (x V)(A + ε U)ᵀ. V is
kept for an interval: the updates −η c U Vᵀ accumulate in A, float32, which is merged into W when V is redrawn.

Directions with factors of their own, U_j and V_j, need no common V: each branch gets ε (x V_j) U_jᵀ, A stays 0, and the
updates −η Σ c_j U_j V_jᵀ are applied to W at every step.

The products with A, U and V are float32; what they add to a layer's output is rounded to its dtype once. Biases and
norms are updated in place, and displaced within their own layer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zo.noise import NoiseKey, PhiloxEngine, PreparedProgram
from zo.noise.program import Program
from zo.weights.aliasing import VIEW, is_alias, storage_key
from zo.weights.anchor import SeenUpdate
from zo.weights.directions import Direction, LowRank, Stored, Terms
from zo.weights.loss import Loss
from zo.weights.patching import FactoredParameter, Guards, ReplacedForward, refuse_scripted
from zo.weights.restore.base import BranchBudgetError, RestoreError, RestorePolicy
from zo.weights.restore.branches import BranchedLayers, Forward
from zo.weights.subspaces import OuterProduct
from zo.weights.tensors import TrainableTensors
from zo.weights.updates import LinearUpdate, ParameterUpdate, UpdateTarget

MERGED_VALUES = 1 << 24
"""Values of a matrix that are merged at a time: 64 MiB of float32."""


class Factors(RestorePolicy):
    """Keeps A and V of a model's matrices, with which its layers compute, see `BranchedLayers`.

    From its construction on, the model computes with A and V. A is merged into W before other code reads a matrix, see
    `zo.weights.patching`.

    Attributes:
        a: Aᵀ of each tensor, (w, rows), float32, where w is the sum of the directions' ranks; (0,) of tensors with
            fewer than two dimensions.

    Raises:
        ValueError: If the model is missing, or no such layer computes with a trainable tensor; names it.
    """

    name = "factors"

    def __init__(self, space: TrainableTensors, model: nn.Module | None):
        super().__init__(space, model)
        if model is None:
            raise ValueError("restore=factors: the tensors' model is needed; give model=")
        if any(p.dtype == torch.float64 for p in self.local):
            raise ValueError("restore=factors: computes in float32, and the weights are float64")
        tensors = self._tensors = self.local
        self._philox = space.engine if isinstance(space.engine, PhiloxEngine) else None
        self.a = [torch.zeros(0, dtype=torch.float32, device=p.device) for p in tensors]
        self._v = list(self.a)  # V of each tensor, (columns, w)
        self._slices: dict[NoiseKey, slice] = {}  # key of a V -> its rows among the w
        self._layers = BranchedLayers(tensors, self.a, self._v)
        self._matrices = [i for i, p in enumerate(tensors) if p.dim() > 1]
        self._vectors = [i for i, p in enumerate(tensors) if p.dim() < 2]
        self._moving: dict[NoiseKey, list[Tensor]] = {}  # A, as `_parts`
        self._buffers: list[Tensor] = []  # memory of the branches' left factors and displacements
        self._filled: tuple[int, dict[NoiseKey, slice]] | None = None  # what `_branches` are of
        # What writes lists of these buffers, by the ids of what is written and what is read.
        self._prepared: dict[tuple[int, int], PreparedProgram | None] = {}
        self._alone: list[Tensor] | None = None  # the left factors of the only branch,
        self._rights: list[Tensor] = []  # and of their own right factors
        self._drawn: dict[Hashable, list[Tensor]] = {}  # for the probes, and the update after them
        self._closed = False
        self._forwards: list[ReplacedForward] = []
        self._replace_forwards(model)

    def use_subspace(self, directions: Sequence[LowRank]) -> dict[str, list[Tensor]]:
        """Draws the V of the directions of the next updates; A must be 0 or of the same V."""
        slices, width = dict[NoiseKey, slice](), 0
        directions = list({z.v: z for z in directions}.values())
        for z in directions:
            slices[z.v] = slice(width, width := width + z.rank)
        if slices != self._slices:
            self._slices = slices
            for i, p in enumerate(self._tensors):
                if p.dim() > 1:
                    self._v[i] = torch.cat([z.right(i, p) for z in directions]).mT
                    if self.a[i].dim() == 1:
                        self.a[i] = p.new_zeros(width, p.shape[0], dtype=torch.float32)
            self._moving, self._prepared = self._parts(self.a), {}
        self._update_moved()
        return {"a": self.a}

    def entries(self, i: int, index: Tensor) -> Tensor:
        """Returns entries of W + A Vᵀ."""
        found = super().entries(i, index)
        if i in self._matrices and self._layers.moved:
            columns = len(self._v[i])
            v = self._v[i].mT[:, index % columns]
            found = found + (self.a[i][:, index // columns] * v).sum(0)
        return found

    def to(self, terms: Terms) -> None:
        """Has the layers compute at one point."""
        self.displace_to([terms])

    def losses(self, loss: Loss, n: int) -> list[float]:
        """Measures all points of a pass."""
        return loss.branches(n) if loss.branched else super().losses(loss, n)

    def passes(self, loss: Loss, points: Sequence[Terms]) -> list[Sequence[Terms]]:
        """Returns the points that one forward pass measures each: as many pairs as the branch budget allows.

        Raises:
            BranchBudgetError: If it allows none.
        """
        if not loss.branched:
            return super().passes(loss, points)
        own = _have_own_factors(points)
        needed = loss.branch_bytes(own)
        if needed == 0:
            return [points]
        if own:
            wide = max(sum(_low_rank(z).rank for _, z in terms) for terms in points)
            parts = (wide * sum(_sides(p)) if p.dim() > 1 else p.numel() for p in self._tensors)
            needed += 4 * sum(parts)
        pairs = int(min(self.branch_budget / (2 * needed), len(points)))
        if pairs == 0:
            raise BranchBudgetError(self.branch_budget, 2 * needed)
        return [points[i : i + 2 * pairs] for i in range(0, len(points), 2 * pairs)]

    def restore(self) -> None:
        """Removes the branches: the layers compute at θ."""
        self._layers.displace(1, None, None, {})
        self.finish_restore()

    def finish_restore(self) -> None:
        """Restores the modules' own tensors, also after an interrupted call."""
        self._layers.restore_tensors()

    def apply_update(
        self, update: ParameterUpdate, decay: float, key: NoiseKey | None, pending: Terms = ()
    ) -> None:
        """Adds Σ c_j U_j to A, and updates biases and norms in place; other updates write the weights.

        Raises:
            ValueError: If there is weight decay and the update goes to A.
        """
        anchor = update.anchor if isinstance(update, SeenUpdate) else None
        inner = update.update if isinstance(update, SeenUpdate) else update
        if not isinstance(inner, LinearUpdate) or _have_own_factors([inner.of]):
            super().apply_update(update, decay, key, pending)
            return
        if decay:
            raise ValueError("restore=factors: weight decay would write every weight at every step")
        with self.space.stopwatch.running("weights"):
            terms = inner.of
            self._write_left(self._moving, self._moving, terms)
            self._layers.moved |= any(c != 0.0 for c, _ in terms)
            if anchor is not None:
                for i in self._matrices:
                    self.a[i].mul_(1 - min(anchor.shares[i], 1.0))
            vectors = [self._tensors[i] for i in self._vectors]
            if vectors and (anchor is not None or not self._add_drawn(vectors, terms)):
                rest = [(c, Stored(self._drawn_of(z))) for c, z in terms]
                for i, p in zip(self._vectors, vectors, strict=True):
                    target = UpdateTarget(p, i, 0.0, None)
                    SeenUpdate(LinearUpdate(rest), anchor).apply(target, ())
            self._drawn = {}

    def merge_factors(self) -> None:
        """W ← W + A Vᵀ, in float32, rounded once, where A is not 0; A ← 0."""
        with self.space.stopwatch.running("weights"):
            if not self._layers.moved:
                return
            for i in self._matrices:
                _merge_matrix(self._tensors[i], self.a[i], self._v[i].mT)
                self.a[i].zero_()
            self._layers.moved = False

    def close(self) -> None:
        """Merges the factors and restores the model's own forwards and parameters."""
        self.merge_factors()
        for forward in self._forwards:
            forward.take_back()
        self._guards.set(False)
        self._closed = True

    def _before_reading(self, parameter: Tensor) -> None:
        """Merges the factors before code outside of a parameter's layer reads it.

        Raises:
            RestoreError: During a probe.
        """
        if self._layers.inside or torch._guards.TracingContext.try_get() is not None:
            return  # a compiler inspects the parameter
        if self._layers.left is not None:
            what = "is read outside of the call of its module, where it is not displaced"
            raise RestoreError(self.name, f"{self._parameters[parameter]} {what}", "snapshot")  # type: ignore[index]
        if parameter.dim() > 1:
            self.merge_for_reader()

    def merge_for_reader(self) -> None:
        """Merges the factors between two steps, and sets `merged_for_reader`."""
        if self._layers.moved:
            self.merge_factors()
            self.merged_for_reader = True

    def factor_tensors(self) -> tuple[list[str], list[Tensor]]:
        """Returns A of every matrix, unless all are 0."""
        self._update_moved()
        found = self._matrices if self._layers.moved else []
        return [f"{self.space.names[i]} (factor)" for i in found], [self.a[i] for i in found]

    def _update_moved(self) -> None:
        """Sets whether A is not 0 anywhere; waits for the device once."""
        device = self.a[0].device
        self._layers.moved = bool(torch.stack([a.any().to(device) for a in self.a]).any())

    def displace_to(self, points: Sequence[Terms]) -> None:
        """Has branch b compute at θ + Σ c_j z_j, the terms of `points[b]`."""
        if self._closed:
            raise RuntimeError("restore=factors: the optimizer is closed; make a new one")
        if _have_own_factors(points):
            self._displace_own(points)
            return
        with self.space.stopwatch.running("weights", 0):
            keys = {_low_rank(z).left_key for terms in points for _, z in terms}
            self._drawn = {key: of for key, of in self._drawn.items() if key in keys}
            if self._filled != (len(points), self._slices):
                likes = (
                    a if p.dim() > 1 else p for a, p in zip(self.a, self._tensors, strict=True)
                )
                shapes = ((t, (len(points), *t.shape)) for t in likes)
                self._buffers = [t.new_zeros(shape, dtype=torch.float32) for t, shape in shapes]
                branches = [[t[b] for t in self._buffers] for b in range(len(points))]
                self._branches = [
                    (
                        self._parts(left),
                        [left[i] for i in self._matrices],
                        [left[i] for i in self._vectors],
                    )
                    for left in branches
                ]
                self._alone = branches[0] if len(branches) == 1 else None
                self._filled, self._prepared = (len(points), self._slices), {}
            for terms, (parts, matrices, vectors) in zip(points, self._branches, strict=True):
                base = self._moving
                if matrices and len(parts) > 1:  # most parts have no term
                    torch._foreach_copy_(matrices, [self.a[i] for i in self._matrices])
                    base = parts
                self._write_left(parts, base, terms)
                self._write(vectors, None, self._vectors, terms)
            self._displace(len(points), None, self._alone)

    def _displace_own(self, points: Sequence[Terms]) -> None:
        """Has branch b compute at θ + Σ c_j U_j V_jᵀ, concatenated in its own left and right factors."""
        with self.space.stopwatch.running("weights", 0):
            n, p = len(points), self._tensors
            wide = max(sum(_low_rank(z).rank for _, z in terms) for terms in points)
            sides = [_sides(t) if t.dim() > 1 else (t.numel(), 0) for t in p]
            left = [
                (n, wide, m) if t.dim() > 1 else (n, m) for t, (m, _) in zip(p, sides, strict=True)
            ]
            self._filled, self._buffers = None, _zeros(self._buffers, left, p)
            self._rights = _zeros(self._rights, [(n, wide, columns) for _, columns in sides], p)
            places: dict[LowRank, list[tuple[int, int, float]]] = {}
            for b, terms in enumerate(points):
                at = 0
                for c, z in terms:
                    places.setdefault(_low_rank(z), []).append((b, at, c))
                    at += _low_rank(z).rank
            for z, of in places.items():
                u = [z.left(i, p[i]) for i in self._matrices]
                v = [z.right(i, p[i]) for i in self._matrices]
                noise = [z.sample(i, p[i]) for i in self._vectors]
                for b, at, c in of:
                    rows = slice(at, at + z.rank)
                    _add([self._buffers[i][b, rows] for i in self._matrices], u, c * z.scale)
                    _add([self._rights[i][b, rows] for i in self._matrices], v, 1.0)
                    _add([self._buffers[i][b] for i in self._vectors], noise, c)
            self._displace(n, self._rights)

    def _displace(
        self, count: int, right: list[Tensor] | None, alone: list[Tensor] | None = None
    ) -> None:
        """Has the layers compute with what the branches' buffers hold."""
        there, at = dict[int, Tensor](), self._vectors
        if at:
            vectors = [self._tensors[i] for i in at]
            moved = torch._foreach_add([self._buffers[i] for i in at], vectors)
            there = {i: t.to(p.dtype) for i, t, p in zip(at, moved, vectors, strict=True)}
        self._layers.displace(count, self._buffers, right, there, alone)

    def _program(self, reads: bool, terms: Terms) -> Program | None:
        """Returns the program that writes what a second list holds, or 0, plus Σ c_j U_jᵀ; None if none draws them."""
        engine = self._philox
        if engine is None or any(
            type(z) is not LowRank or z.engine is not engine for _, z in terms
        ):
            return None
        program = Program()
        x = program.read(1) if reads else program.full(0.0)
        for c, z in terms:
            x = x.add(program.draw(_low_rank(z).u), alpha=c)
        program.write(0, x)
        return program

    def _add_drawn(self, vectors: list[Tensor], terms: Terms) -> bool:
        """Adds Σ c_j z_j to θ's vectors, drawn on the way; returns whether it could."""
        program, keeps = self._program(True, terms), np.ones(len(vectors), np.float32)
        if program is None or self._philox is None:
            return False
        return self._philox.run(program, [vectors, vectors], self._vectors, keeps)

    def _write(
        self, out: list[Tensor], base: list[Tensor] | None, at: Sequence[int], terms: Terms
    ) -> None:
        """Writes base + Σ c_j U_jᵀ, or z_j, of the tensors at some positions; without a base, the sum.

        Both lists are this object's own buffers, which stay where they are.
        """
        if not out:
            return
        program = self._program(base is not None, terms)
        if program is not None and self._philox is not None:
            of = id(out), id(base)
            if of not in self._prepared:
                lists, keeps = [out] if base is None else [out, base], np.ones(len(at), np.float32)
                self._prepared[of] = self._philox.prepare(program, lists, at, keeps)
            elif found := self._prepared[of]:
                found.give(program)
            if prepared := self._prepared[of]:
                prepared.run_all()
                return
        if base is None:
            torch._foreach_zero_(out)
        elif base is not out:
            torch._foreach_copy_(out, base)
        for c, z in terms:
            drawn = self._drawn_of(z)
            _add(out, [drawn[i] for i in at], c)

    def _drawn_of(self, z: Direction) -> list[Tensor]:
        """Returns Uᵀ of every matrix and z of every other tensor; probes and update share them."""
        z = _low_rank(z)
        if z.left_key not in self._drawn:
            self._drawn[z.left_key] = [
                z.left(i, p) if p.dim() > 1 else z.sample(i, p) for i, p in enumerate(self._tensors)
            ]
        return self._drawn[z.left_key]

    def _parts(self, left: Sequence[Tensor]) -> dict[NoiseKey, list[Tensor]]:
        """Returns what of the matrices' left factors, (w, rows), belongs to each V, by its key."""
        return {v: [left[i][rows] for i in self._matrices] for v, rows in self._slices.items()}

    def _write_left(
        self, out: dict[NoiseKey, list[Tensor]], base: dict[NoiseKey, list[Tensor]], terms: Terms
    ) -> None:
        """Writes base + Σ c_j U_jᵀ of left factors, given by their `_parts`."""
        own: dict[NoiseKey, list[tuple[float, Direction]]] = {v: [] for v in out}
        for c, z in terms:
            own[_low_rank(z).v].append((c * _low_rank(z).scale, z))
        for v, of in own.items():
            if of or base is not out:
                self._write(out[v], base[v], self._matrices, of)

    def _replace_forwards(self, model: nn.Module) -> None:
        """Has the model's layers compute with A and V."""
        index = {storage_key(p): i for i, p in enumerate(self.space.parameters)}
        covered: set[int] = set()
        for path, module in model.named_modules():
            held = [
                (n, p, index.get(storage_key(p)))
                for n, p in module._parameters.items()
                if p is not None
            ]
            own = {name: i for name, _, i in held if i is not None}
            for name, p, i in held:
                at = f"{path}.{name}" if path else name
                if i is not None and not is_alias(p, self._tensors[i]):
                    raise ValueError(f"restore=factors: {at} {VIEW}")
                if i is not None and p.is_inference():
                    raise ValueError(f"restore=factors: {at} was made under torch.inference_mode")
            refuse_scripted(self.name, {module: [(module, n, i) for n, i in own.items()]})
            if own and (forward := self._layers.forward_of(module, own, path)) is not None:
                forward = self._of_own_weights(module, own, path, forward)
                self._forwards.append(ReplacedForward.of(module, forward).put())
                covered.update(own.values())
        for i in sorted({*range(len(self.space.names))} - covered):
            layers = "linear, embedding or normalisation layer"
            raise ValueError(f"restore=factors: {self.space.names[i]} belongs to no {layers}")
        named = model.named_parameters()
        self._parameters = {p: n for n, p in named if storage_key(p) in index}
        self._guards = Guards(self._parameters, FactoredParameter.of(self._before_reading))
        self._guards.set(True)

    def _of_own_weights(
        self, module: nn.Module, own: Mapping[str, int], path: str, displaced: Forward
    ) -> Forward:
        """Returns a layer's forward that displaces its own weights, and not what `functional_call` lends it.

        Raises:
            RestoreError: By the forward, where some of the weights are its own and others are not.
        """
        plain, now = module.forward, module._parameters
        held = [(n, now[n], i) for n, i in own.items()]

        def forward(*args: Any, **kwargs: Any) -> Any:
            for name, p, _ in held:
                if now.get(name) is not p:
                    break
            else:
                return displaced(*args, **kwargs)
            found = [(n, now.get(n), i) for n, p, i in held if now.get(n) is not p]
            others = [n for n, t, i in found if t is None or not is_alias(t, self._tensors[i])]
            if not others:
                return displaced(*args, **kwargs)
            if len(others) < len(held) and (self._layers.moved or self._layers.left is not None):
                what = f"{path} is called with another {', '.join(others)} beside its own"
                raise RestoreError(self.name, what, "snapshot")
            return plain(*args, **kwargs)

        return forward


def _low_rank(z: Direction) -> LowRank:
    if not isinstance(z, LowRank):
        raise TypeError("restore=factors moves along directions of low rank alone")
    return z


def _have_own_factors(points: Sequence[Terms]) -> bool:
    """Returns whether directions have factors of their own, which need no common V."""
    return any(isinstance(z, OuterProduct) for terms in points for _, z in terms)


def _sides(p: Tensor) -> tuple[int, int]:
    """Returns rows and columns of a tensor that counts as a matrix."""
    return p.shape[0], p[0].numel()


def _zeros(
    held: list[Tensor], shapes: Sequence[tuple[int, ...]], likes: Sequence[Tensor]
) -> list[Tensor]:
    """Returns float32 zeros of these shapes, in the given buffers if they have them."""
    if [tuple(t.shape) for t in held] == list(shapes):
        torch._foreach_zero_(held)
        return held
    pairs = zip(shapes, likes, strict=True)
    return [t.new_zeros(shape, dtype=torch.float32) for shape, t in pairs]


def _add(out: list[Tensor], more: list[Tensor], alpha: float) -> None:
    """Adds alpha times each of `more` to each of `out`, in place."""
    if out:
        torch._foreach_add_(out, more, alpha=alpha)


def _merge_matrix(p: Tensor, a: Tensor, v: Tensor) -> None:
    """W ← W + A Vᵀ: (rows, columns), (w, rows), (w, columns). No matrix product: TF32 or a library would round it."""
    rows = max(1, MERGED_VALUES // max(1, v.shape[1]))
    for part, a_part in zip(p.split(rows), a.split(rows, dim=1), strict=True):
        total = part.float()  # `part` itself where that is float32
        for a_r, v_r in zip(a_part, v, strict=True):
            total.addcmul_(a_r[:, None], v_r)
        if total is not part:
            part.copy_(total)
