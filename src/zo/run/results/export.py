"""A run's model as a directory that transformers loads: weights of a step, configuration, tokenizer."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME, cached_file

from zo.config import RunConfig, TrackingConfig, from_plain, to_yaml
from zo.lm.adapters.adapt import merged
from zo.lm.adapters.config import AdapterConfig
from zo.lm.baselines import ZeroShotConfig
from zo.lm.config import ModelError
from zo.lm.source import quiet
from zo.record.trajectory import Trajectory, TrajectoryError
from zo.run.assembly import Assembly, DeviceError
from zo.run.logs.progress import Progress
from zo.run.logs.tracking import ENDED, read_status
from zo.run.results.card import NAME, card
from zo.run.results.replay import replay_to
from zo.run.store import checkpoint
from zo.run.store.directory import SETTINGS, DirectoryError, load, task_of
from zo.run.store.rows import TRAJECTORY, read_rows, trajectory_of
from zo.tasks import TaskError
from zo.weights.offload.setup import files_of


class ExportError(ValueError):
    """A step or a directory that cannot be had; one sentence that names it."""


UNUSABLE = (ExportError, TrajectoryError, ModelError, DirectoryError, DeviceError)
"""What is wrong with what the user asked for, in one sentence."""


@dataclass(frozen=True)
class Reached:
    """A run's model after a step."""

    cfg: RunConfig  # Of the run
    assembly: Assembly  # At the step
    step: int  # Its number
    run: Path | None  # The run's directory, if there is one


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
        One of UNUSABLE: If that cannot be had.
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
    """Writes the model that a trajectory leads to; arguments and errors are those of `export`."""
    _check_out(out)
    _write(_replayed(found, run, to, model, device), out, merge=False)


def reach(run: Path, step: str, model: str | None = None, device: str = "auto") -> Reached:
    """Returns the model of a run after a step; arguments and errors are those of `export`."""
    cfg = load(run)
    if cfg.optimizer.replays and cfg.steps:
        return _replayed(_trajectory(run), run, step, model, device)
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
    if number and checkpoint.load_newest(run, assembly.optimizer, number) != number:
        raise ExportError(f"{run}: the checkpoint of step {number} cannot be used")
    return Reached(cfg, assembly, number, run)


def _trajectory(run: Path) -> Trajectory:
    """Returns what a run measured: its rows, or where some were lost after its end the trajectory file beside them."""
    status = read_status(run)
    made = status["run/steps"] if status.get("run/status") in ENDED else 0
    if len(read_rows(run)) < made:
        with suppress(TrajectoryError):
            kept = Trajectory.read(run / TRAJECTORY)
            same = kept.header.run_id == run.resolve().name
            if same and not kept.torn and len(kept.losses) == made:
                return kept
    found = trajectory_of(run)
    found.torn = len(found.losses) < made
    return found


