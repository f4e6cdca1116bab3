"""Load a decoder model and its tokenizer in the dtype that was asked for."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from zo import package_files

# What omegaconf calls MISSING: a value that the YAML file or the command line has to give.
MISSING: Any = "???"


class ModelError(ValueError):
    """A model that cannot be used as configured; one sentence that names the key."""


@dataclass
class ModelConfig:
    """One model.

    Attributes:
        name: registry name, the YAML file's name.
        path: hub id, local directory, or ``package:<package>/<directory or .gguf file>``.
        revision: the hub's commit or branch.
        gguf_file: name of the GGUF file at a `path` that is a hub id or a directory.
        sha256: of the GGUF file; checked before it is converted.
        attention: transformers' attention implementation.
        lr_grid: optimizer name -> learning rates of its sweep.
        install: the command that brings the weights, shown when they cannot be found.
    """

    name: str = MISSING
    path: str = MISSING
    revision: str | None = None
    gguf_file: str | None = None
    sha256: str | None = None
    attention: str = "sdpa"
    lr_grid: dict[str, Any] = field(default_factory=dict)
    install: str | None = None

    def problems(self) -> list[tuple[str, str]]:
        """Returns (key, what would be right) of every value out of range."""
        return [
            ("lr_grid", f"must list numbers greater than 0 for {name}")
            for name, grid in self.lr_grid.items()
            if not grid or not all(isinstance(lr, (int, float)) and lr > 0 for lr in grid)
        ]


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode and its tokenizer, which has a pad token."""

    model: Any
    tokenizer: Any


def load(model_cfg: ModelConfig, dtype: torch.dtype, device: str | torch.device) -> Loaded:
    """Load, cast and check; the first use of a GGUF file converts it into the cache.

    Raises:
        ModelError: weights out of reach or not the expected ones, an architecture that
            `zo.scoring` cannot read.
    """
    with _quiet():
        source, local = _source(model_cfg)
        options: dict[str, Any] = {"local_files_only": True} if local else {}
        if not local and model_cfg.revision is not None:
            options["revision"] = model_cfg.revision
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            model: Any = AutoModelForCausalLM.from_pretrained(
                source, dtype=dtype, attn_implementation=model_cfg.attention, **options
            )
        except Exception as error:  # the library raises a dozen kinds for "could not be loaded"
            raise ModelError(_unreachable(model_cfg, error)) from error
    for parameter in model.parameters():  # some architectures keep a few in float32
        parameter.data = parameter.data.to(dtype)
    model = model.to(device).eval()
    model.config.use_cache = False
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    check_head(model)
    return Loaded(model, tokenizer)


@torch.inference_mode()
def check_head(model: Any) -> None:
    """Make sure that logits at chosen places are the output embedding of the hidden states there.

    Raises:
        ModelError: the model does more than that (scaled or capped logits), or takes no positions.
    """
    kind = type(model).__name__
    accepted = inspect.signature(model.base_model.forward).parameters
    if model.base_model is model or not {"position_ids", "attention_mask"} <= accepted.keys():
        raise ModelError(f"model.path: {kind} takes no position_ids, which scoring needs")
    tokens = torch.arange(1, 6, device=model.device)[None]  # (1, 5)
    expected = model(input_ids=tokens, use_cache=False).logits.float()
    hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden).float()
    tolerance = 4 * torch.finfo(model.dtype).eps * expected.abs().max().item()
    if logits.shape != expected.shape or not torch.allclose(logits, expected, 0, tolerance):
        raise ModelError(
            f"model.path: {kind} does not compute its logits as output embedding x last hidden"
            " state, so that candidates cannot be scored"
        )


def _source(cfg: ModelConfig) -> tuple[str, bool]:
    """What to load from, and whether that is on this machine."""
    try:
        path = package_files.resolve(cfg.path)
        if cfg.gguf_file is not None:
            path = _gguf_path(path, cfg)
    except Exception as error:  # not installed, or any of the hub's errors
        raise ModelError(_unreachable(cfg, error)) from error
    if path.endswith(".gguf"):
        return str(_converted(Path(path), cfg)), True
    return path, Path(path).is_dir()


def _gguf_path(path: str, cfg: ModelConfig) -> str:
    if Path(path).is_dir():
        return str(Path(path) / str(cfg.gguf_file))
    from huggingface_hub import hf_hub_download

    return hf_hub_download(path, str(cfg.gguf_file), revision=cfg.revision)


def _unreachable(cfg: ModelConfig, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else repr(error)
    if cfg.install:
        remedy = f"`{cfg.install}` brings it"
    elif cfg.path.startswith(package_files.PREFIX) or Path(cfg.path).exists():
        remedy = "give the path of a complete model"
    else:
        folder = cfg.path.split("/")[-1]
        remedy = (
            f"where the hub can be reached, `hf download {cfg.path} --local-dir {folder}` brings a"
            " copy for model.path=<local copy>"
        )
    return f"model.path: {cfg.path} cannot be loaded ({reason}); {remedy}"


def _converted(file: Path, cfg: ModelConfig) -> Path:
    """The directory with a GGUF file's weights as float32 safetensors; made on first use."""
    if not file.is_file():
        raise ModelError(_unreachable(cfg, FileNotFoundError(f"there is no file {file}")))
    digest = _sha256(file)
    if cfg.sha256 is not None and digest != cfg.sha256:
        raise ModelError(f"model.sha256: {file} has {digest}, expected {cfg.sha256}")
    root = Path(os.environ.get("ZO_CACHE") or Path.home() / ".cache" / "zo")
    target = root / f"{cfg.name}-{digest[:12]}"
    if not target.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=root))
        try:
            _convert(file, work)
            work.rename(target)  # atomic: a killed conversion leaves no half model behind
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    _verify(target)
    return target


def _convert(file: Path, target: Path) -> None:
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        packages = " ".join(missing)
        raise ModelError(f"model.path: reading {file.name} needs `pip install {packages}`")
    options = {"gguf_file": file.name, "local_files_only": True}
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
        digest = hashlib.sha256()
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no chatter from the library, as it was before on exit."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
