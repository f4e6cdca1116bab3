"""A sweep's manifest, `out/sweeps/NAME.jsonl`: a line per cell, written when the sweep starts and read by `analysis`.

| key | content |
|---|---|
| `sweep`, `run_id` | the W&B group; the run that fills the cell |
| `model`, `task`, `optimizer`, `precision`, `seed`, `lr`, `steps` | the run's own |
| `variant` | what else the sweep varies, as {"optimizer.k": 4} |
| `changed` | keys of `variant` that were typed beside the sweep's file: no cells of the sweep as it stands in conf/ |
| `arm`, `role`, `equivalence_margin`, `levels` | in a comparison: see zo.config.arms |
| `chosen` | true in its last stage: a line has one setting, the newest |
| `inputs` | digests of local data, weights, reward code and edited method code, by key |
| `settings` | digest of everything else that decides the run's numbers |
| `command` | makes this cell alone |
| `written` | time in UTC |

Cells that share a run are one line, the first of them: a run without steps has no seed. A changed file or setting
appends another line of the same cell, and the newest line counts.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zo.config import RunConfig, command_line, identity_settings
from zo.config.arms import Arm
from zo.config.checks import value_of
from zo.config.command_line import CommandLine
from zo.config.composition import parse
from zo.config.identity import id_of, identity, input_files, run_id
from zo.differences import differing, in_facet
from zo.lm.baselines import ZeroShotConfig
from zo.record.appender import Appender
from zo.run.multirun import OF_NO_RUN
from zo.run.store.directory import flat

DIRECTORY = "sweeps"
COORDINATES = ("model", "task", "optimizer", "precision", "seed", "lr")
"""Keys with a column of their own; every other one that varies, but for `lr_index`, is in `variant`."""

PLAIN = (*COORDINATES, "lr_index")
CHANGING = ("run_id", "steps", "inputs", "settings", "command", "written")
"""What may differ between two lines of one cell."""

OF_METHOD = ("optimizer.", "lr=", "lr_index=", "steps=")
"""Beginnings of overrides that the untrained model does not take."""

PAPER = "paper"  # The option of precision that takes its name from the model
DIGITS = 12
Cell = dict[str, Any]


def manifest(asked: CommandLine, sweep: str | None) -> tuple[list[Cell], dict[str, RunConfig]]:
    """Returns the lines of a sweep in the order of its runs, without `written`, and its runs by id.

    Each run's `tracking.cell` is set to its line, so that W&B has it, too. Without a name there are no lines.
    """
    sweeper = asked.sweeper
    every = {**(sweeper.arms or {}), **(sweeper.references or {})}.values()
    given_once = [{"optimizer"}, sweeper.grid or ()] if every else []
    of_lines = dict.fromkeys(key for values in (*given_once, *every) for key in values or ())
    changed = _changed(asked, (*PLAIN, *of_lines)) if asked.sweep else {}
    of_sweep: Cell = {"equivalence_margin": sweeper.equivalence_margin}
    of_sweep |= {"levels": list(sweeper.levels)} if sweeper.levels else {}
    last = [*(sweeper.stages or {})][-1:]
    of_sweep |= {"chosen": True} if last and sweeper.stage in (None, *last) else {}
    lines: dict[str, Cell] = {}
    runs: dict[str, RunConfig] = {}
    parts: dict[str, tuple[Arm | None, dict[str, str], dict[str, Any]]] = {}
    for cfg, line in asked.cells:
        files = input_files(cfg, packages=False)
        decisive = identity(cfg, files)
        if (name := id_of(decisive)) not in runs:
            runs[name], parts[name] = cfg, (line, files, decisive)
    keys = dict.fromkeys((*asked.swept, *of_lines))
    telling = _telling(runs, (*COORDINATES, *keys))
    for name, (line, files, decisive) in parts.items():
        cfg, own, more = runs[name], line.values if line else {}, telling.get(name, ())
        given = {key: value_of(cfg, key) for key in (*keys, *more)}
        given = {
            k: v for k, v in given.items() if v is not None or (k not in PLAIN and _has(cfg, k))
        }
        untrained = isinstance(cfg.optimizer, ZeroShotConfig) and not asked.sweep
        varied = [key for key in given if key in (*asked.swept, *more) or key in own]
        varied = [key for key in varied if in_facet(key) or not untrained]
        lines[name] = {
            "sweep": sweep,
            "run_id": name,
            **{key: value_of(cfg, key) for key in COORDINATES},
            "steps": cfg.steps,
            "variant": {key: given[key] for key in varied if key not in PLAIN} | changed,
            "changed": list(changed),
            **({"arm": line.name, "role": line.role, **of_sweep} if line else {}),
            "inputs": {key: digest.rpartition(":")[2][:DIGITS] for key, digest in files.items()},
            "settings": _digest(decisive, (*varied, *changed, *files)),
            "command": _command(asked, name, cfg, given),
        }
    found = list(lines.values()) if sweep else []
    if not asked.sweep:  # what was typed and follows from the four choices is left out
        kept = differing([cell | cell["variant"] for cell in found], COORDINATES[:4])
        out = {*asked.typed_sweeps} - {*kept}
        for cell in found:
            cell["variant"] = {k: v for k, v in cell["variant"].items() if k not in out}
    for cell in found:
        logged = {k: v for k, v in cell.items() if k not in ("sweep", "run_id", "command")}
        runs[cell["run_id"]].tracking.cell = json.dumps(logged)
    return found, runs


def write(cells: Sequence[Cell], out: Path) -> None:
    """Appends the lines of cells that are new or have changed; a directory that cannot be written is left as it is."""
    if not cells:
        return
    name = re.sub(r"[^\w=.,+-]", "-", cells[0]["sweep"])
    path = out / DIRECTORY / f"{name}.jsonl"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError):  # each run says so
        path.parent.mkdir(parents=True, exist_ok=True)
        known: dict[str, Cell] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with suppress(ValueError):  # torn
                cell = json.loads(line)
                del cell["written"]
                if "arm" in cell:
                    known = {key: old for key, old in known.items() if not _replaces(cell, old)}
                known[_key(cell)] = cell
        new = [cell for cell in cells if known.get(_key(cell)) != cell]
        if new:
            file = Appender(path)
            file.write("".join(json.dumps(cell | {"written": now}) + "\n" for cell in new).encode())
            file.close()


def _has(cfg: RunConfig, key: str) -> bool:
    """Returns whether a run has a key, if only with the value null."""
    group, _, name = key.partition(".")
    return hasattr(cfg, group) and (
        not name or hasattr(getattr(cfg, group), name.partition(".")[0])
    )


def _key(cell: Cell) -> str:
    return json.dumps({k: v for k, v in cell.items() if k not in CHANGING}, sort_keys=True)


def _replaces(new: Cell, old: Cell) -> bool:
    """Returns whether a comparison's line replaces one of another cell: see `analysis.logs.manifests`."""
    if "arm" not in old:
        return False
    chosen = "chosen" in new and "chosen" in old and new["arm"] == old["arm"]
    settings = [(cell["lr"], cell["variant"]) for cell in (new, old)]
    return bool(new["changed"] != old["changed"] or (chosen and settings[0] != settings[1]))


