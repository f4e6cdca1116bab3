"""The model card of an exported model, README.md: what it was trained from, on and by, and how to load it."""

import importlib.metadata
from pathlib import Path
from typing import Any

import jinja2
import yaml

from zo.config import RunConfig, describe, identity_settings
from zo.run import provenance
from zo.run.logs.tracking import read_status
from zo.run.logs.wandb_run import logged_config
from zo.run.store.directory import Inputs, flat
from zo.run.store.rows import read_rows
from zo.tasks import package_files
from zo.tasks.measures import LOSS, in_row

NAME, SPLITS = "README.md", ("train", "validation", "test")
CLASSES = {"decoder": "CausalLM", "masked": "MaskedLM", "encoder-decoder": "Seq2SeqLM"}
TEMPLATE = Path(__file__).parents[2] / "assets" / "model_card.md.jinja"


def card(cfg: RunConfig, step: int, run: Path | None, weights: str, whole: bool) -> str:
    """Returns the text, of a step's `whole` model or its adapter; `weights` is the hash of the trained tensors."""
    path = cfg.model.path
    base = {} if package_files.is_path(path) else {"base_model": path}
    library, tags = "transformers" if whole else "peft", ["zeroth-order", cfg.optimizer.name]
    settings = {k: v for k, v in flat(identity_settings(cfg)).items() if v not in (None, "", [])}
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers"))
    facts = {**settings, "step": f"{step} of at most {cfg.steps}", "trained tensors": weights}
    facts |= _measured(run, step, cfg) if run is not None else {}
    facts["exported with"] = ", ".join([f"commit {provenance.git_revision()}", *versions])
    text = jinja2.Template(TEMPLATE.read_text(encoding="utf-8"), keep_trailing_newline=True)
    return text.render(
        head=yaml.safe_dump({**base, "library_name": library, "tags": tags}, sort_keys=False),
        title=describe(cfg),
        facts={what: _cell(what, value) for what, value in facts.items()},
        kind=f"AutoModelFor{CLASSES[cfg.model.kind]}",
        base=package_files.resolve(path),
        dtype=cfg.precision.dtype,
        quantised=cfg.model.quantization,
        whole=whole,
    )


def _measured(run: Path, step: int, cfg: RunConfig) -> dict[str, Any]:
    """Returns what a run's directory says of its inputs, its code and the step's evaluation."""
    inputs, status = Inputs.load(run) or Inputs({}, {}), read_status(run)
    found: dict[str, Any] = {"base weights": inputs.read.get("weights", "unknown")}
    found |= {f"{key} examples": of for key, of in inputs.read.items() if key in SPLITS}
    found |= {f"file {key}": digest for key, digest in inputs.files.items()}
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
