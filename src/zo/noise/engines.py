"""What every engine can do that draws noise."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from zo.noise import torch_generator
from zo.noise.keys import NoiseKey
from zo.noise.philox import POSITIONS

KeyedTerms: TypeAlias = Sequence[tuple[float, NoiseKey]]
"""A sum of coefficient times standard normals, or times signs."""


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Of tensors that a Philox engine moves; float64 is drawn and added in separate steps."""


class Move(NamedTuple):
    """What one pass adds to a tensor; `PhiloxEngine.add_` explains each, and `keep` is 1 − decay."""

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
    """Draws standard normals, and random signs.

    Attributes:
        backend: Its name and all that its numbers depend on beside the key; equal names mean equal numbers.
    """

    backend: str

    @abstractmethod
    def normal_(self, out: Tensor, key: NoiseKey, tensor: int) -> Tensor:
        """Fills `out` in place with the standard normals of tensor `tensor` under `key`.

        Args:
            out: A contiguous float32 tensor.
            key: See `NoiseKey`.
            tensor: Position of the tensor in its `ParameterSpace`, from 0.

        Returns:
            `out`.
        """

    @abstractmethod
    def rademacher_(self, out: Tensor, key: NoiseKey, tensor: int) -> Tensor:
        """Fills `out` with independent signs, +1 or −1 with probability ½ each; else as `normal_`."""


class TorchEngine(Engine):
    """Noise of torch's generator, see `zo.noise.torch_generator`; only whole tensors.

    On CUDA the order of the values depends on the GPU's number of multiprocessors and on torch's sampler. `backend`
    therefore holds the GPU's model and torch's version there.

    Args:
        devices: Those of the tensors, as `cpu` or `cuda:1`; none stand for `cpu`.
    """

    def __init__(self, *devices: str):
        self.backend = " + ".join(sorted({_sampler(device) for device in devices or ("cpu",)}))

    def normal_(self, out: Tensor, key: NoiseKey, tensor: int) -> Tensor:
        """As `Engine.normal_`."""
        return torch_generator.normal_(out, key, tensor)

    def rademacher_(self, out: Tensor, key: NoiseKey, tensor: int) -> Tensor:
        """As `Engine.rademacher_`."""
        return torch_generator.rademacher_(out, key, tensor)


