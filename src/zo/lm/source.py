"""Finds a model and its tokenizer in a directory, a pip package, the hub or a GGUF file; explains failures."""

from __future__ import annotations

import logging as python_logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zo.lm.config import STAND_IN, ModelConfig, ModelError
from zo.tasks import hub, package_files

CHATTY = ("torchao", "torch.utils._pytree", "accelerate.big_modeling")
"""Loggers to silence: optional parts of torchao, and weights that stay on disk."""


def source_of(cfg: ModelConfig) -> tuple[str, dict[str, Any]]:
    """Returns a model's source and how to load it: local files only, or a hub's revision. May raise ModelError."""
    path = present(cfg)
    with explained(cfg):
        if cfg.gguf_file is not None:
            path = _gguf_path(path, cfg)
        if path.endswith(".gguf"):
            from zo.lm import gguf

            path = str(gguf.converted(Path(path), cfg))
        if Path(path).is_file():
            raise NotADirectoryError("it is a file")
    if Path(path).is_dir():
        return path, {"local_files_only": True, "trust_remote_code": False}
    revision = {} if cfg.revision is None else {"revision": cfg.revision}
    return path, {"trust_remote_code": False, **revision}


def present(cfg: ModelConfig) -> str:
    """Returns `model.path` as a path or hub id, without asking the hub. Raises ModelError if a path does not exist."""
    try:
        return package_files.existing(cfg.path)
    except FileNotFoundError as error:
        raise ModelError(f"model.path: {error}; {_remedy(cfg)}") from None


@contextmanager
def explained(cfg: ModelConfig) -> Iterator[None]:
    """Turns the many exceptions for "could not be loaded" into one sentence."""
    local = cfg.path.startswith(package_files.PREFIX) or Path(cfg.path).expanduser().exists()
    try:
        with hub.patient(local or package_files.is_path(cfg.path)):
            yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(_sentence(cfg, error)) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silences progress bars and logs of transformers; restores them on exit."""
    from transformers.utils import logging

    loggers = [python_logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(python_logging.ERROR)
    try:
        with hub.quiet(logging):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _gguf_path(path: str, cfg: ModelConfig) -> str:
    if Path(path).is_dir():
        return str(Path(path) / str(cfg.gguf_file))
    from huggingface_hub import hf_hub_download

    return hf_hub_download(path, str(cfg.gguf_file), revision=cfg.revision)


def _sentence(cfg: ModelConfig, error: Exception) -> str:
    reason = hub.first_line(error)
    if "trust_remote_code" in str(error):
        return (
            f"model.path: {cfg.path} needs Python code of its own (auto_map in its config.json), which is never run"
            " here; take a model that transformers has a class for"
        )
    if "support an attention implementation" in reason:
        return f"model.attention: {reason.split()[0]} has no {cfg.attention} attention; use model.attention=eager"
    remedy = hub.ELSEWHERE if hub.cannot_write(error) else _remedy(cfg)
    there = package_files.absent(cfg.path)
    return f"model.path: {there}{cfg.path} cannot be loaded ({reason}); {remedy}"


def _remedy(cfg: ModelConfig) -> str:
    if cfg.install:
        return f"`{cfg.install}` installs it"
    if package_files.is_path(cfg.path) or Path(cfg.path).exists():
        return "give the path of a complete model"
    command = f"hf download {cfg.path}" + (f" --revision {cfg.revision}" if cfg.revision else "")
    return (
        f"where the hub can be reached, `{command} --local-dir {cfg.path.split('/')[-1]}` downloads"
        " a copy for model.path=<local copy>"
    )


FILES = ("tokenizer*", "vocab*", "*.model", "tekken.json")  # Names of tokenizer files


def load_tokenizer(cfg: ModelConfig) -> Any:
    """Returns the model's tokenizer alone. Raises ModelError if it is out of reach or incomplete."""
    with quiet():
        if cfg.weights == "random":
            return stand_in(cfg)
        return of_source(cfg, *source_of(cfg))


def of_source(cfg: ModelConfig, source: str, options: dict[str, Any]) -> Any:
    """Returns the tokenizer of a directory or a hub id. Raises ModelError if it is out of reach or incomplete."""
    from transformers import AutoTokenizer

    folder = Path(source)
    if folder.is_dir() and not any(found for name in FILES for found in folder.glob(name)):
        raise ModelError(
            f"model.path: {cfg.path} has no tokenizer (tokenizer.json); copy the files of the model"
            " that it was made from"
        )
    with explained(cfg):
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"model.path: the tokenizer of {cfg.path} has neither a pad nor an eos token; name a pad_token in its"
                " tokenizer_config.json"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def stand_in(cfg: ModelConfig) -> Any:
    """Returns the tokenizer of reviews-tiny, whose ids fit every vocabulary of at least its size."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        package_files.resolve(STAND_IN), local_files_only=True
    )
    if cfg.kind == "masked":
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
    return tokenizer
