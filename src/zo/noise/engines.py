"""The interface of noise engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from zo.noise.keys import NoiseKey
from zo.noise.philox import POSITIONS, counter

if TYPE_CHECKING:
    from zo.noise.program import Program

KeyedTerms: TypeAlias = Sequence[tuple[float, NoiseKey]]
"""A sum of coefficient times standard normals, or times signs."""

ProgramCall: TypeAlias = tuple["Program", Sequence[Sequence[Tensor]], Sequence[int], Any]
"""A program, the lists of tensors that it reads and writes, the tensors' positions in their `ParameterSpace`, and a
factor of each, (tensors,), float32."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes that a Philox engine updates in one pass; float64 is drawn and added in separate steps."""


class Move(NamedTuple):
    """One pass over a tensor: θ ← keep · θ + Σ c_j z_j.

    Attributes:
        tensor: Position of the tensor in its `ParameterSpace`, from 0.
        terms: (c_j, key of z_j), any number.
        keep: Factor of θ: 1 − decay.
        start: Flat position of θ's first value in the full tensor.
        scale: H > 0, θ's shape, any of `DTYPES`: every z_j is divided by √H.
        rounding: Key of the bits of stochastic rounding; None rounds to nearest.
        rows: (r,), int64, on θ's device, in [0, R): only these rows of θ, (R, w), are updated. A GPU does not check the
            range.
        pending: (c_j, key of z_j) of a move that comes first: θ above is θ + Σ c_j z_j, rounded to nearest.
        signs: Whether all z_j are signs, +1 or −1, and not standard normals.
        limit: h, one number on θ's device: only values with |θ| ≤ h get z_j. Not with `pending`.
    """

    tensor: int
    terms: KeyedTerms
    keep: float = 1.0
    start: int = 0
    scale: Tensor | None = None
    rounding: NoiseKey | None = None
    rows: Tensor | None = None
    pending: KeyedTerms = ()
    signs: bool = False
    limit: Tensor | None = None


class Engine(ABC):
    """A noise engine: draws standard normals and random signs.

    Attributes:
        backend: Name of the numbers: engines of the same name draw the same values from the same key.
    """

    backend: str

    @abstractmethod
    def draw_(self, out: Tensor, key: NoiseKey, tensor: int, signs: bool = False) -> Tensor:
        """Fills `out` in place with the noise of tensor `tensor` under `key`.

        Args:
            out: A contiguous float32 tensor.
            key: See `NoiseKey`.
            tensor: Position of the tensor in its `ParameterSpace`, from 0.
            signs: Whether to draw signs, +1 or −1 with probability ½ each, and not standard normals.

        Returns:
            `out`.
        """


class PreparedProgram(ABC):
    """A program for tensors whose memory does not move before its last run."""

    @abstractmethod
    def __init__(self, *call: *ProgramCall): ...

    @abstractmethod
    def give(self, program: Program) -> None:
        """Has it run another program, of the same lists of tensors."""

    @abstractmethod
    def run_all(self) -> None:
        """Runs the program on all tensors."""

    @abstractmethod
    def run(self, chosen: Sequence[int], last: Sequence[Tensor]) -> None:
        """Runs a program that writes its last list alone on some tensors.

        Args:
            chosen: Which of each list.
            last: Written in place of its last list's tensors; of their shapes and dtypes.
        """


class TensorTable:
    """Tensors that are passed over together, again and again; prepared once by `PhiloxEngine.table`.

    The sequences stay those of the caller, who may put other tensors of the same shapes there.

    Args:
        engine: The engine.
        out: Where results are written, as of `PhiloxEngine.add_`: the tensors themselves, or other memory.
        thetas: The tensors.
        positions: Of each in its `ParameterSpace`; None is 0, 1, 2, ...
        decays: Whether decay applies to each; None is to all.

    Attributes:
        private: Whether `out` is the caller's alone, who sets its versions; its memory and θ's stay where they are.
    """

    private = False

    def __init__(
        self,
        engine: PhiloxEngine,
        out: Sequence[Tensor],
        thetas: Sequence[Tensor],
        positions: Sequence[int] | None = None,
        decays: Sequence[bool] | None = None,
    ):
        self.engine, self.out, self.thetas = engine, out, thetas
        self.positions = range(len(thetas)) if positions is None else positions
        self._decays = np.ones(len(thetas)) if decays is None else np.array(decays, np.float64)

    def add_(self, move: Move, decay: float = 0.0) -> None:
        """Applies a move to all tensors, as `PhiloxEngine.add_`.

        Args:
            move: The shared move, without scale, rows, limit and start; its `tensor` is not read.
            decay: Share that is taken away, beside `move.keep`, of tensors that decay applies to.
        """
        keeps = self.keeps(move.keep, decay)
        for j in range(len(self.thetas)):
            self.add_one_(j, move, keeps)

    def add_one_(self, j: int, move: Move, keeps: Any) -> None:
        """Applies a move to tensor j by a pass of its own."""
        move = move._replace(tensor=self.positions[j], keep=float(keeps[j]))
        self.engine.add_(self.out[j], self.thetas[j], move)

    def keeps(self, keep: float, decay: float) -> Any:
        """Returns the factor of each tensor, (tensors,), float32."""
        return (keep - decay * self._decays).astype(np.float32)


