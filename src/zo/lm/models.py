"""Load a decoder or masked model and its tokenizer in the dtype that was asked for.

transformers is imported where it is used, since the configuration needs this module but not that library.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zo.lm.config import STAND_IN, ModelConfig, ModelError
from zo.lm.float16 import widen
from zo.tasks import package_files


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode and its tokenizer, which has a pad token."""

    model: Any
    tokenizer: Any


def load(model_cfg: ModelConfig, dtype: torch.dtype, device: str | torch.device) -> Loaded:
    """Load, cast and check; the first use of a GGUF file converts it into the cache.

    Random weights are drawn on the device in the dtype, the same ones every time, without touching
    the global random state.

    Raises:
        ModelError: weights out of reach or not the expected ones, an architecture that
            `zo.lm.scoring` cannot read.
    """
    with _quiet():
        read = _random if model_cfg.weights == "random" else _pretrained
        loaded = read(model_cfg, dtype, torch.device(device))
    model = loaded.model
    for parameter in model.parameters():  # some architectures keep a few in float32
        parameter.data = parameter.data.to(dtype)
    loaded = Loaded(model.to(device).eval(), loaded.tokenizer)
    if dtype == torch.float16 and torch.device(device).type == "cpu":
        widen(model)
    model.config.use_cache = False
    check_head(model, model_cfg.kind)
    return loaded


def load_tokenizer(cfg: ModelConfig) -> Any:
    """The tokenizer that goes with the model, with a pad token; nothing else is loaded.

    Raises:
        ModelError: out of reach.
    """
    with _quiet():
        if cfg.weights == "random":
            return _stand_in_tokenizer(cfg)
        return _tokenizer(cfg, *_source(cfg))


def head_of(model: Any, kind: str) -> Callable[[Any], Any]:
    """What turns last hidden states into logits.

    Of a decoder the output embedding; of a masked model all that follows the encoder: in RoBERTa a
    dense layer, gelu, a layer norm and the output embedding with its bias.
    """
    if kind == "decoder":
        return model.get_output_embeddings()
    return nn.Sequential(*(part for part in model.children() if part is not model.base_model))


@torch.inference_mode()
def check_head(model: Any, kind: str = "decoder") -> None:
    """Make sure that logits at chosen places are the head's of the hidden states there.

    Raises:
        ModelError: the model does more than that (scaled or capped logits), or takes no positions.
    """
    name = type(model).__name__
    accepted = inspect.signature(model.base_model.forward).parameters
    needed = {"attention_mask"} | ({"position_ids"} if kind == "decoder" else set())
    if model.base_model is model or not needed <= accepted.keys():
        raise ModelError(f"model.path: {name} takes no {max(needed)}, which scoring needs")
    tokens = torch.arange(1, 6, device=model.device)[None]  # (1, 5)
    options = {"use_cache": False} if kind == "decoder" else {}
    expected = model(input_ids=tokens, **options).logits.float()
    hidden = model.base_model(input_ids=tokens, **options).last_hidden_state
    logits = head_of(model, kind)(hidden).float()
    tolerance = 4 * torch.finfo(model.dtype).eps * expected.abs().max().item()
    if logits.shape != expected.shape or not torch.allclose(logits, expected, 0, tolerance):
        head = "output embedding" if kind == "decoder" else "head"
        raise ModelError(
            f"model.path: {name} does not compute its logits as {head} x last hidden"
            " state, so that candidates cannot be scored"
        )


def tied_rows(model: Any) -> nn.Embedding | None:
    """What looks up rows of a decoder's output embedding, where it is tied to the input's.

    A row times a hidden state is that token's logit. None if the two are not one tensor, or if
    either does more than to look up and to multiply.
    """
    given, head = model.get_input_embeddings(), model.get_output_embeddings()
    plain = type(given) is nn.Embedding and type(head) is nn.Linear and head.bias is None
    return given if plain and given.weight is head.weight else None


