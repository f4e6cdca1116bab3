"""The model card of an exported model, README.md: what it was trained from, on and by, and how to load it."""

import importlib.metadata
from pathlib import Path
from typing import Any

import yaml

from zo.config import RunConfig, describe, identity_settings
from zo.run import provenance
from zo.run.logs.tracking import logged_config, read_status
from zo.run.store.inputs import Inputs, flat
from zo.run.store.rows import read_rows
from zo.tasks import package_files
from zo.tasks.measures import LOSS, in_row

NAME = "README.md"
CLASSES = {
    "decoder": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
TEXT = """---
{head}---
# {title}

| | |
|---|---|
{facts}

## Use

```python
from transformers import {kind}, AutoTokenizer
{load}
tokenizer = AutoTokenizer.from_pretrained("this directory")
```

{note}Labels and probabilities for a file with the columns of the task:

```
python -m zo.predict "this directory" file.csv
```
"""
WHOLE = 'model = {kind}.from_pretrained("this directory", dtype="auto")'
ADAPTER = """from peft import PeftModel

base = {kind}.from_pretrained("{base}", dtype="{dtype}")
model = PeftModel.from_pretrained(base, "this directory")"""
QUANTISED = (
    "The adapter was trained over {} weights. Over the plain base, as above, its answers differ. The next command"
    " quantises the base as the run did.\n\n"
)


def card(cfg: RunConfig, step: int, run: Path | None, weights: str, whole: bool) -> str:
    """Returns the text.

    Args:
        cfg: Of the run, its task complete.
        step: Whose model it is.
        run: The run's directory, if there is one.
        weights: Hash of the trained tensors.
        whole: Whether the model was written, and not an adapter for it.
    """
    path, quantised = cfg.model.path, cfg.model.quantization
    head: dict[str, Any] = {} if package_files.is_path(path) else {"base_model": path}
    head["library_name"] = "transformers" if whole else "peft"
    head["tags"] = ["zeroth-order", cfg.optimizer.name]
    names = {"kind": CLASSES[cfg.model.kind], "base": package_files.resolve(path)}
    settings = {k: v for k, v in flat(identity_settings(cfg)).items() if v not in (None, "", [])}
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers"))
    facts = {**settings, "step": f"{step} of at most {cfg.steps}", "trained tensors": weights}
    facts |= _measured(run, step, cfg) if run is not None else {}
    facts["exported with"] = ", ".join([f"commit {provenance.git_revision()}", *versions])
    rows = [f"| {what} | {_cell(what, value)} |" for what, value in facts.items()]
    return TEXT.format(
        head=yaml.safe_dump(head, sort_keys=False),
        title=describe(cfg),
        facts="\n".join(rows),
        load=(WHOLE if whole else ADAPTER).format(**names, dtype=cfg.precision.dtype),
        note="" if whole or quantised is None else QUANTISED.format(quantised),
        **names,
    )


def _measured(run: Path, step: int, cfg: RunConfig) -> dict[str, Any]:
    """Returns what a run's directory says of its inputs, its code and the step's evaluation."""
    inputs, status = Inputs.load(run), read_status(run)
    read, files = (inputs.read, inputs.files) if inputs is not None else ({}, {})
    found: dict[str, Any] = {"base weights": read.get("weights", "unknown")}
    found |= {f"{k} examples": read[k] for k in ("train", "validation", "test") if k in read}
    found |= {f"file {key}": digest for key, digest in files.items()}
    row = next((row for row in read_rows(run) if row["step"] == step), {})
    if (measure := in_row(row)) is not None:
        for split, short in (("validation", "val"), ("test", "test")):
            if (key := f"eval/{short}_{measure.name}") in row:
                found[split] = f"{measure.name} {measure.shown(row[key])}"
        found["validation"] += f", loss {row[LOSS]:.4f}"
        if status.get("best/step") == step and "best/test_macro_f1" in status:
            found["test"] += f", macro F1 {status['best/test_macro_f1']:.1%}"
    attempts = logged_config(cfg, run)["provenance"]["attempts"]
    commits = dict.fromkeys(str(one["git_revision"] or "unknown") for one in attempts)
    return {**found, "run": run.resolve().name, "trained with commit": ", ".join(commits)}


def _cell(key: str, value: Any) -> str:
    """Returns a table's cell, of a path without the directories of this machine."""
    text = str(value)
    is_path = ("path" in key or "data_files" in key) and Path(text).is_absolute()
    return (Path(text).name if is_path else repr(text)[1:-1]).replace("|", "\\|")
