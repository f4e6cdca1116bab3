"""How long a run's steps take: as measured here, as typed, as measured in `results/`, or by a formula.

Every time says which. `results/` has the paper's Table 4 on an H200; docs/will-it-fit.md has the formula.
"""

import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from zo.config import RunConfig
from zo.config.presets import SUITE
from zo.lm.config import ModelError
from zo.optim import OPTIMIZERS
from zo.run.store import atomic

STATUS, ATTEMPTS = "status.json", "attempts.jsonl"  # not from modules that import torch
MEASURED = SUITE / "results" / "measured" / "table4" / "table4.csv"
BATCH = 16  # Of the runs in MEASURED
TYPED = "as typed"
IN_RESULTS = "measured on an H200 with noise=torch, in results/"
BY_FORMULA = "by the formula, for an H200"
ANY = ""  # Method of a typed time that is for all


class StepTime(NamedTuple):
    """Milliseconds of a step, and where they come from."""

    ms: float
    source: str


def kind_of(run: RunConfig) -> Hashable:
    """Returns what the time of a step depends on, as far as it is known before the first one."""
    names = run.model.name, run.precision.name, run.adapter.name, run.optimizer.name
    return *names, run.optimizer.passes_per_step, run.batch_size, run.model.quantization


def step_times(
    runs: Iterable[tuple[RunConfig, Path]], typed: Mapping[str, float], formula: bool = True
) -> dict[Hashable, StepTime | None]:
    """Returns the time of each kind of runs, by those of them that have ended; None where it is unknown.

    `typed`: method, or ANY, -> milliseconds where no run has measured them. The `formula` takes some seconds.
    """
    of_kind: dict[Hashable, RunConfig] = {}
    measured: dict[Hashable, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run, directory in runs:
        kind = kind_of(run)
        of_kind.setdefault(kind, run)
        if (ms := atomic.read_json(directory / STATUS).get("time/step_ms_median")) is not None:
            measured[kind][_device(directory)].append(ms)
    return {
        kind: _here(measured[kind]) if kind in measured else _elsewhere(run, typed, formula)
        for kind, run in of_kind.items()
    }


def summed(hours: Iterable[tuple[float, str]]) -> str:
    """Returns a sum of hours in words, with its parts by source if there are several."""
    parts: dict[str, float] = defaultdict(float)
    for count, source in hours:
        parts[source] += count
    if len(parts) < 2:
        return "".join(f"{max(of, 0.1):,.1f} hours, {source}" for source, of in parts.items())
    listed = "; ".join(f"{of:,.1f} {source}" for source, of in parts.items())
    return f"{sum(parts.values()):,.1f} hours: {listed}"


def _here(measured: Mapping[str, list[float]]) -> StepTime:
    """Returns the median time on this machine's card, else on the one with most runs."""
    card = this_card() if len(measured) > 1 else ""
    device = max(measured, key=lambda name: (name == card, len(measured[name])))
    return StepTime(statistics.median(measured[device]), f"measured here on {device}")


def _elsewhere(run: RunConfig, typed: Mapping[str, float], formula: bool) -> StepTime | None:
    """Returns a time that no run here has measured."""
    name = run.optimizer.name
    if (ms := typed.get(name, typed.get(ANY))) is not None:
        return StepTime(ms, TYPED)
    usual = OPTIMIZERS[name].config().passes_per_step if name in OPTIMIZERS else None
    plain = run.adapter.name == "none" and not (run.model.quantization or run.model.offload)
    same = plain and run.model.paper.get("dtype") == run.precision.dtype
    same &= (run.batch_size, run.optimizer.passes_per_step) == (BATCH, usual)
    known = _in_results().get((run.model.name, name))
    if same and known is not None:
        return StepTime(known, IN_RESULTS)
    if not formula or run.model.path.startswith("package:"):  # too small
        return None
    from zo.run import fit  # here: it imports torch

    with suppress(ModelError):
        if (ms := fit.formula_ms(run)) is not None:
            return StepTime(ms, BY_FORMULA)
    return None


@cache
def _in_results() -> dict[tuple[str, str], float]:
    """Returns the times of Table 4 that were measured, by model, in its precision of the paper, and method."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == "step_ms"]
    known = (row for row in rows if row["measured"])
    return {(row["model"], row["method"]): float(row["measured"]) for row in known}


def _device(directory: Path) -> str:
    """Returns the card, or the processor, of a run's last attempt."""
    path = directory / ATTEMPTS
    for line in reversed(path.read_text(encoding="utf-8").splitlines() if path.exists() else ()):
        with suppress(ValueError):  # torn
            return str(json.loads(line)["device"])
    return "an unknown device"


@cache
def this_card() -> str:
    """Returns the name of this machine's GPU, or of its processor."""
    import torch

    from zo.run.provenance import device_name

    return device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
