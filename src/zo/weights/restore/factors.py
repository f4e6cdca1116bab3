"""restore=factors: θ = W + A Vᵀ for every matrix; a low-rank method moves A, and its probes run as one batch through W.

A linear layer y = x Wᵀ whose W is displaced by ε U Vᵀ computes y + ε (x V) Uᵀ. The rows of a batch can therefore belong
to different points of θ, here called branches: all go through the same W, and each gets its own (x V)(A + ε U)ᵀ. V is
kept for an interval, so that the updates −η c U Vᵀ add up in A, float32, and reach W when the next V is due (`fold`).

The products with A, U and V are float32, and what they add to a layer's output is rounded to its dtype once. Biases and
norms are moved in place, and displaced within their own layer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from zo.noise import NoiseKey
from zo.weights.directions import Direction, LowRank, Stored, Terms
from zo.weights.guarded import ReplacedForward, factored
from zo.weights.restore.base import BranchedLoss, LossFn, RestoreError, RestorePolicy
from zo.weights.storage import storage_key
from zo.weights.updates import LinearUpdate, ParameterUpdate, add_

if TYPE_CHECKING:
    from zo.weights.space import ParameterSpace

Forward: TypeAlias = Callable[..., Tensor]

FOLD = 1 << 24
"""Values of a matrix that are folded at a time: 64 MiB of float32."""


class Factors(RestorePolicy):
    """A and V of a model's matrices, and the layers that add what A, V and the branches come to.

    The layers are `nn.Linear`, transformers' `Conv1D`, `nn.Embedding` with its subclasses whose output is linear in the
    table, and layers without layers of their own whose trainable tensors have one dimension, such as norms. The rows of
    their first input are those of branch 0, then as many of branch 1, and so on. From its construction on, the model
    computes with A and V, and its matrices are folded when anything else reads them, see `zo.weights.guarded`.

    Attributes:
        a: Aᵀ of each tensor, (w, rows), float32, where w is the sum of the directions' ranks; (0,) of tensors with
            fewer than two dimensions.

    Raises:
        ValueError: If the model is missing, or no such layer computes with a trainable tensor; names it.
    """

    name = "factors"
    measures_together = True

    def __init__(self, space: ParameterSpace, model: nn.Module | None):
        super().__init__(space, model)
        if model is None:
            raise ValueError("restore=factors: the tensors' model is needed")
        if any(p.dtype == torch.float64 for p in space.held):
            raise ValueError("restore=factors: computes in float32, and the weights are float64")
        tensors = self._tensors = space.held
        self.a = [torch.zeros(0, device=p.device) for p in tensors]
        self._v = list(self.a)  # Vᵀ of each tensor, (w, columns)
        self._slices: dict[NoiseKey, slice] = {}  # key of a V -> its rows among the w
        self._moved = False  # whether A may be other than 0
        self._branches: list[Tensor] | None = None
        self._count = 1
        self._matrices = [i for i, p in enumerate(tensors) if p.dim() > 1]
        self._vectors = [i for i, p in enumerate(tensors) if p.dim() < 2]
        self._buffers: list[Tensor] = []  # memory of `_branches`
        self._drawn: dict[Hashable, list[Tensor]] = {}  # for the probes, and the update after them
        self._unread = dict(enumerate(space.names))  # no layer has computed a probe with them
        self._lent: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._closed = False
        self._inside = 0  # calls of layers' own forwards that are under way
        self._forwards: list[ReplacedForward] = []
        self._parameters: dict[nn.Parameter, str] = {}
        self._replace_forwards(model)

    def use_subspace(self, directions: Sequence[LowRank]) -> dict[str, list[Tensor]]:
        """Draws the V of all directions that θ moves along from now on; A is 0, or was made with these."""
        slices, width = dict[NoiseKey, slice](), 0
        directions = list({z.v: z for z in directions}.values())
        for z in directions:
            slices[z.v] = slice(width, width := width + z.rank)
        if slices != self._slices:
            self._slices = slices
            for i, p in enumerate(self._tensors):
                if p.dim() > 1:
                    self._v[i] = torch.cat([z.right(i, p) for z in directions])
                    if self.a[i].dim() == 1:
                        self.a[i] = torch.zeros(width, p.shape[0], device=p.device)
        self._update_moved()
        return {"a": self.a}

    def to(self, terms: Terms) -> None:
        """Makes the layers compute at one point."""
        self._displace([terms])

    def losses(self, loss_fn: LossFn, points: Sequence[Terms]) -> list[float]:
        """Measures at all points in one forward pass if the loss can.

        Raises:
            RuntimeError: If no layer computed with one of the tensors: it is not read, or past its layer.
        """
        if isinstance(loss_fn, BranchedLoss):
            self._displace(points)
            found = loss_fn.branches(len(points))
        else:
            found = super().losses(loss_fn, points)
        if self._unread:
            name, why = next(iter(self._unread.values())), "is not computed with in its layer"
            raise RuntimeError(f"restore=factors: {name} {why}; restore=snapshot displaces it")
        return found

    def restore(self) -> None:
        """Leaves one branch, at θ."""
        self._count, self._branches = 1, None
        self.settle()

    def settle(self) -> None:
        """Gives modules their own tensors back where a call of one was interrupted."""
        for held, own in self._lent:
            held.update(own)
        self._lent, self._inside = [], 0

    def update(
        self, update: ParameterUpdate, decay: float, key: NoiseKey | None, pending: Terms = ()
    ) -> None:
        """Moves A by Σ c_j U_j, and biases and norms in place; other updates write the weights.

        Raises:
            ValueError: If θ is to decay.
        """
        if decay:
            raise ValueError("restore=factors: weight decay would write every weight at every step")
        if not isinstance(update, LinearUpdate):
            super().update(update, decay, key, pending)
            return
        with self.space.timed():
            terms = update.of
            drawn = self._draw(terms)
            self._add_left(self.a, terms, drawn)
            self._moved |= any(c != 0.0 for c, _ in terms)
            self._drawn = {}
            rest = [(c, Stored(drawn[_low_rank(z).left_key])) for c, z in terms]
            for i in self._vectors:
                add_(self._tensors[i], self._tensors[i], i, rest)

    def fold(self) -> None:
        """W ← W + A Vᵀ, in float32, rounded once, where A is other than 0; A ← 0."""
        with self.space.timed():
            if not self._moved:
                return
            for i in self._matrices:
                _fold(self._tensors[i], self.a[i], self._v[i])
                self.a[i].zero_()
            self._moved = False

    def close(self) -> None:
        """Folds, and gives the model its own forwards and parameters back."""
        self.fold()
        for forward in self._forwards:
            forward.take_back()
        for p in self._parameters:
            p.__class__ = nn.Parameter  # type: ignore[assignment]
        self._closed = True

    def _before_reading(self, parameter: Tensor) -> None:
        """Folds before something other than a parameter's layer reads it.

        Raises:
            RestoreError: If a probe is under way.
        """
        if self._inside or torch._guards.TracingContext.try_get() is not None:
            return  # a compiler looks at the parameter
        if self._branches is not None:
            what = "is read outside of the call of its module, where it is not displaced"
            raise RestoreError(self.name, f"{self._parameters[parameter]} {what}", "snapshot")  # type: ignore[index]
        self.fold_for_reader()

    def fold_for_reader(self) -> None:
        """Folds between two steps, and takes note of it."""
        if self._moved:
            self.fold()
            self.folded_for_reader = True

    def beside(self) -> tuple[list[str], list[Tensor]]:
        """Returns A of every matrix, unless all are 0."""
        self._update_moved()
        found = self._matrices if self._moved else []
        return [f"{self.space.names[i]} (factor)" for i in found], [self.a[i] for i in found]

    def _update_moved(self) -> None:
        """Sets whether A is other than 0 anywhere; one wait for the device."""
        device = self.a[0].device
        self._moved = bool(torch.stack([a.any().to(device) for a in self.a]).any())

    def _displace(self, points: Sequence[Terms]) -> None:
        """Makes branch b compute at θ + Σ c_j z_j, the terms of `points[b]`."""
        if self._closed:
            raise RuntimeError("restore=factors: the optimizer is closed; make a new one")
        with self.space.timed(passes=0):
            drawn = self._drawn = self._draw([term for terms in points for term in terms])
            if not self._buffers or len(self._buffers[0]) != len(points):
                likes = [
                    a if p.dim() > 1 else p for a, p in zip(self.a, self._tensors, strict=True)
                ]
                self._buffers = [torch.zeros(len(points), *t.shape, device=t.device) for t in likes]
            for b, terms in enumerate(points):
                branch = [buffer[b] for buffer in self._buffers]
                vectors = [branch[i] for i in self._vectors]
                for i in self._matrices:
                    branch[i].copy_(self.a[i])
                for vector in vectors:
                    vector.zero_()
                self._add_left(branch, terms, drawn)
                for c, z in terms:
                    _add(vectors, [drawn[_low_rank(z).left_key][i] for i in self._vectors], c)
            self._count, self._branches = len(points), self._buffers

    def _draw(self, terms: Terms) -> dict[Hashable, list[Tensor]]:
        """Returns Uᵀ of every matrix and z of every other tensor, by its key: a step asks twice for the same."""
        found: dict[Hashable, list[Tensor]] = {}
        for z in dict.fromkeys(_low_rank(z) for _, z in terms):
            found[z.left_key] = self._drawn.get(z.left_key) or [
                z.left(i, p) if p.dim() > 1 else z.sample(i, p) for i, p in enumerate(self._tensors)
            ]
        return found

    def _add_left(
        self, out: Sequence[Tensor], terms: Terms, drawn: Mapping[Hashable, Sequence[Tensor]]
    ) -> None:
        """Adds Σ c_j U_jᵀ to those of `out`, one per tensor, that are of matrices: (w, rows)."""
        for c, z in terms:
            z = _low_rank(z)
            parts = [out[i][self._slices[z.v]] for i in self._matrices]
            _add(parts, [drawn[z.left_key][i] for i in self._matrices], c * z.scale)

    def _replace_forwards(self, model: nn.Module) -> None:
        """Makes the model's layers compute with A and V."""
        index = {storage_key(p): i for i, p in enumerate(self.space.parameters)}
        covered: set[int] = set()
        kind = factored(self._before_reading)
        for path, module in model.named_modules():
            held = (
                (n, index.get(storage_key(p))) for n, p in module.named_parameters(recurse=False)
            )
            own = {name: i for name, i in held if i is not None}
            if own and (forward := self._layer(module, own, path)) is not None:
                self._forwards.append(ReplacedForward.into(module, forward))
                covered.update(own.values())
        for i in sorted({*range(len(self.space.names))} - covered):
            layers = "linear, embedding or normalisation layer"
            raise ValueError(f"restore=factors: {self.space.names[i]} belongs to no {layers}")
        for name, p in model.named_parameters():
            if p.dim() > 1 and type(p) is nn.Parameter and storage_key(p) in index:
                self._parameters[p] = name
                p.__class__ = kind  # type: ignore[assignment]

    def _plain(self, forward: Forward, *args: Any, **kwargs: Any) -> Tensor:
        """Returns what a layer's own forward returns, which reads W."""
        self._inside += 1
        try:
            return forward(*args, **kwargs)
        finally:
            self._inside -= 1

    def _layer(self, module: nn.Module, own: Mapping[str, int], path: str) -> Forward | None:
        """Returns a layer's forward at the branches' points, or None if it is of no known kind."""
        plain = module.forward
        if all(self._tensors[i].dim() < 2 for i in own.values()):
            return None if list(module.children()) else self._small(module, plain, own, path)
        weight, bias = own.get("weight"), own.get("bias")
        if weight is None or own.keys() - {"weight", "bias"}:
            return None
        if type(module).forward is nn.Linear.forward:
            return self._product(plain, weight, bias, path, transposed=False)
        if type(module).__name__ == "Conv1D":  # transformers': y = x W + b
            return self._product(plain, weight, bias, path, transposed=True)
        if isinstance(module, nn.Embedding) and module.max_norm is None and bias is None:
            return self._lookup(module, plain, weight, path)
        return None

    def _product(
        self, plain: Forward, weight: int, bias: int | None, path: str, transposed: bool
    ) -> Forward:
        """A linear layer: adds (x V) Lᵀ, or (x L) Vᵀ if W is transposed, L = A + Σ c_j U_j; and a bias's Σ c_j z_j."""

        def forward(x: Tensor) -> Tensor:
            y = self._plain(plain, x)
            if not self._differ(weight, bias):
                return y
            first, second = self._v[weight], self._left(weight)
            if transposed:
                first, second = second, first
            rows = self._split(x, path).flatten(1, -2).float() @ first.mT  # (n, T, w)
            if bias is None or self._branches is None:
                more = rows @ second  # (n, T, out)
            else:
                shift = self._branches[bias][:, None]  # (n, 1, out)
                more = torch.baddbmm(shift, rows, second.expand(len(rows), -1, -1))
            return y.add_(more.view_as(y))

        return forward

    def _lookup(self, module: nn.Module, plain: Forward, weight: int, path: str) -> Forward:
        """An embedding: adds L[ids] Vᵀ; the layer itself looks L up, in a table of all branches' L side by side."""

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            y = self._plain(plain, *args, **kwargs)
            if not self._differ(weight):
                return y
            if y.dim() < 3:
                raise ValueError(f"{path}: its rows cannot be told to be of one branch or another")
            left = self._left(weight)
            with self._holding(module, {"weight": left.flatten(0, 1).T}):
                found = plain(*args, **kwargs)  # (n · P, L, n · w)
            found = self._split(found, path).flatten(1, 2).unflatten(-1, left.shape[:2])
            mine = found.diagonal(dim1=0, dim2=2).movedim(-1, 0)  # (n, T, w)
            return y.add_((mine @ self._v[weight]).view_as(y))

        return forward

    def _small(
        self, module: nn.Module, plain: Forward, own: Mapping[str, int], path: str
    ) -> Forward:
        """A layer of biases and scales: runs branch by branch, on tensors that are displaced and rounded once."""

        def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            self._differ(*own.values())
            if self._branches is None:
                return plain(x, *args, **kwargs)
            parts = []
            for b, rows in enumerate(self._split(x, path)):
                there = {
                    name: (self._tensors[i] + self._branches[i][b]).to(self._tensors[i].dtype)
                    for name, i in own.items()
                }
                with self._holding(module, there):
                    parts.append(plain(rows, *args, **kwargs))
            return torch.cat(parts)

        return forward

    @contextmanager
    def _holding(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """While the body runs, the module computes with other tensors than its own."""
        held: dict[str, Any] = module._parameters
        self._lent.append((held, {name: held[name] for name in tensors}))
        held.update(tensors)
        try:
            yield
        finally:
            self.settle()

    def _differ(self, *tensors: int | None) -> bool:
        """Returns whether θ is other than its tensors; takes note of those that a probe is computed with."""
        if self._branches is not None and self._unread:
            for i in tensors:
                self._unread.pop(i, None)  # type: ignore[arg-type]
        return self._branches is not None or self._moved

    def _left(self, i: int) -> Tensor:
        """Returns (A + Σ c_j U_j)ᵀ of matrix `i` at every branch: (n, w, rows)."""
        return self.a[i][None] if self._branches is None else self._branches[i]

    def _split(self, x: Tensor, path: str) -> Tensor:
        """Returns x as one part per branch: (n, its rows, …).

        Raises:
            ValueError: If the branches have not as many rows each.
        """
        if x.shape[0] % self._count:
            raise ValueError(f"{path}: {x.shape[0]} rows are not those of {self._count} branches")
        parts: Tensor = x.unflatten(0, (self._count, -1))
        return parts


def _low_rank(z: Direction) -> LowRank:
    if not isinstance(z, LowRank):
        raise TypeError("restore=factors moves along directions of low rank alone")
    return z


def _add(out: list[Tensor], more: list[Tensor], alpha: float) -> None:
    """Adds alpha times each of `more` to each of `out`, in place."""
    if out:
        torch._foreach_add_(out, more, alpha=alpha)


def _fold(p: Tensor, a: Tensor, v: Tensor) -> None:
    """W ← W + A Vᵀ: (rows, columns), (w, rows), (w, columns). No matrix product: TF32 or a library would round it."""
    rows = max(1, FOLD // v.shape[1])
    for part, a_part in zip(p.split(rows), a.split(rows, dim=1), strict=True):
        total = part.float()  # `part` itself where that is float32
        for a_r, v_r in zip(a_part, v, strict=True):
            total.addcmul_(a_r[:, None], v_r)
        if total is not part:
            part.copy_(total)