def first_position(model: Any) -> int:
    """The position of a text's first token: RoBERTa keeps some in front of it."""
    embeddings = getattr(model.base_model, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return 0 if padding is None else padding + 1


@torch.inference_mode()
def packs(model: Any, kind: str) -> bool:
    """Whether texts that share a row, kept apart by mask and positions, are computed as if alone.

    True where attention is all that connects tokens and knows their order from the positions;
    elsewhere (recurrent layers, distances counted in columns) what comes out is as wrong as without
    a mask, or about so: rounding is far below an eighth of that in every dtype.
    """
    base = model.base_model
    takes_mask = getattr(base, "_supports_attention_backend", False) and (
        model.config._attn_implementation in ("sdpa", "eager")
    )
    if not takes_mask or "position_ids" not in inspect.signature(base.forward).parameters:
        return False
    n, m = 3, 4
    tokens = torch.arange(5, 5 + n + m, device=model.device)[None]  # (1, n + m)
    places = torch.cat([torch.arange(n), torch.arange(m)]).to(model.device)[None]
    text = torch.tensor([0] * n + [1] * m, device=model.device)
    sees = text[:, None] == text  # (n + m, n + m)
    if kind == "decoder":
        sees = sees.tril()
    mask = torch.zeros(sees.shape, dtype=model.dtype, device=model.device)
    mask = mask.masked_fill(~sees, torch.finfo(model.dtype).min)[None, None]

    def last(ids: Any, **options: Any) -> Any:
        options |= {"use_cache": False} if kind == "decoder" else {}
        return base(input_ids=ids, **options).last_hidden_state[0, -m:].float()

    alone, mixed = last(tokens[:, n:]), last(tokens)
    packed = last(tokens, attention_mask=mask, position_ids=places + first_position(model))
    wrong, without = (packed - alone).abs().max(), (mixed - alone).abs().max()
    return not bool(wrong > without / 8)  # also of a model that has collapsed, whose states are nan


def _auto_class(cfg: ModelConfig) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    return AutoModelForMaskedLM if cfg.kind == "masked" else AutoModelForCausalLM


def _tokenizer(cfg: ModelConfig, source: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    with _explained(cfg):
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _stand_in_tokenizer(cfg: ModelConfig) -> Any:
    """Its ids stay as they are: they fit into every vocabulary that is at least as large."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        package_files.resolve(STAND_IN), local_files_only=True
    )
    if cfg.kind == "masked":
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
    return tokenizer


def _pretrained(cfg: ModelConfig, dtype: torch.dtype, device: torch.device) -> Loaded:
    source, options = _source(cfg)
    tokenizer = _tokenizer(cfg, source, options)
    with _explained(cfg):
        model = _auto_class(cfg).from_pretrained(
            source, dtype=dtype, attn_implementation=cfg.attention, **options
        )
    return Loaded(model, tokenizer)


def _random(cfg: ModelConfig, dtype: torch.dtype, device: torch.device) -> Loaded:
    from transformers import AutoConfig

    tokenizer = _stand_in_tokenizer(cfg)
    if cfg.architecture:
        try:
            config = AutoConfig.for_model(**cfg.architecture)
        except (ValueError, TypeError) as error:
            raise ModelError(f"model.architecture: {_first_line(error)}") from error
    else:
        source, options = _source(cfg)
        with _explained(cfg):
            config = AutoConfig.from_pretrained(source, **options)
    if len(tokenizer) > config.vocab_size:
        raise ModelError(
            f"model.architecture: a vocabulary of {config.vocab_size} has no room for the"
            f" {len(tokenizer)} tokens that random weights are used with"
        )
    config.pad_token_id = tokenizer.pad_token_id  # RoBERTa counts positions from it
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(0)  # transformers draws from the global state, which the fork puts back
        model = _auto_class(cfg).from_config(config, dtype=dtype, attn_implementation=cfg.attention)
    return Loaded(model, tokenizer)


@contextmanager
def _explained(cfg: ModelConfig) -> Iterator[None]:
    """Turns the dozen kinds of exceptions for "could not be loaded" into one sentence."""
    try:
        yield
    except Exception as error:
        raise ModelError(_unreachable(cfg, error)) from error


def _source(cfg: ModelConfig) -> tuple[str, dict[str, Any]]:
    """What to load from, and how: from this machine alone, or a revision of the hub."""
    try:
        path = package_files.resolve(cfg.path)
        if cfg.gguf_file is not None:
            path = _gguf_path(path, cfg)
    except Exception as error:  # not installed, or any of the hub's errors
        raise ModelError(_unreachable(cfg, error)) from error
    if path.endswith(".gguf"):
        path = str(_converted(Path(path), cfg))
    if Path(path).is_dir():
        return path, {"local_files_only": True}
    return path, {} if cfg.revision is None else {"revision": cfg.revision}


def _gguf_path(path: str, cfg: ModelConfig) -> str:
    if Path(path).is_dir():
        return str(Path(path) / str(cfg.gguf_file))
    from huggingface_hub import hf_hub_download

    return hf_hub_download(path, str(cfg.gguf_file), revision=cfg.revision)


def _unreachable(cfg: ModelConfig, error: Exception) -> str:
    reason = _first_line(error)
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


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else repr(error)


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
    from safetensors.torch import save_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

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
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