class Group(NamedTuple):
    """Tensors of one device and dtype in a table.

    Attributes:
        members: Their positions in the table.
        columns: (4, tensors): addresses that are written and that are read, where a tensor ends if they are counted
            through, and its position in its space.
        device: Their device.
        dtype: Their dtype.
    """

    members: Any
    columns: Any
    device: torch.device
    dtype: torch.dtype


class GroupedTable(TensorTable, ABC):
    """A table of which all tensors of a device and a dtype are passed over by one call.

    Addresses are read at each pass, so a tensor may move in memory, unless the table is `private`.
    """

    _addresses: Sequence[int] = ()
    _for: tuple[float, float] | None = None

    def add_(self, move: Move, decay: float = 0.0) -> None:
        """As `TensorTable.add_`."""
        if not (self.private and self._addresses):
            now = [*map(Tensor.data_ptr, self.thetas)]
            now += [] if self.out is self.thetas else map(Tensor.data_ptr, self.out)
            if now != self._addresses:
                self._enter(now)
        if self._for != (move.keep, decay):
            self._keeps, self._for = self.keeps(move.keep, decay), (move.keep, decay)
            self._passes = [self._pass_of(own, self._keeps[own.members]) for own in self._groups]
        for own, run in zip(self._groups, self._passes, strict=True):
            if move.rounding is not None and own.dtype == torch.float32:
                self.add_one_(own.members[0], move, self._keeps)  # which refuses it
            run(move)
        if not self.private:
            increment_version(self.out)
        for j in self._alone:
            self.add_one_(j, move, self._keeps)

    @abstractmethod
    def _pass_of(self, own: Group, keeps: Any) -> Callable[[Move], None]:
        """Returns the pass over a group, with a factor for each tensor, (tensors,), float32."""

    def _enter(self, now: Sequence[int]) -> None:
        """Enters the tensors; those that are not contiguous, or change their dtype, get a pass of their own each."""
        kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        addresses = np.array(now, np.int64)
        self._alone = list[int]()
        for j, (out, theta) in enumerate(zip(self.out, self.thetas, strict=True)):
            check_positions(out, 0, None, theta)
            if not out.numel():
                continue
            lies = out.is_contiguous() and theta.is_contiguous()
            if lies and out.dtype == theta.dtype and theta.dtype in DTYPES:
                kinds.setdefault((out.device, out.dtype), []).append(j)
            else:
                self._alone.append(j)
        count, positions = len(self.out), np.array(self.positions, np.int64)
        counter(NoiseKey(0, 0, 0, 0), int(positions.max(initial=0)))
        self._groups = []
        for kind, found in kinds.items():
            members = np.array(found)
            ends = np.cumsum([self.out[j].numel() for j in found])
            columns = addresses[members - count], addresses[members], ends, positions[members]
            self._groups.append(Group(members, np.stack(columns), *kind))
        self._addresses, self._for = now, None


