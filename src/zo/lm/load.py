"""Loads a decoder or masked model and its tokenizer in the configured dtype.

transformers is imported on use, since the configuration imports this package but not that library.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from zo.lm.config import ModelConfig, ModelError
from zo.lm.scoring.heads import check_head, check_padding
from zo.lm.source import explained, of_source, quiet, source_of, stand_in
from zo.weights.offloaded import OffloadError, OffloadRefused

SHOWN = 3  # Names of tensors that a message lists

DEQUANTISED = ("fp8", "mxfp4")
"""Kinds of quantised checkpoints that transformers can load as plain weights."""


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode and its tokenizer, which has a pad token."""

    model: Any  # As transformers returns it
    tokenizer: Any  # Of the model
    notes: tuple[str, ...] = ()  # Sentences for the log about the weights
    kind: str = "decoder"  # `decoder` or `masked`
    adapter: Any = None  # peft's model, if it has an adapter of peft's
    # Name of a weight that the model's first forward pass changed, as RWKV's does; else None
    rewritten: str | None = None


def load(
    model_cfg: ModelConfig,
    dtype: torch.dtype,
    device: str | torch.device,
    tensor_parallel: bool = False,
    scratch: Path | None = None,
) -> Loaded:
    """Loads, casts and checks a model; the first use of a GGUF file converts it into the cache.

    Random weights are generated on the device in the dtype, deterministically and without the global random state.
    With `tensor_parallel` each process loads its part of pretrained weights. Weights that are offloaded to disk stay in
    their files. Those that must be written go to `scratch`, or to a directory that is removed when the process ends.

    Raises:
        ModelError: If weights cannot be loaded, are incomplete or not the expected ones, or
            `zo.lm.scoring.candidates` does not support the architecture.
    """
    device = torch.device(device)
    where = model_cfg.offload if device.type != "cpu" or model_cfg.offload == "disk" else None
    folder = scratch
    if where == "disk" and folder is None:
        folder = Path(tempfile.mkdtemp(prefix="zo-offload-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with quiet():
        if model_cfg.weights == "random":
            loaded = random_weights(model_cfg, dtype, device)
        else:
            options: dict[str, Any] = {"tp_plan": "auto"} if tensor_parallel else {}
            if where == "disk":
                options = {"device_map": {"": "disk"}, "offload_folder": str(folder)}
            loaded = _pretrained(model_cfg, dtype, options)
    model = loaded.model
    for parameter in model.parameters():  # some architectures keep a few in float32
        if parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    try:
        if where is None:
            model.to(device)
        else:
            from zo.weights.offload.setup import offload

            offload(model, where, device, folder)
        return _checked(model_cfg, loaded, dtype, device)
    except (OffloadRefused, OffloadError) as error:
        raise ModelError(f"model.offload={where}: {error}") from None


def _checked(
    model_cfg: ModelConfig, loaded: Loaded, dtype: torch.dtype, device: torch.device
) -> Loaded:
    """Returns the model in evaluation mode, quantised. Raises ModelError if it cannot be scored."""
    model = loaded.model
    loaded = replace(loaded, model=model.eval(), kind=model_cfg.kind)
    if dtype == torch.float16 and device.type == "cpu":
        from zo.lm.float16 import widen

        widen(model)
    if model_cfg.quantization is not None:
        from zo.lm.quantise import quantise

        note = quantise(model, model_cfg.quantization)
        loaded = replace(loaded, notes=(*loaded.notes, note))
    model.config.use_cache = False
    versions = [(name, p, p._version) for name, p in model.named_parameters()]
    if model_cfg.kind != "decoder":
        check_padding(model, model_cfg.kind)
    if model_cfg.kind != "encoder-decoder":
        check_head(model, model_cfg.kind)
    changed = (name for name, p, version in versions if p._version != version)
    return replace(loaded, rewritten=next(changed, None))


def _pretrained(cfg: ModelConfig, dtype: torch.dtype, how: Mapping[str, Any]) -> Loaded:
    from transformers import AutoConfig

    source, options = source_of(cfg)
    adapter = Path(source, "adapter_config.json")
    if adapter.is_file() and not adapter.with_name("config.json").is_file():
        about = json.loads(adapter.read_text(encoding="utf-8"))
        base = about.get("base_model_name_or_path") or "BASE"
        kind = str(about.get("peft_type")).partition("_")[0].lower()
        raise ModelError(
            f"model.path: {source} is an adapter; give model.path={base} adapter={kind} adapter.path={source}"
        )
    with explained(cfg):
        config = AutoConfig.from_pretrained(source, **options)
    check_kind(cfg, config)
    tokenizer = of_source(cfg, source, options)
    if quantised := getattr(config, "quantization_config", None):
        _check_quantised(cfg, quantised)
        how = {**how, "config": config}
    with explained(cfg):
        model, info = _auto_class(cfg).from_pretrained(
            source,
            dtype=dtype,
            attn_implementation=cfg.attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **options,
            **how,
        )
    _check_complete(cfg, model, info)
    notes = []
    if unused := sorted(info["unexpected_keys"]):
        notes.append(
            f"{cfg.path}: {_listed(unused)} in the files, not in {type(model).__name__}; not used"
        )
    return Loaded(model, tokenizer, tuple(notes))


def _check_quantised(cfg: ModelConfig, settings: dict[str, Any]) -> None:
    """Has a quantised checkpoint loaded as plain weights. Raises ModelError if transformers cannot."""
    method = settings.get("quant_method", "bitsandbytes")  # whose older checkpoints do not say it
    if method not in DEQUANTISED:
        raise ModelError(
            f"model.path: {cfg.path} is quantised by {method}, and its weights cannot be moved; give the plain model,"
            " with model.quantization=int8 or nf4 to quantise what is not trained"
        )
    settings["dequantize"] = True


def check_kind(cfg: ModelConfig, config: Any) -> None:
    """Raises ModelError unless a model is of the configured kind; names the right kind, if there is one."""
    from transformers.models.auto import modeling_auto

    stored = (config.architectures or [config.model_type])[0]
    both = getattr(config, "is_encoder_decoder", False)
    kinds = {
        "encoder-decoder": both,
        "decoder": not both
        and config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "masked": not both and config.model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    }
    if kinds["masked"] and "MaskedLM" in stored:  # BERT and its like can be decoders, too
        kinds["decoder"] = False
    if kinds[cfg.kind]:
        return
    right = [kind for kind, possible in kinds.items() if possible]
    if not right:
        raise ModelError(
            f"model.path: {stored} is neither a decoder, nor a masked language model, nor an encoder-decoder"
        )
    raise ModelError(f"model.kind={cfg.kind}: {cfg.path} is a {stored}; use model.kind={right[0]}")


def _check_complete(cfg: ModelConfig, model: Any, info: Mapping[str, Any]) -> None:
    """Checks that every tensor came from the files: transformers initialises missing ones at random."""
    name = type(model).__name__
    if other := sorted(info["mismatched_keys"]):
        tensor, there, wanted = other[0]
        raise ModelError(
            f"model.path: {_listed([key for key, *_ in other])} of {cfg.path} in another shape than config.json says:"
            f" {tensor} is {tuple(there)}, not {tuple(wanted)}"
        )
    parameters = {key for key, _ in model.named_parameters(remove_duplicate=False)}
    if missing := sorted(parameters & set(info["missing_keys"])):
        raise ModelError(
            f"model.path: {_listed(missing)} of {name} missing in {cfg.path} would be random; give all of them"
        )


def _listed(names: list[str]) -> str:
    """Returns the number of tensors, and the names of the first ones."""
    more = ", ..." if len(names) > SHOWN else ""
    return f"{len(names)} tensor{'s' * (len(names) > 1)} ({', '.join(names[:SHOWN])}{more})"


def random_weights(cfg: ModelConfig, dtype: torch.dtype, device: torch.device) -> Loaded:
    """Returns an architecture with random weights and reviews-tiny's tokenizer. Raises ModelError if it has none."""
    from transformers import AutoConfig

    tokenizer = stand_in(cfg)
    if cfg.architecture:
        try:
            config = AutoConfig.for_model(**cfg.architecture)
        except (ValueError, TypeError) as error:
            raise ModelError(f"model.architecture: {str(error).splitlines()[0]}") from error
    else:
        source, options = source_of(cfg)
        with explained(cfg):
            config = AutoConfig.from_pretrained(source, **options)
    check_kind(cfg, config)
    if len(tokenizer) > config.vocab_size:
        raise ModelError(
            f"model.architecture: a vocabulary of {config.vocab_size} has no room for the"
            f" {len(tokenizer)} tokens that random weights are used with"
        )
    config.pad_token_id = tokenizer.pad_token_id  # RoBERTa counts positions from it
    with quiet(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(0)  # transformers draws from the global state, which the fork puts back
        model = _auto_class(cfg).from_config(
            config, dtype=dtype, attn_implementation=cfg.attention, trust_remote_code=False
        )
    return Loaded(model, tokenizer)


def _auto_class(cfg: ModelConfig) -> Any:
    import transformers

    classes = {
        "decoder": transformers.AutoModelForCausalLM,
        "masked": transformers.AutoModelForMaskedLM,
        "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
    }
    return classes[cfg.kind]
