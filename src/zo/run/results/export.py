"""A run's model as a directory that transformers loads: weights of a step, configuration, tokenizer."""

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME, cached_file

from zo.config import RunConfig, TrackingConfig, from_plain, to_yaml
from zo.lm.adapters.adapt import merged
from zo.lm.adapters.config import AdapterConfig
from zo.lm.config import ModelError
from zo.lm.source import quiet
from zo.record.trajectory import Trajectory, TrajectoryError
from zo.run.assembly import Assembly, DeviceError
from zo.run.logs.progress import Progress
from zo.run.logs.tracking import read_status
from zo.run.results.card import NAME, card
from zo.run.results.replay import replay_to
from zo.run.store import checkpoint
from zo.run.store.directory import SETTINGS, DirectoryError, load, task_of
from zo.run.store.rows import trajectory_of
from zo.tasks import TaskError
from zo.weights.restore import FactoredPolicy


class ExportError(ValueError):
    """A step or a directory that cannot be had; one sentence that names it."""


UNUSABLE = (ExportError, TrajectoryError, ModelError, DirectoryError, DeviceError)
"""What is wrong with what the user asked for, in one sentence."""


@dataclass(frozen=True)
class Reached:
    """A run's model after a step.

    Attributes:
        cfg: Of the run.
        assembly: At the step.
        step: Its number.
        run: The run's directory, if there is one.
    """

    cfg: RunConfig
    assembly: Assembly
    step: int
    run: Path | None


def export(
    run: Path,
    step: str,
    out: Path,
    model: str | None = None,
    device: str = "auto",
    merge: bool = False,
) -> None:
    """Writes the model of a run after a step: of a run with an adapter of peft's, the adapter.

    Args:
        run: The run's directory.
        step: A number, `best` or `last`.
        out: Directory to make; one that exists must be empty.
        model: Path of the base model, if it is not where it was.
        device: auto, cpu, cuda or cuda:N.
        merge: Write the whole model, the adapter merged into its weights.

    Raises:
        ExportError, TrajectoryError, ModelError, DirectoryError: If that cannot be had.
    """
    _check_out(out)
    _write(reach(run, step, model, device), out, merge)


def replay(
    found: Trajectory,
    run: Path | None,
    to: str,
    out: Path,
    model: str | None = None,
    device: str = "auto",
) -> None:
    """Writes the model that a trajectory leads to.

    Raises:
        ExportError, TrajectoryError, ModelError: If that cannot be had.
    """
    _check_out(out)
    _write(_replayed(found, run, to, model, device), out, merge=False)


def reach(run: Path, step: str, model: str | None = None, device: str = "auto") -> Reached:
    """Returns the model of a run after a step; arguments as of `export`.

    Raises:
        ExportError, TrajectoryError, ModelError, DirectoryError: If that cannot be had.
    """
    cfg = load(run)
    if cfg.optimizer.replays and cfg.steps:
        return _replayed(trajectory_of(run), run, step, model, device)
    steps = checkpoint.steps(run)
    wanted = {"best": read_status(run).get("best/step"), "last": max(steps, default=None)}
    number = wanted[step] if step in wanted else _number(step)
    if number is None or (number != 0 and number not in steps):
        there = f"steps {', '.join(map(str, steps))}" if steps else "no step"
        raise ExportError(
            f"{run}: steps of {cfg.optimizer.name} cannot be made again, and of step {step} there is no "
            f"checkpoint (there is of {there}); checkpoint.keep_best=true keeps the best step's"
        )
    assembly = _assembly(cfg, model, device)
    if (
        number
        and checkpoint.load_newest(run, run.resolve().name, assembly.optimizer, number) != number
    ):
        raise ExportError(f"{run}: the checkpoint of step {number} cannot be used")
    return Reached(cfg, assembly, number, run)


def _replayed(
    found: Trajectory, run: Path | None, to: str, model: str | None, device: str
) -> Reached:
    """Returns the model that a trajectory leads to."""
    last = len(found.losses)
    wanted = {"best": found.best_until(last), "last": last}
    if found.torn and to in wanted:
        raise ExportError(
            f"{found.path}: what follows step {last} is cut off or was altered; --to {last} makes the steps before it"
        )
    step = wanted[to] if to in wanted else _number(to)
    if step is None:
        raise ExportError(
            f"{found.path}: no evaluation yet, so there is no best step; it has {last} steps"
        )
    if step > last:
        raise ExportError(f"{found.path}: step {step} is beyond its last one, {last}")
    cfg = load(run) if run is not None else from_plain(found.header.config)
    assembly = _assembly(cfg, model, device)
    with (
        Progress(0) as progress,
        progress.replaying(step) as made,
    ):
        replay_to(assembly, found, step, run, made)
    return Reached(cfg, assembly, step, run)


