"""Applies adapters to a loaded model. LoRA, IA3, prefix and prompt tuning come from the library peft."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zo.extras import unusable
from zo.lm.adapters.config import (
    AdapterConfig,
    IA3Adapter,
    LayersAdapter,
    LoraAdapter,
    PeftAdapter,
    PrefixAdapter,
    PromptAdapter,
    ScalesAdapter,
    chosen_layers,
)
from zo.lm.adapters.virtual_tokens import VirtualTokens
from zo.lm.config import ModelError
from zo.lm.float16 import widen
from zo.lm.load import Loaded
from zo.lm.quantise import QuantisedLinear, count, dequantise
from zo.lm.source import quiet
from zo.weights.offloaded import device_of

PEFT_TYPES = {"lora": "LORA", "ia3": "IA3", "prefix": "PREFIX_TUNING", "prompt": "PROMPT_TUNING"}
"""Adapter -> peft's name for it, in adapter_config.json."""

SHOWN = 5  # Names that a message lists


def adapt(loaded: Loaded, cfg: AdapterConfig, seed: int) -> Loaded:
    """Freezes the other parameters and adds the adapter, initialised by `seed`. Raises ModelError if none fits."""
    total = count(loaded.model)
    if isinstance(cfg, PeftAdapter):
        device = device_of(loaded.model)
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)  # peft draws from the global state, which the fork puts back
            loaded = _with_peft(loaded, cfg)
    else:
        _train_only(loaded.model, cfg)
    trained = sum(p.numel() for p in loaded.model.parameters() if p.requires_grad)
    note = (
        f"adapter={cfg.name}: {trained:,} parameters are trained, "
        f"{trained / total:.2%} of the model's {total:,}"
    )
    return replace(loaded, notes=(*loaded.notes, note))


def _train_only(model: nn.Module, cfg: AdapterConfig) -> None:
    """Freezes all parameters except those that the adapter names."""
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if isinstance(cfg, ScalesAdapter):
        layers = [m for m in model.named_modules() if isinstance(m[1], QuantisedLinear)]
        own |= {f"{name}.scale": layer.scale for name, layer in layers}
        chosen = {f"{name}.scale" for name, _ in layers}
        wrong = "adapter=scales: no weight is quantised"
    elif isinstance(cfg, LayersAdapter):
        blocks = _blocks(model, cfg.layers)
        within = () if blocks is None else tuple(f"{blocks[0]}.{i}." for i in blocks[1])
        inside = (name for name in own if name.startswith(within or ""))
        chosen = {name for name in inside if re.search(cfg.pattern, name)}
        wrong = f"adapter.pattern={cfg.pattern}: matches no parameter name"
    else:
        chosen = {name for name in own if name.split(".")[-1] == "bias"}
        wrong = f"adapter=bias: {type(model).__name__} has no biases"
    if not chosen:
        raise ModelError(f"{wrong}; there are {', '.join(list(own)[:SHOWN])}, ...")
    for name, p in own.items():
        p.requires_grad_(name in chosen)


def _blocks(model: nn.Module, layers: Any) -> tuple[str, list[int]] | None:
    """Returns the name of a model's list of blocks, and the numbers of those that `adapter.layers` chooses.

    Raises:
        ModelError: If the model does not have exactly one such list, or has fewer blocks.
    """
    if layers is None:
        return None
    count = getattr(model.config, "num_hidden_layers", 0)
    lists: list[str] = []
    for name, module in model.named_modules():
        inner = any(name.startswith(f"{of}.") for of in lists)
        if isinstance(module, nn.ModuleList) and len(module) == count and not inner:
            lists.append(name)
    if len(lists) != 1:
        right = f"needs a model with one list of layers; {type(model).__name__} has {len(lists)}"
        raise ModelError(f"adapter.layers: {right}; use adapter=layers adapter.pattern=...")
    try:
        return lists[0], chosen_layers(layers, count)
    except ValueError as error:
        raise ModelError(str(error)) from None