def _telling(runs: Mapping[str, RunConfig], known: Sequence[str]) -> dict[str, list[str]]:
    """Returns, of runs that are alike in all known keys, those that tell them apart, by the runs' ids.

    As of `precision=paper,bf16`: the paper's option has the name of the precision that it stands for.
    """
    cells: dict[str, list[str]] = {}
    for name, cfg in runs.items():
        cells.setdefault(str([value_of(cfg, key) for key in known]), []).append(name)
    found: dict[str, list[str]] = {}
    for names in cells.values():
        if len(names) > 1:
            settings = [flat(identity_settings(runs[name])) for name in names]
            found |= dict.fromkeys(names, differing(settings, ()))
    return found


def _changed(asked: CommandLine, known: Sequence[str]) -> dict[str, Any]:
    """Returns what was typed beside a sweep's file, what the file does not vary and numbers may depend on."""
    no_cell = (*known, *asked.swept, "sweep", "stage")
    keys = {word.partition("=")[0].lstrip("+~"): word for word in asked.overrides}
    return {
        key: parse(word).value()
        for key, word in keys.items()
        if key not in no_cell and not word.startswith(OF_NO_RUN)
    }


def _command(asked: CommandLine, name: str, cfg: RunConfig, given: Mapping[str, Any]) -> str:
    """Returns what makes one cell alone, the run of this id: what was typed, with its own values."""
    texts = {k: v.replace('"', r"\"") for k, v in given.items() if isinstance(v, str)}
    values = {key: json.dumps(v) for key, v in given.items()}
    values |= {k: v if re.fullmatch(r"[\w./:-]+", v) else f'"{v}"' for k, v in texts.items()}
    words = {override.partition("=")[0]: override for override in asked.overrides}
    option = words.get("precision", (asked.sweeper.params or {}).get("precision", ""))
    options = str(option).rpartition("=")[2].split(",") if "precision" in given else []
    if "optimizer" in given and cfg.optimizer.file:
        values["optimizer"] = cfg.optimizer.file
    elif isinstance(cfg.optimizer, ZeroShotConfig) and not asked.sweep:
        words = {key: word for key, word in words.items() if not word.startswith(OF_METHOD)}
        values = {key: word for key, word in values.items() if key in words and key != "optimizer"}
        values["optimizer"] = cfg.optimizer.name
    typed = {key: word for key, word in words.items() if not key.startswith("hydra")}
    fixed = [word for key, word in typed.items() if key not in values]
    made = [*fixed, *(f"{k}={v}" for k, v in values.items())]
    if PAPER in options and (
        len(options) == 1 or name not in map(run_id, command_line.runs(made))
    ):  # whose name is another
        made = [*fixed, *(f"{k}={v}" for k, v in (values | {"precision": PAPER}).items())]
    return shlex.join(["zo", "train", *made])


def _digest(decisive: Mapping[str, Any], without: Sequence[str]) -> str:
    """Returns the digest of an identity without seed, learning rate and some other keys."""
    plain = json.loads(json.dumps(decisive))
    for key in ("seed", "lr", *without):
        *above, name = key.split(".")
        nested = plain
        for part in above:
            nested = nested.get(part, {})
        nested.pop(name, None)
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
