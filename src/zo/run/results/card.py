"""The model card of an exported model, README.md: what it was trained from, on and by, and how to load it."""

import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from zo.config import RunConfig, describe
from zo.run import provenance
from zo.run.logs.tracking import read_status
from zo.run.store.inputs import Inputs
from zo.run.store.rows import read_rows
from zo.tasks import package_files
from zo.tasks.measures import LOSS, in_row

NAME = "README.md"
ATTEMPTS = "attempts.jsonl"
CLASSES = {
    "decoder": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}


def card(cfg: RunConfig, step: int, run: Path | None, weights: str, whole: bool) -> str:
    """Returns the text.

    Args:
        cfg: Of the run, its task complete.
        step: Whose model it is.
        run: The run's directory, if there is one.
        weights: Hash of the trained tensors.
        whole: Whether the model was written, and not an adapter for it.
    """
    lines = [
        "---",
        yaml.safe_dump(_metadata(cfg, whole), sort_keys=False).strip(),
        "---",
        f"# {describe(cfg)}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {what} | {_plain(value)} |" for what, value in _facts(cfg, step, run, weights)),
        "",
        "## Use",
        "",
        *_use(cfg, whole),
        "",
    ]
    return "\n".join(lines)


def _metadata(cfg: RunConfig, whole: bool) -> dict[str, Any]:
    """Returns what a hub reads."""
    known = {} if package_files.is_path(cfg.model.path) else {"base_model": cfg.model.path}
    library = "transformers" if whole else "peft"
    return {**known, "library_name": library, "tags": ["zeroth-order", cfg.optimizer.name]}


def _facts(cfg: RunConfig, step: int, run: Path | None, weights: str) -> Iterator[tuple[str, Any]]:
    model, task, how = cfg.model, cfg.task, cfg.precision
    at = f" at revision {model.revision}" if model.revision else ""
    yield "base model", f"{model.name}: {_place(model.path)}{at}"
    inputs = None if run is None else Inputs.load(run)
    read, files = (inputs.read, inputs.files) if inputs is not None else ({}, {})
    if "weights" in read:
        yield "base weights", read["weights"]
    if model.quantization is not None:
        yield "base quantised", f"{model.quantization}, by torchao"
    if cfg.adapter.name != "none":
        yield "adapter", f"{cfg.adapter.name}: {_settings(cfg.adapter, 'lr_grid', 'eps', 'path')}"
    yield "task", f"{task.name}: {_place(task.path)}" + (f" ({task.subset})" if task.subset else "")
    for key in ("prompt", "masked_prompt", "candidates", "messages", "completion", "stop"):
        if (value := getattr(task, key)) is not None:
            yield key, repr(value)
    for split in ("train", "validation", "test"):
        if split in read:
            yield f"{split} examples", read[split]
    for key, digest in files.items():
        yield f"file {key}", digest
    yield "objective", cfg.objective.of(task)
    title = type(cfg.optimizer).__name__.removesuffix("Config")
    yield "method", f"{title}: {_settings(cfg.optimizer)}"
    if cfg.steps:
        yield "learning rate", f"{cfg.lr:g}"
        yield "batch size", cfg.batch_size
    yield "step", f"{step} of at most {cfg.steps}"
    yield "seed", cfg.seed
    yield "precision", f"{how.dtype}: {_settings(how, 'dtype')}"
    if run is not None:
        yield from _results(run, step)
    yield "trained tensors", weights
    if run is not None:
        yield "run", run.resolve().name
        yield "trained with commit", ", ".join(_revisions(run)) or "unknown"
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers"))
    yield "exported with", ", ".join([f"commit {provenance.git_revision()}", *versions])


def _results(run: Path, step: int) -> Iterator[tuple[str, str]]:
    """Yields what the run measured after the step."""
    row = next((row for row in read_rows(run) if row["step"] == step), {})
    if (measure := in_row(row)) is None:
        return
    value = measure.shown(row[f"eval/val_{measure.name}"])
    yield "validation", f"{measure.name} {value}, loss {row[LOSS]:.4f}"
    key, status = f"eval/test_{measure.name}", read_status(run)
    if key not in row:
        return
    more = ""
    if status.get("best/step") == step and "best/test_macro_f1" in status:
        parts = ("macro_f1", "macro F1"), ("balanced_accuracy", "balanced accuracy")
        more = "".join(f", {name} {status[f'best/test_{part}']:.1%}" for part, name in parts)
    yield "test", f"{measure.name} {measure.shown(row[key])}{more}"


def _revisions(run: Path) -> list[str]:
    """Returns the commits that the run's steps were made with."""
    found = []
    with suppress(OSError):
        for line in (run / ATTEMPTS).read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # torn
                found.append(json.loads(line)["git_revision"])
    return list(dict.fromkeys(found))


def _use(cfg: RunConfig, whole: bool) -> Iterator[str]:
    kind = CLASSES[cfg.model.kind]
    yield "```python"
    if not whole:
        yield "from peft import PeftModel"
    yield f"from transformers import {kind}, AutoTokenizer"
    yield ""
    if whole:
        yield f'model = {kind}.from_pretrained("this directory", dtype="auto")'
    else:
        base, dtype = package_files.resolve(cfg.model.path), cfg.precision.dtype
        yield f'base = {kind}.from_pretrained("{base}", dtype="{dtype}")'
        yield 'model = PeftModel.from_pretrained(base, "this directory")'
    yield 'tokenizer = AutoTokenizer.from_pretrained("this directory")'
    yield "```"
    yield ""
    if not whole and cfg.model.quantization is not None:
        yield (
            f"The adapter was trained over {cfg.model.quantization} weights. Over the plain base, as above, its answers"
            " differ. The next command quantises the base as the run did."
        )
        yield ""
    yield "Labels and probabilities for a file with the columns of the task:"
    yield ""
    yield "```"
    yield 'python -m zo.predict "this directory" file.csv'
    yield "```"


def _place(path: str) -> str:
    """Returns a path without the directories of this machine; others as they are."""
    return Path(path).name if Path(path).expanduser().is_absolute() else path


def _settings(config: Any, *but: str) -> str:
    """Returns a group's settings in one line."""
    values: Mapping[str, Any] = vars(config)
    return ", ".join(f"{k} {v}" for k, v in values.items() if k not in ("name", *but))


def _plain(value: Any) -> str:
    """Returns a table's cell."""
    return str(value).replace("|", "\\|").replace("\n", " ")