def _check_out(out: Path) -> None:
    """Raises ExportError unless a directory can be made there."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out} is there and not an empty directory; --out wants one to make")


def _assembly(cfg: RunConfig, model: str | None, device: str) -> Assembly:
    """Loads the base model."""
    cfg.model.path, cfg.device = model or cfg.model.path, device
    return Assembly.of(cfg)


def _write(reached: Reached, out: Path, merge: bool) -> None:
    """Writes model, tokenizer, settings and a model card, all of it or nothing."""
    assembly = reached.assembly
    if isinstance(assembly.params.policy, FactoredPolicy):
        assembly.params.policy.merge_factors()  # a model that is loaded elsewhere has none
    written, loaded = assembly.weights_hash(), assembly.loaded
    whole = merge or loaded.adapter is None
    model = merged(loaded) if whole else loaded.adapter
    partial = out.resolve().with_name(f".{out.resolve().name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with quiet():
            model.save_pretrained(partial)
            loaded.tokenizer.save_pretrained(partial)
        if whole:
            _restore_settings(partial, model)
        settings = _settings(reached, whole)
        (partial / SETTINGS).write_text(to_yaml(settings), encoding="utf-8")
        cfg = replace(reached.cfg, task=settings.task)
        facts = card(cfg, reached.step, reached.run, written, whole)
        (partial / NAME).write_text(facts, encoding="utf-8")
        for file in partial.iterdir():
            file.chmod(0o666 & ~_umask())
        partial.rename(out)
    except Exception as error:
        if (reason := _reason(error)) is None:
            raise
        raise ExportError(f"{out}: {reason}; nothing is left of the export") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(f"{out}: {assembly.params.numel:,} parameters, {written}")
    if not whole and (form := reached.cfg.model.quantization) is not None:
        over = f"trained over {form} weights, which python -m zo.predict makes of the base"
        print(f"{over}; over the plain base the adapter's answers differ, --merge writes both")


def _reason(error: Exception) -> str | None:
    """Returns why files could not be written; None if that is not what an exception says.

    The Rust libraries safetensors and tokenizers have the operating system's number in the text alone.
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    number = re.search(r"\(os error (\d+)\)", str(error))
    return os.strerror(int(number[1])) if number else None


def _restore_settings(out: Path, model: Any) -> None:
    """Gives the exported configuration the base model's keys and values, but for the dtype and the class."""
    if not model.config.name_or_path:
        return  # random weights: there is no base model
    written = json.loads((out / CONFIG_NAME).read_text(encoding="utf-8"))
    source = _base_file(model, CONFIG_NAME)
    if source is not None:
        settings = json.loads(source.read_text(encoding="utf-8"))
        own = {"architectures": "architectures", "dtype": "dtype", "torch_dtype": "dtype"}
        settings |= {key: written[name] for key, name in own.items() if key in settings}
        (out / CONFIG_NAME).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (out / GENERATION_CONFIG_NAME).unlink(missing_ok=True)
    if (generation := _base_file(model, GENERATION_CONFIG_NAME)) is not None:
        shutil.copyfile(generation, out / GENERATION_CONFIG_NAME)


def _base_file(model: Any, name: str) -> Path | None:
    """Returns a file of the base model, which is on this machine since it was loaded; None if it has none."""
    config = model.config
    found = cached_file(
        config.name_or_path,
        name,
        revision=getattr(config, "_commit_hash", None),
        local_files_only=True,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)


def _settings(reached: Reached, whole: bool) -> RunConfig:
    """Returns the run's configuration, its task complete, with the model that was written in place of the base."""
    cfg = reached.cfg
    task = cfg.task
    if reached.run is not None:
        with suppress(TaskError):  # a run that stored no task, and its data are gone
            task = task_of(reached.run, cfg)
    cfg = replace(cfg, task=task, out="out", device="auto", tracking=TrackingConfig())
    if not whole:
        return cfg
    model = replace(cfg.model, weights="pretrained", architecture={}, quantization=None)
    model = replace(model, revision=None, gguf_file=None, sha256=None)
    return replace(cfg, model=model, adapter=AdapterConfig())


def _umask() -> int:
    """Returns the process's mask of file modes."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ExportError(f"{text!r} is no step: a number, best or last is wanted")
    return int(text)