def _with_peft(loaded: Loaded, cfg: PeftAdapter) -> Loaded:
    """Returns the model with an adapter in float32 or the model's dtype."""
    try:
        import peft
    except ImportError as error:
        raise ModelError(f"adapter={cfg.name}: {unusable('peft', error)}") from None
    model = loaded.model
    wide = cfg.dtype == "float32"
    options: dict[str, Any] = {"autocast_adapter_dtype": wide}
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens = torch.randint(vocabulary, (getattr(cfg, "tokens", 0),)).to(device_of(model))
    try:
        if cfg.path is None:
            made = peft.get_peft_model(model, _peft_config(cfg, loaded), **options)
        else:
            _check_kind(cfg.path, cfg.name)
            stored = peft.utils.load_peft_weights(cfg.path, device="cpu")
            virtual = isinstance(cfg, PromptAdapter)  # peft loads these for inference alone
            made = peft.PeftModel.from_pretrained(
                model, cfg.path, is_trainable=not virtual, **options
            )
            if virtual:
                made.active_peft_config.inference_mode = False
                made.prompt_encoder.requires_grad_(True)
            _check_loaded(made, stored, cfg.path)
    except ModelError:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, OSError, NotImplementedError) as error:
        raise _refusal(model, cfg, error) from error
    for p in made.parameters():
        if p.requires_grad:
            p.data = p.data.to(device_of(model), torch.float32 if wide else model.dtype)
    if model.dtype == torch.float16 and device_of(model).type == "cpu":
        widen(made)
    made.eval()
    if not isinstance(cfg, PromptAdapter):
        return replace(loaded, adapter=made)
    wrapped = VirtualTokens(made)
    if cfg.path is None:
        wrapped.begin_from(tokens)
        if isinstance(cfg, PrefixAdapter) and not cfg.real_activations:
            weight = wrapped.base_model.encoder.embedding.weight
            weight.data.copy_(torch.randn(weight.shape))
    return replace(loaded, model=wrapped, adapter=made)


def _peft_config(cfg: PeftAdapter, loaded: Loaded) -> Any:
    """Returns peft's settings of a new adapter."""
    import peft

    task = "CAUSAL_LM" if loaded.kind == "decoder" else None
    within: dict[str, Any] = {"task_type": task}
    if blocks := _blocks(loaded.model, getattr(cfg, "layers", None)):
        inside = "|".join(map(str, blocks[1]))
        within["exclude_modules"] = rf"(?!{re.escape(blocks[0])}\.(?:{inside})\.).*"
    if isinstance(cfg, LoraAdapter):
        targets = cfg.targets or None
        return peft.LoraConfig(r=cfg.r, lora_alpha=cfg.alpha, target_modules=targets, **within)
    if isinstance(cfg, IA3Adapter):
        own = cfg.feedforward if cfg.targets else None
        return peft.IA3Config(target_modules=cfg.targets or None, feedforward_modules=own, **within)
    assert isinstance(cfg, PromptAdapter)
    kind = peft.PrefixTuningConfig if isinstance(cfg, PrefixAdapter) else peft.PromptTuningConfig
    return kind(num_virtual_tokens=cfg.tokens, task_type=task)


def _check_kind(path: str, name: str) -> None:
    """Checks that a directory has an adapter of the configured kind."""
    text = Path(path, "adapter_config.json").read_text(encoding="utf-8")
    found = json.loads(text).get("peft_type")
    if found != PEFT_TYPES[name]:
        names = {kind: name for name, kind in PEFT_TYPES.items()}
        raise ModelError(f"adapter.path={path}: is a {found} adapter; adapter={names.get(found)}")


def _check_loaded(made: Any, stored: Mapping[str, Tensor], path: str) -> None:
    """Checks that an adapter's files and the adapted model have the same tensors; peft drops others silently."""
    import peft

    own = peft.get_peft_model_state_dict(made, save_embedding_layers=False)
    other = [key for key in stored if key not in own and key not in made.state_dict()]
    missing = [key for key in own if key not in stored]
    if other or missing:
        name = type(made.get_base_model()).__name__
        raise ModelError(
            f"adapter.path={path}: does not fit {name}: {len(other)} of its {len(stored)} tensors are not in the model,"
            f" {len(missing)} are missing ({(other or missing)[0]}); load it onto the model that it was trained on"
        )


def _refusal(model: nn.Module, cfg: PeftAdapter, error: Exception) -> ModelError:
    """Returns one sentence for an exception of peft's."""
    lines = str(error).splitlines() or [type(error).__name__]
    reason = lines[-1].strip() if lines[0].endswith(":") else lines[0]
    if "arget" not in reason:
        return ModelError(f"adapter={cfg.name}: {reason}")
    linear = (n.split(".")[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear))
    there = f"{type(model).__name__} has the linear layers {', '.join(dict.fromkeys(linear))}"
    return ModelError(f"adapter.targets: {reason.rstrip('.')}; {there}")


def merged(loaded: Loaded) -> Any:
    """Returns the model with the adapter merged into dequantised weights. Raises ModelError if none can be."""
    if isinstance(loaded.model, VirtualTokens):
        why = "virtual tokens cannot be merged into weights"
        raise ModelError(f"--merge: {why}; export without --merge")
    dequantise(loaded.model)
    return loaded.adapter.merge_and_unload() if loaded.adapter is not None else loaded.model
