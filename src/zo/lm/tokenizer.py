"""Loads a model's tokenizer, or that of reviews-tiny for random weights; always with a pad token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zo.lm.config import STAND_IN, ModelConfig, ModelError
from zo.lm.source import explained, quiet, source_of
from zo.tasks import package_files

FILES = ("tokenizer*", "vocab*", "*.model", "tekken.json")
"""Names of tokenizer files."""


def load_tokenizer(cfg: ModelConfig) -> Any:
    """Returns the model's tokenizer; loads nothing else.

    Raises:
        ModelError: If it is out of reach or incomplete.
    """
    with quiet():
        if cfg.weights == "random":
            return stand_in(cfg)
        return of_source(cfg, *source_of(cfg))


def of_source(cfg: ModelConfig, source: str, options: dict[str, Any]) -> Any:
    """Returns the tokenizer of a directory or a hub id.

    Raises:
        ModelError: If it is out of reach or incomplete.
    """
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