def _replayed(
    found: Trajectory, run: Path | None, to: str, model: str | None, device: str
) -> Reached:
    """Returns the model that a trajectory leads to."""
    last = len(found.losses)
    wanted = {"best": found.best_until(last), "last": last}
    if found.torn and to in wanted:
        raise ExportError(
            f"{found.path}: what follows step {last} is cut off or was altered; ask for step {last}, or one before it"
        )
    step = wanted[to] if to in wanted else _number(to)
    if step is None:
        raise ExportError(f"{found.path}: no evaluation yet, so no best step; it has {last} steps")
    if step > last:
        raise ExportError(f"{found.path}: step {step} is beyond its last one, {last}")
    cfg = load(run) if run is not None else from_plain(found.header.config)
    assembly = _assembly(cfg, model, device)
    with Progress(0) as progress, progress.counting("replay", step, more=False) as made:
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
    assembly.params.policy.merge_factors()  # a model that is loaded elsewhere has none
    loaded = assembly.loaded
    whole = merge or loaded.adapter is None
    model = merged(loaded) if whole else loaded.adapter
    if whole and loaded.rewritten is not None:
        _as_stored(model, loaded.rewritten)
    written = assembly.weights_hash()
    partial = out.resolve().with_name(f".{out.resolve().name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with quiet():
            dequantised = _save(model, partial, whole)
            loaded.tokenizer.save_pretrained(partial)
            if (name := _unlike(model, partial, whole)) is not None:
                raise ExportError(
                    f"{out}: transformers would read another {name} than was trained; nothing is left of the export"
                )
        settings = _settings(reached, whole)
        (partial / SETTINGS).write_text(to_yaml(settings), encoding="utf-8")
        cfg = replace(reached.cfg, task=settings.task)
        facts = card(cfg, reached.step, reached.run, written, whole)
        (partial / NAME).write_text(facts, encoding="utf-8")
        mode = (partial / NAME).stat().st_mode  # safetensors gives its files to their owner alone
        for file in partial.rglob("*"):
            if file.is_file():
                file.chmod(mode)
        partial.rename(out)
    except Exception as error:
        if isinstance(error, ExportError) or (reason := _reason(error)) is None:
            raise
        raise ExportError(f"{out}: {reason}; nothing is left of the export") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    trained = assembly.params.numel
    count = f"{trained:,} parameters"
    if merge and loaded.adapter is not None:
        count = f"{sum(p.numel() for p in model.parameters()):,} parameters, {trained:,} of them trained and merged"
    print(f"{out}: {count}, {written}")
    if dequantised:
        print(f"written in {cfg.precision.dtype}, as trained: the base is quantised and rounds")
    if not whole and (form := reached.cfg.model.quantization) is not None:
        over = f"trained over {form} weights, which zo predict makes of the base"
        print(f"{over}; over the plain base the adapter's answers differ, --merge writes both")


def _save(model: Any, out: Path, whole: bool) -> bool:
    """Writes a model or adapter; returns whether the base is quantised, and what was written is not."""
    if not whole:
        model.save_pretrained(out)
        return False
    base = _base_file(model, CONFIG_NAME) if model.config.name_or_path else None
    settings = {} if base is None else json.loads(base.read_text(encoding="utf-8"))
    dequantised = settings.pop("quantization_config", None) is not None
    model.save_pretrained(out, save_original_format=not dequantised)
    if settings:
        _restore_settings(out, settings)
    if model.config.name_or_path:
        (out / GENERATION_CONFIG_NAME).unlink(missing_ok=True)
        if (generation := _base_file(model, GENERATION_CONFIG_NAME)) is not None:
            shutil.copyfile(generation, out / GENERATION_CONFIG_NAME)
    return dequantised


def _reason(error: Exception) -> str | None:
    """Returns why files could not be written; None if that is not what an exception says.

    The Rust libraries safetensors and tokenizers have the operating system's number in the text alone.
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    number = re.search(r"\(os error (\d+)\)", str(error))
    return os.strerror(int(number[1])) if number else None


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    of_a, of_b = (t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(of_a, of_b)


def _as_stored(model: Any, rewritten: str) -> None:
    """Undoes what a first forward pass does to a model's weights. Raises ExportError if that is not known."""
    rescaled = [m for m in model.modules() if getattr(m, "layers_are_rescaled", False)]
    if not rescaled:
        raise ExportError(
            f"{type(model).__name__} changes {rewritten} in its first forward pass, and would again in that of an"
            " export; of such a model only an adapter can be exported"
        )
    for module in rescaled:  # RWKV's, divided by powers of 2 in evaluation mode
        module.training = True
        module._rescale_layers()
        module.training = False


def _unlike(model: Any, out: Path, whole: bool) -> str | None:
    """Returns the first tensor that whoever loads a directory gets otherwise than the model has it, if there is one."""
    with TemporaryDirectory(prefix=f"{out.name}.", dir=out.parent) as folder:
        if not whole:
            from peft import get_peft_model_state_dict
            from peft.utils import load_peft_weights

            adapter = load_peft_weights(str(out), device="cpu")
            own = get_peft_model_state_dict(model, save_embedding_layers=False).items()
            return next((n for n, t in own if n not in adapter or not _same(adapter[n], t)), None)
        where = {"device_map": {"": "disk"}, "offload_folder": folder, "local_files_only": True}
        read = type(model).from_pretrained(out, dtype=model.dtype, **where)
        files, there = files_of(read), {**read.state_dict(), **dict(read.named_parameters())}
        parameters = dict(model.named_parameters())
        tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - {*parameters}
        for name, t in {**model.state_dict(), **parameters}.items():
            found = files[there[name]].whole() if there[name] in files else there[name]
            if name not in tied and not _same(found.to(t.dtype), t):
                return name
    return None


def _restore_settings(out: Path, base: Mapping[str, Any]) -> None:
    """Gives the exported configuration the base model's keys and values, but for the dtype and the class."""
    written = json.loads((out / CONFIG_NAME).read_text(encoding="utf-8"))
    own = {"architectures": "architectures", "dtype": "dtype", "torch_dtype": "dtype"}
    settings = {**base, **{key: written[name] for key, name in own.items() if key in base}}
    (out / CONFIG_NAME).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


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
    if cfg.optimizer.file:  # predictions need no method, and another machine may not have its file
        cfg = replace(cfg, optimizer=ZeroShotConfig())
    if not whole:
        return cfg
    model = replace(cfg.model, weights="pretrained", architecture={}, quantization=None)
    model = replace(model, revision=None, gguf_file=None, sha256=None)
    return replace(cfg, model=model, adapter=AdapterConfig())


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ExportError(f"{text!r} is no step: a number, best or last is wanted")
    return int(text)
