"""Runs one after the other in one process: a line in front of each, and a table of all results at the end.

A run that fails does not stop the others. Ctrl-C and SIGTERM stop all of them: what is finished stays, the run in
progress is saved, and the same command goes on.
"""

import hashlib
import re
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from zo.config import RunConfig, identity_settings
from zo.config.identity import check_paths, id_of, input_files
from zo.differences import differing, shortened
from zo.run.command import Shared, import_wandb
from zo.run.logs.progress import Screen
from zo.run.store.directory import Inputs, InputsError, flat
from zo.tasks.measures import in_summary

NAME_LENGTH = 48  # Characters of its name; in a longer one what does not vary is a digest

OF_NO_RUN = ("hydra", "out=", "device=", "threads=", "resume=", "tracking.", "checkpoint.", "name=")
"""Beginnings of overrides that do not say what a multirun consists of."""

GROUPS = ("model", "task", "optimizer", "precision", "adapter")
WITHOUT_ADAPTER = {"adapter.name": "all"}  # What is trained without an adapter
WIDE = 200  # Columns of the table in a pipe or file


@dataclass
class Multirun:
    """Different runs, in order; what became of each stands by its position."""

    runs: Sequence[RunConfig]
    summaries: dict[int, dict[str, Any]] = field(default_factory=dict)  # Of those that have ended
    errors: dict[int, str] = field(default_factory=dict)  # A sentence for each that failed
    elsewhere: set[int] = field(default_factory=set)  # Those that another process makes
    shared: Shared = field(default_factory=Shared)  # What each run leaves for the next

    def __post_init__(self) -> None:
        inputs = [Inputs.of(cfg) for cfg in self.runs]
        self.files = [of.files for of in inputs]
        self.names = [id_of(of.identity) for of in inputs]
        self.named = differences(self.runs)
        self.keys = list(dict.fromkeys(key for names in self.named for key in names))

    def run(self) -> int:
        """Makes all runs; returns 0 if all ended, 1 if one or more failed, 143 or 130 if they were stopped."""
        screen = Screen()
        differ = f"; they differ in {', '.join(self.keys)}" if self.keys else ""
        screen.say(f"{_count(len(self.runs))}, one after the other{differ}")
        for i, cfg in enumerate(self.runs):
            if (why := check_paths(cfg)) is not None:
                if str(why) not in self.errors.values():
                    screen.say(self._title(i))
                self._fail(i, str(why))
        stopped = self._make(screen) if len(self.errors) < len(self.runs) else None
        self.show(screen)
        if stopped is not None:
            ended = len(self.summaries)
            left = f"{ended} ended, {len(self.runs) - ended - len(self.errors)} to go"
            without = "" if self.runs[0].resume else ", without resume=false,"
            print(f"stopped; {left}; the same command{without} goes on", file=sys.stderr)
            return int(getattr(stopped, "code", None) or 130)
        return int(bool(self.errors))

    def _make(self, screen: Screen) -> BaseException | None:
        """Makes the runs that have not failed; returns the request to stop that ended them."""
        import_wandb(self.runs[0].tracking.mode)
        from zo.run import runner, signals  # here: what was said is shown before torch loads
        from zo.run.store import lock

        with signals.requests() as requests:
            waiting = [i for i in range(len(self.runs)) if i not in self.errors]
            for i in waiting:  # a run that another process makes is tried again at the end
                if i in self.errors:
                    continue
                cfg = self.runs[i]
                screen.say(self._title(i))
                try:
                    requests.heed()
                    self._check_files(i)
                    self.summaries[i] = runner.run(cfg, shared=self.shared)
                    self.elsewhere.discard(i)
                except (signals.Interrupted, KeyboardInterrupt) as request:
                    return request
                except lock.LockedError as error:
                    screen.say(f"  made by another process: {error}")
                    waiting += [i] * (i not in self.elsewhere)
                    self.elsewhere.add(i)
                except runner.UNUSABLE as error:
                    self._fail(i, str(error))
                    self._fail_alike(i, screen)
                except Exception as error:
                    traceback.print_exc()  # a defect; error.txt has it, too
                    self._fail(i, f"{type(error).__name__}: {error}")
        return None

    def _check_files(self, i: int) -> None:
        """Raises InputsError if a file of a run is not as when the multirun began: seeds would be of different data."""
        now = input_files(self.runs[i])
        if changed := [key for key, was in self.files[i].items() if now.get(key, was) != was]:
            raise InputsError(
                f"{changed[0]}: the content has changed since this multirun began; put the old content back, "
                "or repeat the command to make all runs from what is there now"
            )

    def show(self, screen: Screen) -> None:
        """Prints the table of results, and below it why runs failed."""
        if not screen.console.is_terminal:
            screen.console.width = WIDE
        table = Table(box=None, pad_edge=False, header_style="none")
        for key in (*self.keys, "test", "val.", "step", f"in {self.runs[0].out}/"):
            right = key in ("test", "val.", "step")
            table.add_column(key, justify="right" if right else "left", overflow="fold")
        for i, summary in self.summaries.items():
            names = [Text(self.named[i].get(key, "")) for key in self.keys]
            table.add_row(*names, *_results(summary), Text(self.names[i]))
        screen.console.print()
        if self.summaries:
            screen.console.print(table)
        done, count = len(self.summaries), len(self.runs)
        elsewhere = f", {len(self.elsewhere)} made by another process" * bool(self.elsewhere)
        screen.say(f"{done} of {_count(count)} ended{elsewhere}, {len(self.errors)} failed")
        alike: dict[str, list[int]] = {}
        for i, why in sorted(self.errors.items()):
            alike.setdefault(why, []).append(i)
        for why, (first, *others) in alike.items():
            more = f" and {_count(len(others)).replace('run', 'other')}" if others else ""
            screen.say(f"failed: {self._title(first)}{more}: {why}")

    def _title(self, i: int) -> str:
        """Returns the line above a run: its number, and what distinguishes it."""
        named = " ".join(f"{key}={value}" for key, value in self.named[i].items())
        return f"run {i + 1} of {len(self.runs)}" + (f": {named}" if named else "")

    def _fail(self, i: int, why: str) -> None:
        """Notes why a run failed, and says so unless another one failed alike."""
        if why not in self.errors.values():
            print(f"  failed: {why}", file=sys.stderr)
        self.errors[i] = why

    def _fail_alike(self, i: int, screen: Screen) -> None:
        """Fails the runs behind one that failed in its model or data, if they have the same."""
        group, failed = self.errors[i].partition(".")[0], self.runs[i]
        shared = {"model": ["model"], "task": ["task", "model"]}.get(group)
        alike = [
            j
            for j in range(i + 1, len(self.runs))
            if shared
            and j not in self.errors
            and all(getattr(self.runs[j], key) == getattr(failed, key) for key in shared)
        ]
        for j in alike:
            self.errors[j] = self.errors[i]
        if alike:
            same = " and ".join(shared or ())
            screen.say(f"  not tried: {_count(len(alike))} with the same {same}")