class PhiloxEngine(Engine):
    """Counter-based noise, see `zo.noise.philox`: any part of a tensor, and sums of many draws in one pass.

    Whatever `theta`'s dtype, float32, bfloat16 or float16, the arithmetic is float32, term by term in their order,
    every product and every sum rounded on its own, and the result is rounded to the dtype once. `start` and `rows` say
    which flat positions of the tensor are meant; values do not depend on what else is drawn.

    Attributes:
        kernels: Module of `zo.optim.kernels` that holds the methods' passes with this engine's noise.
    """

    kernels: ClassVar[str]

    def normal_(
        self, out: Tensor, key: NoiseKey, tensor: int, start: int = 0, rows: Tensor | None = None
    ) -> Tensor:
        """As `Engine.normal_`, from a position on, or some rows.

        Args:
            out: A contiguous float32 tensor.
            key: See `NoiseKey`.
            tensor: Position of the tensor in its `ParameterSpace`, from 0.
            start: Flat position of the first value.
            rows: (r,), int64, on out's device: `out`, (r, w), gets the values of these rows of a matrix of width w.

        Returns:
            `out`.

        Raises:
            ValueError: If `out` is not contiguous float32, a position is not in [0, 2³⁴), or `rows` does not fit.
        """
        return self._checked_draw(out, Move(tensor, ((1.0, key),), start=start, rows=rows))

    def rademacher_(
        self, out: Tensor, key: NoiseKey, tensor: int, start: int = 0, rows: Tensor | None = None
    ) -> Tensor:
        """As `Engine.rademacher_`, from a position on, or some rows; arguments and errors as of `normal_`."""
        terms = ((1.0, key),)
        return self._checked_draw(out, Move(tensor, terms, start=start, rows=rows, signs=True))

    def _checked_draw(self, out: Tensor, move: Move) -> Tensor:
        _require(
            out.dtype == torch.float32 and out.is_contiguous(), "out: must be contiguous float32"
        )
        _check_positions(out, move.start, move.rows)
        if out.numel():
            self._draw(out, move)
        return out

    def add_(
        self,
        out: Tensor,
        theta: Tensor,
        tensor: int,
        terms: KeyedTerms,
        decay: float = 0.0,
        start: int = 0,
        scale: Tensor | None = None,
        rounding: NoiseKey | None = None,
        rows: Tensor | None = None,
        pending: KeyedTerms = (),
        signs: bool = False,
        limit: Tensor | None = None,
    ) -> Tensor:
        """Writes (1 − decay) θ + Σ c_j z_j into `out` in one pass.

        Args:
            out: Of theta's dtype, and its number of values; `theta` itself, or apart from it.
            theta: float32, bfloat16 or float16.
            tensor: Position of the tensor in its `ParameterSpace`, from 0.
            terms: (c_j, key of z_j), any number.
            decay: Share of θ that is taken away.
            start: Flat position of the first value of `theta` in the tensor that it is a part of.
            scale: H > 0, theta's shape, any of the three dtypes: every z_j is divided by √H.
            rounding: Key of the bits that round the result up or down at random; None rounds to nearest.
            rows: (r,), int64, on theta's device: `out`, (r, w), gets these rows of `theta`, (R, w), moved; on a GPU
                it is not checked that they are in [0, R).
            pending: (c_j, key of z_j) of a move that comes first: θ above is theta + Σ c_j z_j, rounded to nearest.
            signs: Whether all z_j are signs, +1 or −1, and not standard normals.
            limit: h, one number on theta's device: the z_j move the values with |θ| ≤ h alone. Not with `pending`.

        Returns:
            `out`.

        Raises:
            ValueError: If dtypes, shapes or positions do not fit, θ is float32 and `rounding` is given, or `limit` and
                `pending` are both given.
        """
        _require(theta.dtype in DTYPES, f"theta: cannot be {theta.dtype}")
        _require(out.dtype == theta.dtype, f"out: must be {theta.dtype}, as theta")
        _check_rounding(out, rounding)
        _check_positions(out, start, rows, theta)
        _require(scale is None or scale.shape == theta.shape, "scale: must have theta's shape")
        _require(limit is None or not pending, "limit: cannot be given with pending")
        if out.numel() == 0:
            return out
        whole = out if out.is_contiguous() else out.contiguous()
        theta = theta.contiguous()
        scale = None if scale is None else scale.contiguous()
        keep = 1.0 - decay
        self._add(
            whole,
            theta,
            Move(tensor, terms, keep, start, scale, rounding, rows, pending, signs, limit),
        )
        return out if whole is out else out.copy_(whole)

    def add_to_all_(
        self,
        tensors: Sequence[Tensor],
        terms: KeyedTerms,
        decays: Sequence[float],
        rounding: NoiseKey | None = None,
        pending: KeyedTerms = (),
        signs: bool = False,
        out: Sequence[Tensor] | None = None,
    ) -> None:
        """Moves all tensors of a `ParameterSpace`, in its order, as `add_` into `out`, or in place without it.

        `decays` has a share for each.
        """
        every = zip(tensors if out is None else out, tensors, decays, strict=True)
        for i, (to, t, decay) in enumerate(every):
            self.add_(to, t, i, terms, decay, rounding=rounding, pending=pending, signs=signs)

    def round_(
        self, out: Tensor, total: Tensor, tensor: int, rounding: NoiseKey, start: int = 0
    ) -> Tensor:
        """Rounds up or down at random.

        Args:
            out: bfloat16 or float16.
            total: float32, of out's shape.
            tensor: Position of the tensor in its `ParameterSpace`, from 0.
            rounding: Key of the bits.
            start: Flat position of the first value.

        Returns:
            `out`: one of the two neighbours of each value, such that the mean is the value; see `zo.noise.philox`.

        Raises:
            ValueError: If dtypes, shapes or positions do not fit.
        """
        _require(
            total.dtype == torch.float32 and total.shape == out.shape,
            "total: must be float32 of out's shape",
        )
        _check_rounding(out, rounding)
        _check_positions(out, start, None)
        if out.numel() == 0:
            return out
        whole = out if out.is_contiguous() else out.contiguous()
        self._add(whole, total.contiguous(), Move(tensor, [], start=start, rounding=rounding))
        return out if whole is out else out.copy_(whole)

    @abstractmethod
    def _draw(self, out: Tensor, move: Move) -> None:
        """`normal_`, or `rademacher_` if its `signs`, by the one key of a move; `out` is not empty."""

    @abstractmethod
    def _add(self, out: Tensor, theta: Tensor, move: Move) -> None:
        """`add_` of contiguous tensors that are not empty; theta's dtype may not be out's."""


def _sampler(device: str) -> str:
    """Returns the name of torch's sampler on a device."""
    kind = device.partition(":")[0]
    if kind != "cuda":
        return f"torch-{kind}"
    return f"torch-cuda ({torch.cuda.get_device_name(device)}, torch {torch.__version__})"


def _check_positions(
    out: Tensor, start: int, rows: Tensor | None, theta: Tensor | None = None
) -> None:
    """Raises ValueError unless `out` is what `start` or `rows` speak of, in `theta` if there is one."""
    if rows is None:
        last = start + out.numel()
        _require(theta is None or theta.shape == out.shape, "out: must have theta's shape")
        _require(
            start >= 0 and last <= POSITIONS, f"positions {start} to {last}: must be in 0 to 2**34"
        )
        return
    _require(start == 0, "start: must be 0 where rows are given")
    _require(rows.dtype == torch.int64 and rows.dim() == 1, "rows: must be (r,) of int64")
    _require(
        out.dim() == 2 and len(out) == len(rows), "out: must be (r, w), a row for each of rows"
    )
    limit = POSITIONS // max(out.shape[1], 1)
    if theta is not None:
        _require(
            theta.dim() == 2 and theta.shape[1] == out.shape[1], "out: must be as wide as theta"
        )
        limit = len(theta)
    if rows.device.type == "cpu" and len(rows):
        low, high = (int(r) for r in rows.aminmax())
        _require(low >= 0 and high < limit, f"rows {low} to {high}: must be in 0 to {limit - 1}")


def _check_rounding(out: Tensor, rounding: NoiseKey | None) -> None:
    _require(
        rounding is None or out.dtype in (torch.bfloat16, torch.float16),
        "rounding: only bfloat16 and float16 are rounded at random",
    )


def _require(fits: bool, otherwise: str) -> None:
    if not fits:
        raise ValueError(otherwise)
