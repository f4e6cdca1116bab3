"""GGUF files: converted once to a directory of float32 safetensors; a checksum is verified at every use."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

from zo.lm.config import ModelConfig, ModelError


def converted(file: Path, cfg: ModelConfig) -> Path:
    """Returns the directory with a GGUF file's weights as float32 safetensors, which is made on first use.

    Raises:
        FileNotFoundError: If the file does not exist.
        ModelError: If its checksum differs, it cannot be read, or the directory is damaged.
    """
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    digest = _sha256(file)
    if cfg.sha256 is not None and digest != cfg.sha256:
        raise ModelError(f"model.sha256: {file} has {digest}, expected {cfg.sha256}")
    root = Path(os.environ.get("ZO_CACHE") or Path.home() / ".cache" / "zo")
    target = root / f"{cfg.name}-{digest[:12]}"
    if not target.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=root))
        try:
            convert(file, work)
            work.rename(target)  # atomic: a killed conversion leaves no half model behind
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    _verify(target)
    return target


def convert(file: Path, target: Path) -> None:
    """Writes a GGUF file's weights, tokenizer and configuration to a directory."""
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        packages = " ".join(missing)
        raise ModelError(f"model.path: reading {file.name} needs `pip install {packages}`")
    import torch
    from safetensors.torch import save_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
    # model.save_pretrained refuses what came from GGUF, although the weights are plain float32.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.save_pretrained(target)
    tokenizer.save_pretrained(target)
    weights = target / "model.safetensors"
    save_model(model, str(weights), metadata={"format": "pt"})
    checksum = {"file": weights.name, "sha256": _sha256(weights), "converted_from": file.name}
    (target / "checksum.json").write_text(json.dumps(checksum, indent=2) + "\n", encoding="utf-8")


def _verify(directory: Path) -> None:
    checksum = json.loads((directory / "checksum.json").read_text(encoding="utf-8"))
    if _sha256(directory / checksum["file"]) != checksum["sha256"]:
        raise ModelError(
            f"model.path: the converted weights in {directory} are damaged; remove that directory"
            " to convert them again"
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
