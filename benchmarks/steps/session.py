"""One run of the command: measures what is still missing, group by group, and keeps every group's rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import NamedTuple

import torch

from benchmarks.steps import ceilings
from benchmarks.steps.cases import FORWARD, Case, beside
from benchmarks.steps.measure import (
    Peak,
    ReleasedStepper,
    Stepper,
    Times,
    can_be_released,
    in_turns,
    peak_here,
    peak_of_child,
)
from benchmarks.steps.records import Records, Row, code_hash
from benchmarks.steps.roofline import (
    Ceilings,
    Roofline,
    forward_roofline,
    passes_over_weights,
    roofline,
)
from zo.config import RunConfig
from zo.run.provenance import provenance

TIMED = ("step", "forward", "weights", "processor")
VERSIONS = ("python", "torch", "transformers")
TOGETHER = 6 * 2**30
"""Bytes of weights and state that cases timed in turns may have together."""


class Loaded(NamedTuple):
    """A case that is ready to be timed."""

    stepper: Stepper
    peak: Peak
    mezo: Stepper | None  # timed in turns; None for MeZO itself, a forward pass and on a GPU

    @property
    def bytes(self) -> int:
        """Bytes of weights, copies and state of both."""
        return sum(_bytes(stepper) for stepper in (self.stepper, self.mezo) if stepper is not None)


@dataclass
class Session:
    """What the cases of one invocation share."""

    device: torch.device
    rounds: int  # measurements of each case
    plain: Sequence[str]  # methods whose steps are made in the released code's way, too
    records: Records
    say: Callable[[str], None]  # takes what is being done, for people
    failed: dict[Case, str] = field(default_factory=dict)  # and the reasons
    _known: dict[str, float] = field(default_factory=dict)

    def measure(self, accepted: Mapping[Case, RunConfig], done: Callable[[Case], None]) -> None:
        """Measures cases, those of one group in turns where memory allows; calls `done` for each that is finished."""
        for _, group in groupby(accepted, key=lambda case: case.group):
            for chunk in self._chunks(list(group), accepted):
                self.records.add(self._timed(chunk))
                for case in chunk:
                    done(case)
                chunk.clear()  # before the next ones are loaded
            for case in self.failed:
                done(case)

    def _chunks(
        self, group: Sequence[Case], accepted: Mapping[Case, RunConfig]
    ) -> Iterator[dict[Case, Loaded]]:
        """Yields cases of a group, loaded, as many as may be in memory together: on a GPU one."""
        chunk: dict[Case, Loaded] = {}
        used = 0
        for case in group:
            self.say(f"{case}: memory")
            try:
                chunk[case] = self._loaded(case, accepted[case])
            except RuntimeError as error:  # out of memory among them
                self.failed[case] = str(error).strip()
                continue
            used += chunk[case].bytes
            if used >= TOGETHER or self.device.type == "cuda":
                yield chunk
                chunk, used = {}, 0
        if chunk:
            yield chunk

    def _loaded(self, case: Case, cfg: RunConfig) -> Loaded:
        if self.device.type == "cuda":
            return Loaded(*peak_here(case, cfg), None)
        peak, mezo = peak_of_child(case), beside(case)
        return Loaded(Stepper(case, cfg), peak, mezo and Stepper(mezo, mezo.config()))

    def _timed(self, chunk: Mapping[Case, Loaded]) -> list[Row]:
        own = [loaded.stepper for loaded in chunk.values()]
        mezos = {id(m): m for loaded in chunk.values() if (m := loaded.mezo) is not None}
        first = next(iter(chunk))
        plain = can_be_released(first) and first.method in self.plain
        others = [ReleasedStepper(first, own[0].cfg)] if plain else []
        names = ", ".join(f"{case.restore} {case.noise}" for case in chunk)
        also = ", with MeZO" * bool(mezos) + " and the released code's way" * plain
        self.say(f"{' '.join(first.group)}: {names}{also}, in turns")
        times = in_turns([*own, *mezos.values(), *others], self.rounds)
        released = times[-1] if plain else None
        of_mezo = dict(zip(mezos, times[len(own) :], strict=False))
        return [
            self._row(case, loaded, measured, of_mezo.get(id(loaded.mezo)), released)
            for (case, loaded), measured in zip(chunk.items(), times, strict=False)
        ]

    def _row(
        self, case: Case, loaded: Loaded, times: Times, mezo: Times | None, released: Times | None
    ) -> Row:
        stepper, peak = loaded.stepper, loaded.peak
        made, limits = provenance(self.device), self._limits(case.dtype, case.noise)
        row = {
            "machine": made["device"],
            **asdict(case),
            "rounds": self.rounds,
            "forwards": 1,
            "values": stepper.workload().values,
            **{f"{name}_ms": 1e3 * getattr(times, name) for name in TIMED},
            "plain_ms": 1e3 * released.step if released else None,
            "plain_processor_ms": 1e3 * released.processor if released else None,
            "mezo_processor_ms": 1e3 * mezo.processor if mezo else None,
            "peak_gib": peak.peak,
            "before_gib": peak.before,
            "gb_per_s": limits.bandwidth / 1e9,
            "gflop_per_s": limits.matrix / 1e9,
            "normals_per_ns": limits.normals / 1e9,
            "code": code_hash(),
            "revision": made["git_revision"] + "+" * made["git_dirty"],
            "versions": ", ".join(f"{name} {made['versions'][name]}" for name in VERSIONS),
            "date": made["started"],
        }
        size, work = getattr(torch, case.dtype).itemsize, stepper.workload()
        if case.method == FORWARD:
            least = Roofline(forward_roofline(work, limits, size), 0.0)
        else:
            optimizer = stepper.assembly.optimizer
            kept = [t.element_size() for tensors in optimizer.state.values() for t in tensors]
            forwards, state_size = optimizer.forwards_per_step, max(kept, default=size)
            least = roofline(stepper.cfg, work, limits, forwards, size, state_size)
            row |= {"forwards": forwards, "passes": times.passes}
            row |= {"passes_estimated": passes_over_weights(stepper.cfg)}
            row |= {"state_bytes": optimizer.state_bytes()}
        row["roofline_forward_ms"] = 1e3 * least.forward
        row["roofline_weights_ms"] = 1e3 * least.weights
        return row

    def _limits(self, dtype: str, noise: str) -> Ceilings:
        """Returns the device's ceilings, each measured when it is first asked for."""
        for key, what, rate in (
            ("copies", "copies", ceilings.bandwidth),
            (dtype, f"{dtype} products", lambda d: ceilings.matrix_rate(d, getattr(torch, dtype))),
            (noise, f"{noise} normals", lambda d: ceilings.normal_rate(d, noise)),
        ):
            if key not in self._known:
                self.say(f"what the device does at best: {what}")
                self._known[key] = rate(self.device)
        return Ceilings(self._known["copies"], self._known[dtype], self._known[noise])


def _bytes(stepper: Stepper) -> int:
    params, optimizer = stepper.assembly.params, stepper.assembly.optimizer
    weights = sum(t.numel() * t.element_size() for t in params.tensors)
    copies = 2 if params.restore == "snapshot" else 1
    return copies * weights + optimizer.state_bytes()