def set_group(runs: Sequence[RunConfig], overrides: Sequence[str], sweep: str | None) -> None:
    """Sets the W&B group of the runs that have none: their sweep, or what was typed where that makes several runs."""
    name = sweep or (_name_of(overrides) if len(runs) > 1 else None)
    for cfg in runs:
        cfg.tracking.group = cfg.tracking.group or name


def _name_of(overrides: Sequence[str]) -> str:
    """Returns the name of a multirun: what was typed, as a file or a W&B group can be named."""
    said = [text for text in overrides if not text.startswith(OF_NO_RUN)]
    name = _clean(said)
    if len(name) <= NAME_LENGTH:
        return name
    varied = _clean([text for text in said if re.search(r"=.*[,(]", text)])
    return f"{varied[:NAME_LENGTH]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _clean(said: Sequence[str]) -> str:
    return re.sub(r"[^\w=.,+-]", "-", "_".join(said))


def differences(runs: Sequence[RunConfig]) -> list[dict[str, str]]:
    """Returns, for each run, what distinguishes it from the others, as `{"optimizer": "bszo", "k": "4"}`.

    A setting that follows from the choice of model, task, method, precision and adapter is left out: it counts only if
    it differs between runs of the same choice. A long text begins with its first words that differ.
    """
    plain = [
        WITHOUT_ADAPTER
        | {
            key: f"{v:g}" if isinstance(v, float) else repr(str(v))[1:-1]
            for key, v in flat(identity_settings(cfg)).items()
        }
        for cfg in runs
    ]
    wanted = differing(plain, [f"{group}.name" for group in GROUPS])
    shown = _shortened(wanted)
    texts = {k: shortened([settings[k] for settings in plain if k in settings]) for k in wanted}
    return [{shown[k]: texts[k][of[k]] for k in wanted if k in of} for of in plain]


def _shortened(keys: Sequence[str]) -> dict[str, str]:
    """Returns dotted keys without their groups, where that leaves them different: `k` for `optimizer.k`."""
    plain = {key: key.removesuffix(".name") for key in keys}
    last = {key: text.rpartition(".")[2] for key, text in plain.items()}
    taken = Counter(last.values())
    return {key: last[key] if taken[last[key]] == 1 else text for key, text in plain.items()}


def _count(runs: int) -> str:
    return f"{runs} run{'s' * (runs != 1)}"


def _results(summary: dict[str, Any]) -> list[str]:
    """Returns test accuracy, validation accuracy and step of a run's best evaluation."""
    if summary["run/status"] == "collapsed":
        return ["collapsed", "", str(summary["run/collapse_step"])]
    measure = in_summary(summary)
    values = (summary[f"best/{split}_{measure.name}"] for split in ("test", "val"))
    return [*map(measure.shown, values), str(summary["best/step"])]
