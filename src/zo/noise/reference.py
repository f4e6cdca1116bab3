"""Philox noise by numpy, as `zo.noise.philox` defines it: the fallback without numba, and the reference of tests."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from zo.noise import philox
from zo.noise.engines import Move, PhiloxEngine, ProgramCall, flat_array
from zo.noise.keys import NoiseKey
from zo.noise.program import (
    ADDED,
    DRAW,
    FULL,
    FUSED,
    KEEP,
    OUTER,
    OVER,
    READ,
    ROOT,
    ROUND,
    SIGN,
    TIMES,
    WRITE,
)

CHUNK = 2**18
"""Values at a time; drawing takes about fifty times their memory."""

FUNCTIONS: dict[int, Callable[..., Tensor]] = {
    FUSED: torch.addcmul,
    ADDED: lambda a, b, c: a + c * b,
    TIMES: torch.mul,
    OVER: torch.div,
    ROOT: lambda x, *_: torch.from_numpy(
        np.sqrt(x.numpy())
    ),  # torch's is not always rounded to nearest
    SIGN: lambda x, *_: x.sign(),
}
"""Operations of programs on tensors."""


class NumpyEngine(PhiloxEngine):
    """Philox noise on the CPU, without a compiler."""

    backend = "philox-cpu"
    runs_programs = True

    def _run(self, out: Tensor, theta: Tensor | None, move: Move) -> None:
        tensor, terms, keep, start, scale, rounding, rows, pending, signs, limit = move
        for part, at, of in _parts(out, start, rows):
            if theta is None:
                drawn = philox.values(terms[0][1], tensor, at, len(part), signs)
                part.copy_(torch.from_numpy(drawn))
                continue
            total = before = theta.view(-1)[of].float().numpy()
            root = None if scale is None else np.sqrt(scale.view(-1)[of].float().numpy())
            for sum_of, factor in ((pending, 1.0), (terms, keep)):
                total = total * np.float32(factor)
                for c, key in sum_of:
                    z = philox.values(key, tensor, at, len(part), signs)
                    total += np.float32(c) * (z if root is None else z / root)
                if sum_of is pending and pending:
                    total = torch.from_numpy(total).to(out.dtype).float().numpy()
            if limit is not None:
                small = np.abs(before) <= float(limit)
                total = np.where(small, total, np.float32(keep) * before)
            if rounding is None:
                part.copy_(torch.from_numpy(total))
            else:
                _round(part, total, tensor, rounding, at)

    def _run_program(self, *call: *ProgramCall) -> None:
        program, lists, positions, keeps = call
        for j, i in enumerate(positions):
            tensors, made = [of[j].view(-1) for of in lists], dict[int, Tensor]()
            size, numbers = len(tensors[0]), {KEEP: float(keeps[j])}
            for step in program.steps:
                operands = [made[v] for v in (step.a, step.b, step.c) if v >= 0]
                at = tensors[step.array]
                if step.code == READ:
                    found = at.to(torch.float32, copy=True)
                elif step.code == DRAW:
                    signs, key = step.key in program.signs, program.keys[step.key]
                    found = self.draw_(torch.empty(size), key, i, signs)
                elif step.code in (FULL, KEEP):
                    found = torch.full((size,), numbers.get(step.code, step.number))
                elif step.code == ROUND:
                    found = operands[0].to(at.dtype).float()
                elif step.code == OUTER:
                    found = _outer(lists[step.array][j], lists[step.key][j], step.number)
                elif step.code != WRITE:
                    number = torch.tensor(step.number, dtype=torch.float32)
                    operands += [number] * (
                        len(operands) < (2 if step.code in (TIMES, OVER) else 3)
                    )
                    found = FUNCTIONS[step.code](*operands)
                elif step.key < 0:
                    at.copy_(operands[0])
                else:
                    rounding = program.keys[step.key]
                    self.add_(at, operands[0], Move(i, [], rounding=rounding))
                made[step.to] = found


def _outer(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Returns the values of scale · U Vᵀ of Uᵀ and Vᵀ; those of `left` where `right` is empty."""
    if not right.numel():
        return left.reshape(-1).clone()
    total = left[0][:, None] * right[0]
    for u, v in zip(left[1:], right[1:], strict=True):
        total.addcmul_(u[:, None], v)
    return total.mul_(scale).view(-1)


def _parts(out: Tensor, start: int, rows: Tensor | None) -> Iterator[tuple[Tensor, int, slice]]:
    """Yields (flat part of out, its position in the tensor, its slice of theta)."""
    if rows is not None:
        width = out.shape[1]
        for line, row in zip(out, rows.tolist(), strict=True):
            for part, at, _ in _parts(line, row * width, None):
                yield part, at, slice(at, at + len(part))
        return
    flat = out.view(-1)
    for i in range(0, len(flat), CHUNK):
        part = flat[i : i + CHUNK]
        yield part, start + i, slice(i, i + len(part))


def _round(out: Tensor, total: np.ndarray, tensor: int, key: NoiseKey, start: int) -> None:
    """Rounds a part stochastically."""
    rounded = philox.rounded_bfloat16 if out.dtype == torch.bfloat16 else philox.rounded_float16
    bits = rounded(total, philox.words(key, tensor, start, len(total)))
    flat_array(out)[:] = bits.view(flat_array(out).dtype)
