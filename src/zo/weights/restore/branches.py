"""Layers that compute at several points of θ, called branches, in one batch: each row belongs to one branch.

A branch's matrix is W + L Rᵀ, with L and R thin. A linear layer computes x Wᵀ for all rows together, and adds
(x R) Lᵀ to those of each branch. R is one for all branches, or each branch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from zo.weights.directions import uncast
from zo.weights.restore.base import RestoreError

Forward: TypeAlias = Callable[..., Tensor]


class BranchedLayers:
    """The forwards of a model's layers at the branches' points.

    The layers are `nn.Linear`, transformers' `Conv1D`, `nn.Embedding` with its subclasses whose output is linear in the
    table, and layers without layers of their own whose trainable tensors have one dimension, such as norms. The rows of
    their first input are those of branch 0, then as many of branch 1, and so on.

    Args:
        tensors: θ's tensors, which hold W.
        a: Aᵀ of each matrix, (w, rows): θ = W + A Vᵀ without a branch.
        v: V of each matrix, (columns, w).

    Attributes:
        count: Number of branches.
        left: Lᵀ of each matrix at every branch, (n, w, rows), and of each vector its displacement, (n, values); None is
            θ.
        alone: Lᵀ of each matrix at the only branch, (w, rows), if there is but one, whose R is V.
        right: Rᵀ of each matrix at every branch, (n, w, columns); None is V at all branches.
        there: Each vector at every branch, (n, values), rounded once, by its position.
        moved: Whether A may be other than 0.
        thread: Which has displaced the layers; the calls of another one would share its tensors.
    """

    def __init__(self, tensors: Sequence[Tensor], a: list[Tensor], v: list[Tensor]):
        self._tensors, self._a, self._v = tensors, a, v
        self.count = 1
        self.left: list[Tensor] | None = None
        self.alone: list[Tensor] | None = a
        self.right: list[Tensor] | None = None
        self.there: Mapping[int, Tensor] = {}
        self.moved = False
        self.thread = 0
        # Thread -> its calls of layers' own forwards that are under way
        self._inside: dict[int, int] = {}
        self._lent: list[tuple[dict[str, Any], dict[str, Any]]] = []
        # Kinds of norms, and whether they take a weight of each row's own.
        self._together: dict[type[nn.Module], bool] = {}
        # Names of layers with a forward of their own, until it is compared with what is computed in its place.
        self._unproven: set[str] = set()

    @property
    def inside(self) -> bool:
        """Whether this thread, or what a compiler has made of the call, is in a layer's own forward."""
        return bool(self._inside.get(_thread()) or self._inside.get(0))

    def forward_of(self, module: nn.Module, own: Mapping[str, int], path: str) -> Forward | None:
        """Returns a layer's forward at the branches' points, or None if it is of no known kind.

        Args:
            module: The layer.
            own: Its trainable tensors' names, and their positions.
            path: Its name in the model.
        """
        plain = module.forward
        looks_up = isinstance(module, nn.Embedding)
        known = nn.Embedding.forward if looks_up else type(module).forward
        if getattr(plain, "__func__", None) is not known:
            self._unproven.add(path)
        if all(self._tensors[i].dim() < 2 for i in own.values()):
            return None if list(module.children()) else self._small(module, plain, own, path)
        weight, bias = own.get("weight"), own.get("bias")
        if weight is None or own.keys() - {"weight", "bias"}:
            return None
        if type(module).forward is nn.Linear.forward:
            return self._product(module, plain, weight, bias, path, transposed=False)
        kind = type(module)
        if (
            f"{kind.__module__}.{kind.__name__}" == "transformers.pytorch_utils.Conv1D"
        ):  # y = x W + b
            return self._product(module, plain, weight, bias, path, transposed=True)
        if looks_up and module.max_norm is None and bias is None:
            return self._lookup(module, plain, weight, path)
        return None

    def displace(
        self,
        count: int,
        left: list[Tensor] | None,
        right: list[Tensor] | None,
        there: Mapping[int, Tensor],
        alone: list[Tensor] | None = None,
    ) -> None:
        """Has the layers compute at other branches; see the attributes."""
        self.count, self.left, self.right, self.there = count, left, right, there
        self.alone, self.thread = self._a if left is None else alone, get_ident()

    def restore_tensors(self) -> None:
        """Restores the modules' own tensors, also after an interrupted call."""
        for held, own in self._lent:
            held.update(own)
        self._lent = []
        self._inside.clear()

    def _plain(self, forward: Forward, *args: Any, **kwargs: Any) -> Tensor:
        """Returns what a layer's own forward returns, which reads W."""
        own = _thread()
        self._inside[own] = self._inside.get(own, 0) + 1
        try:
            return forward(*args, **kwargs)
        finally:
            self._inside[own] = self._inside.get(own, 1) - 1

    def _product(
        self,
        module: nn.Module,
        plain: Forward,
        weight: int,
        bias: int | None,
        path: str,
        transposed: bool,
    ) -> Forward:
        """A linear layer: adds (x R) Lᵀ, or (x L) Rᵀ if W is transposed; and a bias's displacement."""
        w, kind = self._tensors[weight], self._tensors[weight].device.type
        own, linear = module._parameters, nn.functional.linear
        b = None if bias is None else self._tensors[bias]
        direct = not transposed and path not in self._unproven

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            if direct and len(args) == 1 and not kwargs and _reads_plainly(kind):
                y = linear(args[0], w, own["bias"] if b is None else b)
                if not self._differ():
                    return y
                return self._displaced(y, args[0], weight, bias, False, path)
            y = self._plain(plain, *args, **kwargs)
            if not self._differ():
                return y
            (x,) = (*args, *kwargs.values())
            if path in self._unproven:
                product = self._plain(type(module).forward, module, x)
                if not (isinstance(y, Tensor) and _equal_but_for_rounding(y, product)):
                    raise _refused(path, module, "has a forward of its own, which computes more")
                self._unproven.remove(path)
            with uncast(x.device):
                return self._displaced(y, x, weight, bias, transposed, path)

        return forward

    def _displaced(
        self, y: Tensor, x: Tensor, weight: int, bias: int | None, transposed: bool, path: str
    ) -> Tensor:
        """Adds to y, (…, out), the displacement for x, (…, in): (x R) Lᵀ, or (x L) Rᵀ, and a bias's own."""
        simple = not transposed and (bias is None or self.left is None) and y.is_contiguous()
        batched = x.dim() > 1 and not torch._C._are_functorch_transforms_active()
        if simple and batched and self.alone is not None and x.dtype == y.dtype == torch.float32:
            rows = x.flatten(0, -2).mm(self._v[weight])
            y.flatten(0, -2).addmm_(rows, self.alone[weight])
            return y
        x = x if x.dim() > 1 else x[None]
        count = self._branches_of(x, path)
        first, second = self._right(weight), self._left(weight)
        if transposed:
            first, second = second, first
        x = x if x.dtype == torch.float32 else x.float()
        if first.dim() == 2:
            rows = x.flatten(0, -2).mm(first.mT).view(count, -1, len(first))  # (n, T, w)
        else:
            rows = x.flatten(0, -2).unflatten(0, (count, -1)) @ first.mT
        shift = None
        if bias is not None and self.left is not None:
            shift = self.left[bias][:, None]  # (n, 1, out)
        if self.right is not None and y.dtype == torch.float32:
            return _add_in_place(y, rows, second, shift)
        if shift is not None:
            more = torch.baddbmm(shift, rows, second.expand(count, -1, -1))
        elif second.dim() == 3:
            more = torch.bmm(rows, second)  # (n, T, out)
        else:
            more = rows @ second
        return y.add_(more.view_as(y))

    def _lookup(self, module: nn.Module, plain: Forward, weight: int, path: str) -> Forward:
        """An embedding: adds L[ids] Rᵀ."""

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            y = self._plain(plain, *args, **kwargs)
            if not self._differ():
                return y

            def look_up(table: Tensor) -> Tensor:
                found = self._looked_up(module, plain, table, *args, **kwargs)
                return found if found.dim() > 2 or self.count > 1 else found[None]

            if path in self._unproven:
                self._check_lookup(look_up, y, module, weight, path)
            if y.dim() < 3 and self.count > 1:
                raise _refused(path, module, "has rows that cannot be told apart by branch")
            find = self._shared_rows if self.right is None else self._own_rows
            found = find(look_up, weight, path)
            with uncast(y.device):
                return y.add_((found @ self._right(weight)).view_as(y))

        return forward

    def _check_lookup(
        self, look_up: Forward, y: Any, module: nn.Module, weight: int, path: str
    ) -> None:
        """Compares an embedding's output for random tables with a multiple of their rows, once.

        Raises:
            RestoreError: If it returns anything else.
        """
        w = self._tensors[weight]
        generator = torch.Generator().manual_seed(0)
        table = torch.rand(len(w), 3, generator=generator).add_(0.5).to(w.device)
        ones, numbers = torch.ones_like(table), torch.arange(len(w), device=w.device).float()
        try:
            y = y if y.dim() > 2 or self.count > 1 else y[None]
            found, factor = look_up(table), look_up(ones)
            ids = look_up(numbers[:, None] * ones) / torch.where(factor == 0, 1, factor)
            rows = ids[..., 0].round().long()
            same = torch.allclose(found, factor * table[rows], 1e-4)
            same &= torch.allclose(
                y, factor[..., :1].to(y.dtype) * w[rows], 4 * torch.finfo(w.dtype).eps
            )
        except (RuntimeError, IndexError, AttributeError, TypeError, ValueError):
            same = False
        if not same:
            raise _refused(path, module, "computes more than a lookup in its table")
        self._unproven.remove(path)

    def _looked_up(
        self, module: nn.Module, plain: Forward, table: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Returns what an embedding returns of another table."""
        return self._with(module, {"weight": table}, plain, *args, **kwargs)

    def _shared_rows(self, look_up: Forward, weight: int, path: str) -> Tensor:
        """Returns L[ids] of each branch, (n, T, w), by one lookup in the L of all branches side by side."""
        left = self._left(weight)
        found = look_up(left.flatten(0, 1).T)  # (n · P, L, n · w)
        found = self._split(found, path).flatten(1, 2).unflatten(-1, left.shape[:2])
        mine: Tensor = found.diagonal(dim1=0, dim2=2).movedim(-1, 0)
        return mine

    def _own_rows(self, look_up: Forward, weight: int, path: str) -> Tensor:
        """Returns L[ids] of each branch, (n, T, w): a lookup in a table of row numbers and ones gives ids and scale."""
        left = self._left(weight)
        numbers = torch.arange(left.shape[2], device=left.device, dtype=torch.float32)
        found = self._split(look_up(torch.stack([numbers, torch.ones_like(numbers)], 1)), path)
        number, factor = found.flatten(1, 2).float().unbind(-1)  # (n, T)
        ids = (number / torch.where(factor == 0, 1, factor)).round_().long()
        ids = ids[:, None].expand(-1, left.shape[1], -1)
        return left.gather(2, ids).mul_(factor[:, None]).mT

    def _small(
        self, module: nn.Module, plain: Forward, own: Mapping[str, int], path: str
    ) -> Forward:
        """A layer of biases and scales: computes with displaced tensors, rounded once."""

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            if self.left is None:
                return self._plain(plain, *args, **kwargs)
            self._differ()
            there = {name: self.there[i] for name, i in own.items()}
            if self.count == 1:
                single = {name: t[0] for name, t in there.items()}
                return self._with(module, single, plain, *args, **kwargs)
            inputs = [*args, *kwargs.values()]
            x = inputs[0]
            simple = len(inputs) == 1 and path not in self._unproven
            if simple and self.right is not None and x.dim() > 2:
                found = self._at_once(module, plain, self._split(x, path), there)
                if found is not None:
                    return found
            return self._one_by_one(module, plain, there, path, *args, **kwargs)

        return forward

    def _one_by_one(
        self,
        module: nn.Module,
        plain: Forward,
        there: Mapping[str, Tensor],
        path: str,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Returns the layer's output, branch by branch, each with its own tensors and its rows of all inputs."""
        first = len([*args, *kwargs.values()][0]) if self.count > 1 else 0

        def of_branch(b: int, given: Any) -> Any:
            rows = isinstance(given, Tensor) and given.dim() and len(given) == first
            return self._split(given, path)[b] if rows else given

        outputs = []
        for b in range(self.count):
            mine = [of_branch(b, given) for given in args]
            named = {name: of_branch(b, given) for name, given in kwargs.items()}
            tensors = {name: t[b] for name, t in there.items()}
            outputs.append(self._with(module, tensors, plain, *mine, **named))
        return torch.cat(outputs) if self.count > 1 else outputs[0]

    def _at_once(
        self, module: nn.Module, plain: Forward, parts: Tensor, there: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Returns the same from one call, or None where the layer needs tensors of one dimension.

        A layer norm is computed without its tensors, which are applied after it. Any other layer gets tensors with a
        row for each row of the input. The first call of a kind is compared with `_one_by_one`, bit for bit.
        """
        kind = type(module)
        if isinstance(module, nn.LayerNorm) and kind.forward is nn.LayerNorm.forward:
            shape, eps = module.normalized_shape, module.eps
            found = nn.functional.layer_norm(parts.float(), shape, None, None, eps)
            for name, combine in (("weight", torch.mul), ("bias", torch.add)):
                given = there.get(name, getattr(module, name))
                if given is not None:
                    each = given.dim() > 1  # else it is not trained
                    found = combine(found, (_broadcast(given, found) if each else given).float())
            return found.to(parts.dtype).flatten(0, 1)
        if self._together.get(kind) is False:
            return None
        spread = {
            name: t.repeat_interleave(parts.shape[1], 0).view(
                -1, *[1] * (parts.dim() - 3), t.shape[1]
            )
            for name, t in there.items()
        }
        try:
            found = self._with(module, spread, plain, parts.flatten(0, 1))
        except RuntimeError:  # its shapes do not fit
            self._together[kind] = False
            return None
        if kind not in self._together:
            single = self._one_by_one(module, plain, there, "", parts.flatten(0, 1))
            self._together[kind] = torch.equal(found, single)
        return found if self._together[kind] else None

    def _with(
        self,
        module: nn.Module,
        tensors: Mapping[str, Tensor],
        forward: Forward,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Returns what a module's forward returns while the module has other tensors."""
        held: dict[str, Any] = module._parameters
        own = {name: held[name] for name in tensors}
        self._lent.append((held, own))
        held.update(tensors)
        try:
            return forward(*args, **kwargs)
        finally:
            held.update(own)
            self._lent[:] = [of for of in self._lent if of[1] is not own]

    def _differ(self) -> bool:
        """Returns whether θ differs from the weights. Raises RestoreError in a probe of another thread."""
        if self.left is not None and _thread() not in (0, self.thread):
            what = "the closure calls the model in another thread, whose calls would share the displaced weights"
            raise RestoreError("factors", what, "snapshot")
        return self.left is not None or self.moved

    def _left(self, i: int) -> Tensor:
        """Returns Lᵀ of matrix `i` at every branch: (n, w, rows)."""
        return self._a[i][None] if self.left is None else self.left[i]

    def _right(self, i: int) -> Tensor:
        """Returns Rᵀ of matrix `i`: (w, columns), or (n, w, columns)."""
        return self._v[i].mT if self.right is None else self.right[i]

    def _split(self, x: Tensor, path: str) -> Tensor:
        """Returns x split by branch: (n, rows of a branch, …).

        Raises:
            RestoreError: If the rows cannot be divided equally.
        """
        parts: Tensor = x.unflatten(0, (self._branches_of(x, path), -1))
        return parts

    def _branches_of(self, x: Tensor, path: str) -> int:
        """Returns the number of branches; raises RestoreError if rows of x cannot be divided among them."""
        if x.shape[0] % self.count:
            what = f"{path} has {x.shape[0]} rows, which are not those of {self.count} branches"
            raise RestoreError("factors", what, "snapshot")
        return self.count


def _thread() -> int:
    """Returns this thread's number; 0 while a compiler follows the call, which cannot ask."""
    return 0 if torch.compiler.is_compiling() else get_ident()


def _reads_plainly(device: str) -> bool:
    """Returns whether a layer may compute with a tensor in its parameter's place, whose reads cost less."""
    watched = torch.is_grad_enabled() or torch.is_autocast_enabled(device)
    return not (watched or torch.compiler.is_compiling())


def _equal_but_for_rounding(y: Tensor, own: Tensor) -> bool:
    """Returns whether two products differ by roundings of their dtype alone."""
    share = max(4 * torch.finfo(own.dtype).eps, 1e-5)
    return torch.allclose(y, own, share, share * float(own.abs().max()), equal_nan=True)


def _add_in_place(y: Tensor, rows: Tensor, second: Tensor, shift: Tensor | None) -> Tensor:
    """Returns y + rows · second + shift, in y: (n · P, …, out), (n, T, w), (n, w, out), (n, 1, out)."""
    parts = y.view(len(rows), -1, y.shape[-1])
    if second.shape[1] == 1:
        parts.addcmul_(rows, second)
    else:
        parts.baddbmm_(rows, second)
    if shift is not None:
        parts.add_(shift)
    return y


def _refused(path: str, module: nn.Module, what: str) -> RestoreError:
    return RestoreError("factors", f"{path} ({type(module).__name__}) {what}", "snapshot")


def _broadcast(values: Tensor, rows: Tensor) -> Tensor:
    """Returns each branch's values, (n, values), in a shape that broadcasts over its rows, (n, P, …, values)."""
    return values.view(len(values), *[1] * (rows.dim() - 2), values.shape[1])
