"""Programs: several operations on every value of tensors in one pass, with noise that is drawn on the way.

A program is written once, value by value, as torch's functions would be: `Value` has the methods of a tensor that it
needs. All arithmetic is float32. Every operation rounds once: `add` with a factor rounds product and sum together, as
torch's own does where the processor can.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zo.noise import philox
from zo.noise.keys import NoiseKey

CODES = READ, WRITE, DRAW, FULL, KEEP, FUSED, ADDED, TIMES, OVER, ROOT, SIGN, ROUND, OUTER = range(
    13
)


class Step(NamedTuple):
    """An operation of a program.

    Attributes:
        code: One of `CODES`.
        to: The value that it makes; −1 of WRITE.
        a: The value that it reads first; −1 without.
        b: The second one.
        c: The third one.
        array: Position of the list of tensors that READ, WRITE, ROUND and OUTER refer to; −1 without.
        key: Position of the key that DRAW and WRITE take, and of the second list of OUTER; −1 without.
        rank: That of OUTER.
        number: The constant of FULL, the scale of OUTER, and of others in place of a last value.
    """

    code: int
    to: int
    a: int = -1
    b: int = -1
    c: int = -1
    array: int = -1
    key: int = -1
    rank: int = 0
    number: float = 0.0


class Program:
    """Operations in order, on the values of lists of tensors.

    Attributes:
        steps: The operations.
        keys: Keys of noise and of the bits of stochastic rounding; those of signs are in `signs`.
        signs: Positions of keys whose noise is signs, not normals.
        written: Positions of the lists that it writes.
        unrounded: Positions of lists of float32 tensors alone, to whose dtype nothing is rounded.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.keys: list[NoiseKey] = []
        self.signs: set[int] = set()
        self.written: set[int] = set()
        self.unrounded: set[int] = set()
        self._drawn: dict[tuple[NoiseKey, bool], Value] = {}
        self._values = 0

    def read(self, array: int) -> Value:
        """Returns the values of a list of tensors."""
        return self.put(READ, array=array)

    def write(self, array: int, value: Value, bits: NoiseKey | None = None) -> None:
        """Rounds a value to the tensors' dtype and writes it; stochastically by the words of a key, if one is given."""
        key = -1 if bits is None else self._enter(bits)
        self.written.add(array)
        self.steps.append(Step(WRITE, -1, value.at, array=array, key=key))

    def draw(self, key: NoiseKey, signs: bool = False) -> Value:
        """Returns the noise of a key; the second time, the same value."""
        if (key, signs) not in self._drawn:
            at = self._enter(key)
            self.signs |= {at} if signs else set()
            self._drawn[key, signs] = self.put(DRAW, key=at)
        return self._drawn[key, signs]

    def outer(self, left: int, right: int, rank: int, scale: float) -> Value:
        """Returns scale · U Vᵀ of lists of Uᵀ, (rank, rows), and Vᵀ, (rank, columns): term by term, each rounded once.

        Of a tensor whose Vᵀ is empty it is what the first list has.
        """
        return self.put(OUTER, array=left, key=right, rank=rank, number=scale)

    def full(self, number: float) -> Value:
        """Returns a constant."""
        return self.put(FULL, number=number)

    def keep(self) -> Value:
        """Returns the tensor's factor: 1 − decay."""
        return self.put(KEEP)

    def put(self, code: int, *values: Value, **more: Any) -> Value:
        """Appends an operation and returns what it makes."""
        self._values += 1
        operands = [*(v.at for v in values), -1, -1, -1][:3]
        self.steps.append(Step(code, self._values - 1, *operands, **more))
        return Value(self, self._values - 1)

    def _enter(self, key: NoiseKey) -> int:
        self.keys.append(key)
        return len(self.keys) - 1

    def assembled(self) -> tuple[Any, Any, Any, int]:
        """Returns the steps, (steps, 8), with registers for values, their numbers, the keys' words and the registers.

        A register is free again behind the last operation that reads its value.
        """
        last = {v: n for n, step in enumerate(self.steps) for v in (step.a, step.b, step.c)}
        places, free, count = {-1: -1}, list[int](), 0
        lines = []
        for n, step in enumerate(self.steps):
            if step.to >= 0:
                count += not free
                places[step.to] = free.pop() if free else count - 1
            used = {step.a, step.b, step.c} - {-1}
            free += (places[v] for v in used if last[v] == n)
            free += [places[step.to]] * (step.to >= 0 and step.to not in last)
            named = (places[v] for v in (step.to, step.a, step.b, step.c))
            key = step.key if step.code != DRAW or step.key not in self.signs else -2 - step.key
            lines.append([step.code, *named, step.array, key, step.rank])
        numbers = np.array([step.number for step in self.steps], np.float32)
        keys = np.array([philox.counter(key, 0) for key in self.keys], np.uint32).reshape(-1, 5)
        return np.array(lines, np.int64), numbers, keys, count


class Value:
    """A float32 value of a program, with methods of torch's tensors.

    Args:
        program: The program.
        at: Its number.
    """

    def __init__(self, program: Program, at: int):
        self._program, self.at = program, at

    def mul(self, other: Value | float) -> Value:
        """Returns the product."""
        return self._with(TIMES, other)

    def div(self, other: Value | float) -> Value:
        """Returns the quotient."""
        return self._with(OVER, other)

    def add(self, other: Value | float, alpha: float = 1.0) -> Value:
        """Returns self + alpha · other, rounded once."""
        other = other if isinstance(other, Value) else self._program.full(other)
        return self._program.put(FUSED, self, other, number=alpha)

    def plus(self, other: Value, alpha: float) -> Value:
        """Returns self + alpha · other, product and sum each rounded."""
        return self._program.put(ADDED, self, other, number=alpha)

    def addcmul(self, a: Value, b: Value, value: float) -> Value:
        """Returns self + (value · a) · b; the first product is rounded, the second is with the sum."""
        return self._program.put(FUSED, self, a.mul(value), b)

    def sqrt(self) -> Value:
        """Returns the square root."""
        return self._program.put(ROOT, self)

    def sign(self) -> Value:
        """Returns −1, 0 or 1."""
        return self._program.put(SIGN, self)

    def rounded(self, array: int) -> Value:
        """Returns the value rounded to the dtype of a list's tensor."""
        if array in self._program.unrounded:
            return self
        return self._program.put(ROUND, self, array=array)

    def _with(self, code: int, other: Value | float) -> Value:
        if isinstance(other, Value):
            return self._program.put(code, self, other)
        return self._program.put(code, self, number=other)
