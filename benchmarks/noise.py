"""What drawing noise and adding it to the weights costs on this CPU: python -m benchmarks.noise [--help].

Nanoseconds per value, of one tensor:

- drawing standard normals: torch's generator, Philox by numpy, Philox by numba;
- one pass θ ← θ + Σ c_j z_j with 1, 2 and 4 directions, in float32, bfloat16 and float16: torch draws each z as a
  tensor of its own and adds it; Philox draws it in the pass that adds; `stochastic` rounds that pass at random.

All ways are timed in turns, so that a machine whose speed changes treats them alike; the median of each is reported, in
processor time where one thread works and in wall time else. What numba compiles is compiled before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table

from zo.noise import PERTURBATION, ROUNDING, Engine, NoiseKey, PhiloxEngine, engine
from zo.noise.reference import NumpyEngine
from zo.run.provenance import device_name
from zo.weights.directions import Gaussian
from zo.weights.space import ParameterSpace

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KEYS = [NoiseKey(1, PERTURBATION, 0, i) for i in range(4)]
BITS = NoiseKey(1, ROUNDING, 0, 0)

Way = Callable[[], object]


def drawing(n: int) -> dict[str, Way]:
    """Returns the ways to draw n normals."""
    out = torch.empty(n)
    ways: dict[str, Engine] = {"torch": engine("torch"), "numba": engine("philox")}
    few = out[: max(n // 16, 1)].repeat(1)  # numpy is slow: it draws a sixteenth, sixteen times

    def by_numpy() -> None:
        for _ in range(16):
            NumpyEngine().normal_(few, KEYS[0], 0)

    return {k: lambda e=e: e.normal_(out, KEYS[0], 0) for k, e in ways.items()} | {
        "numpy": by_numpy
    }


def passing(n: int, dtype: torch.dtype, directions: int) -> dict[str, Way]:
    """Returns the ways to move n weights along so many directions."""
    keys = KEYS[:directions]

    def way(noise: str, rounding: str = "nearest") -> Way:
        params = ParameterSpace([("w", torch.randn(n).to(dtype))], noise=noise, rounding=rounding)
        terms = [(1e-6, Gaussian(key, params.engine)) for key in keys]
        return lambda: params.add_(terms, 0.0, BITS)

    ways = {"torch": way("torch"), "philox": way("philox")}
    if dtype != torch.float32:
        ways["stochastic"] = way("philox", "stochastic")
    return ways


def nanoseconds(ways: dict[str, Way], n: int, rounds: int) -> dict[str, float]:
    """Returns the median time per value of each way, all timed in turns."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in ways}
    for made in range(rounds + 1):  # the first round compiles
        for name, way in ways.items():
            start = clock()
            way()
            if made:
                times[name].append((clock() - start) / n * 1e9)
    return {name: statistics.median(taken) for name, taken in times.items()}


def table(title: str, rows: dict[str, dict[str, float]]) -> Table:
    """Returns ways as columns, with how many times faster than torch each is."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    shown = Table("", *columns, title=title, title_justify="left")
    for name, row in rows.items():
        cells = [
            f"{row[c]:.2f} ({row['torch'] / row[c]:.1f}×)" if c in row else "" for c in columns
        ]
        shown.add_row(name, *cells)
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.noise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--values", type=int, default=2**22, help="of the tensor (2**22)")
    parser.add_argument("--rounds", type=int, default=7, help="timings of each way (7)")
    parser.add_argument("--threads", type=int, default=1, help="of torch, and of numba (1)")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    if not isinstance(engine("philox"), PhiloxEngine) or isinstance(engine("philox"), NumpyEngine):
        print("numba is missing: pip install -e '.[fast]'", file=sys.stderr)
        return 2
    n, rounds = args.values, args.rounds
    console = Console()
    machine = device_name(torch.device("cpu"))
    console.print(
        f"{machine}; torch {torch.__version__}, threads {args.threads}; ns per value, {n:,} values"
    )
    draw = {"one normal": nanoseconds(drawing(n), n, rounds)}
    console.print(table("drawing", draw))
    moves = {
        f"{name}, {k} direction{'s' * (k > 1)}": nanoseconds(passing(n, dtype, k), n, rounds)
        for name, dtype in DTYPES.items()
        for k in (1, 2, 4)
    }
    console.print(table("one pass over the weights", moves))
    return 0


if __name__ == "__main__":
    sys.exit(main())