class PhiloxEngine(Engine):
    """Counter-based noise, see `zo.noise.philox`: any part of a tensor, and sums of many draws in one pass.

    Whatever θ's dtype, the arithmetic is float32, term by term in their order, every product and every sum rounded
    separately, and the result is rounded to the dtype once. Values do not depend on other draws. Passes count as writes
    (`_version`), for layers that keep what they computed of a weight until it is written.

    Attributes:
        runs_programs: Whether it runs programs.
        prepared: How; without, it has `_run_program`.
        tables: What prepares passes over many tensors.
    """

    runs_programs: ClassVar[bool] = False
    prepared: ClassVar[type[PreparedProgram] | None] = None
    tables: ClassVar[type[TensorTable]] = TensorTable

    def run(self, *call: *ProgramCall) -> bool:
        """Runs a program on lists of tensors of equal lengths and sizes.

        Returns:
            Whether it was run: not if a tensor is not contiguous, or of none of `DTYPES`.
        """
        program, lists, *_ = call
        if runs := self._fits_program(lists):
            self._run_program(*call)
            for array in program.written:
                increment_version(lists[array])
        return runs

    def prepare(self, *call: *ProgramCall) -> PreparedProgram | None:
        """Prepares a program for runs on some of the tensors at a time.

        Returns:
            None if `run` would not run it, or the engine prepares none.
        """
        return self.prepared(*call) if self.prepared and self._fits_program(call[1]) else None

    def _fits_program(self, lists: Sequence[Sequence[Tensor]]) -> bool:
        fits = (all(map(Tensor.is_contiguous, of)) for of in lists)
        return (
            self.runs_programs and all(fits) and {t.dtype for of in lists for t in of} <= {*DTYPES}
        )

    def _run_program(self, *call: *ProgramCall) -> None:
        """`run` of tensors that fit."""
        assert self.prepared is not None
        self.prepared(*call).run_all()

    def draw_(
        self,
        out: Tensor,
        key: NoiseKey,
        tensor: int,
        signs: bool = False,
        start: int = 0,
        rows: Tensor | None = None,
    ) -> Tensor:
        """As `Engine.draw_`, from a flat position on, or these rows, (r,) of int64, of a matrix as wide as `out`.

        Raises:
            ValueError: If `out` is not contiguous float32, a position is not in [0, 2³⁴), or `rows` does not fit.
        """
        fits = out.dtype == torch.float32 and out.is_contiguous()
        _require(fits, "out: must be contiguous float32")
        check_positions(out, start, rows)
        if out.numel():
            self._run(out, None, Move(tensor, ((1.0, key),), start=start, rows=rows, signs=signs))
        return out

    def draw_all_(self, out: Sequence[Tensor], key: NoiseKey, positions: Sequence[int]) -> None:
        """Fills contiguous float32 tensors with the normals of the tensors at `positions`, each as `draw_`."""
        from zo.noise.program import Program  # here: most methods need none

        if self.prepared is None:
            for t, i in zip(out, positions, strict=True):
                self.draw_(t, key, i)
            return
        program = Program()
        program.write(0, program.draw(key))
        self._run_program(program, [out], positions, np.ones(len(out), np.float32))

    def add_(self, out: Tensor, theta: Tensor, move: Move) -> Tensor:
        """Applies a move to `theta` in one pass and writes the result into `out`.

        Args:
            out: `theta` itself, or separate memory of theta's shape, with `rows` (r, w). Of theta's dtype, or of a
                float32 theta bfloat16 or float16.
            theta: float32, bfloat16 or float16.
            move: See `Move`.

        Returns:
            `out`.

        Raises:
            ValueError: If dtypes, shapes or positions do not fit, `out` is float32 and `rounding` is given, or `limit`
                and `pending` are both given.
        """
        scale, rounds = move.scale, move.rounding is not None
        if theta.dtype not in DTYPES:
            raise ValueError(f"theta: cannot be {theta.dtype}")
        halves = out.dtype in (torch.bfloat16, torch.float16)
        if out.dtype != theta.dtype and not (halves and theta.dtype == torch.float32):
            raise ValueError(f"out: must be {theta.dtype}, as theta")
        _require(halves or not rounds, "rounding: only bfloat16 and float16 are rounded at random")
        check_positions(out, move.start, move.rows, theta)
        _require(scale is None or scale.shape == theta.shape, "scale: must have theta's shape")
        _require(move.limit is None or not move.pending, "limit: cannot be given with pending")
        if out.numel() == 0:
            return out
        whole = out if out.is_contiguous() else out.contiguous()
        move = move if scale is None else move._replace(scale=scale.contiguous())
        self._run(whole, theta.contiguous(), move)
        if whole is not out:
            return out.copy_(whole)
        increment_version(out)
        return out

    def table(
        self,
        out: Sequence[Tensor],
        thetas: Sequence[Tensor],
        positions: Sequence[int] | None = None,
        decays: Sequence[bool] | None = None,
    ) -> TensorTable:
        """Prepares passes over many tensors; arguments are those of `TensorTable`."""
        return self.tables(self, out, thetas, positions, decays)

    @abstractmethod
    def _run(self, out: Tensor, theta: Tensor | None, move: Move) -> None:
        """`add_`, or without theta `draw_`, of contiguous, non-empty tensors; their dtypes may differ."""


def check_positions(
    out: Tensor, start: int, rows: Tensor | None, theta: Tensor | None = None
) -> None:
    """Raises ValueError unless `out` fits `start` or `rows`, and `theta` if there is one."""
    if rows is None:
        last = start + out.numel()
        _require(theta is None or theta.shape == out.shape, "out: must have theta's shape")
        if start < 0 or last > POSITIONS:
            raise ValueError(f"positions {start} to {last}: must be in 0 to 2**34")
        return
    _require(start == 0, "start: must be 0 where rows are given")
    _require(rows.dtype == torch.int64 and rows.dim() == 1, "rows: must be (r,) of int64")
    fits = out.dim() == 2 and len(out) == len(rows)
    _require(fits, "out: must be (r, w), a row for each of rows")
    limit = POSITIONS // max(out.shape[1], 1)
    if theta is not None:
        fits = theta.dim() == 2 and theta.shape[1] == out.shape[1]
        _require(fits, "out: must be as wide as theta")
        limit = len(theta)
    if rows.device.type == "cpu" and len(rows):
        low, high = (int(r) for r in rows.aminmax())
        if low < 0 or high >= limit:
            raise ValueError(f"rows {low} to {high}: must be in 0 to {limit - 1}")


def _require(fits: bool, otherwise: str) -> None:
    if not fits:
        raise ValueError(otherwise)


def flat_array(tensor: Tensor) -> Any:
    """Returns a contiguous tensor as a flat array in its memory: bfloat16 as uint16, float16 as int16."""
    tensor = tensor.detach()
    if tensor.dtype == torch.float32:
        return tensor.numpy().reshape(-1)
    bits = tensor.view(torch.int16).numpy().reshape(-1)
    return bits.view(np.uint16) if tensor.dtype == torch.bfloat16 else bits
