"""Properties of an architecture for scoring: head, positions, whether padding or neighbours change a text."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zo.lm.config import ModelError
from zo.weights.offloaded import device_of


def differs(found: Tensor, alone: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether two results of a model differ by more than its dtype's rounding; nan does not count."""
    wrong = (found.float() - alone.float()).abs().amax() / alone.float().abs().amax()
    return bool(wrong > torch.finfo(dtype).eps ** 0.5)


def by_length(compute: Callable[[Tensor, int], Tensor], lengths: Tensor, width: int) -> Tensor:
    """Computes rows in groups of equal length.

    Args:
        compute: Function of row indices and their length n: the model's result without padding.  # (p, n, D)
        lengths: Of the rows.                                                                           # (P,)
        width: Of the result.

    Returns:
        Results of `compute`, 0 after a row's end.  # (P, width, D)
    """
    parts = {}
    for n in lengths.unique().tolist():
        rows = (lengths == n).nonzero()[:, 0]
        parts[n] = rows, compute(rows, n)
    like = parts[n][1]
    found = like.new_zeros(len(lengths), width, like.shape[-1])
    for n, (rows, part) in parts.items():
        found[rows, :n] = part
    return found


@torch.inference_mode()
def head_of(model: Any, kind: str) -> Callable[[Any], Any]:
    """Returns the function from last hidden states to logits.

    For a decoder it is the output embedding, with the model's cap on logits if there is one. For a masked model it is
    everything after the encoder, in the order of a forward pass: in RoBERTa a dense layer, gelu, a layer norm and the
    output embedding with its bias.
    """
    if kind == "decoder":
        head, cap = model.get_output_embeddings(), _cap(model)
        return head if not cap else lambda hidden: cap * torch.tanh(head(hidden) / cap)
    called: list[nn.Module] = []
    parts = [part for part in model.children() if part is not model.base_model]
    hooks = [part.register_forward_pre_hook(lambda part, _: called.append(part)) for part in parts]
    try:
        model(input_ids=_tokens(model))
    finally:
        for hook in hooks:
            hook.remove()
    return nn.Sequential(*called)


@torch.inference_mode()
def check_head(model: Any, kind: str = "decoder") -> None:
    """Raises ModelError unless logits are the head's output for hidden states, and tokens see no later ones."""
    name = type(model).__name__
    if model.base_model is model:
        raise ModelError(
            f"model.path: scoring needs a base model below the head, and {name} has none"
        )
    options = {"use_cache": False} if kind == "decoder" else {}
    tokens = _tokens(model)
    expected = model(input_ids=tokens, **options).logits.float()
    if expected.isnan().any():
        bad = next((n for n, p in model.named_parameters() if p.isnan().any()), None)
        where = f"{bad} holds NaN" if bad else "its weights are finite, its dtype may be too small"
        raise ModelError(f"model.path: {name} computes NaN: {where}; give weights that work")
    hidden = model.base_model(input_ids=tokens, **options).last_hidden_state
    logits = head_of(model, kind)(hidden).float()
    tolerance = 4 * torch.finfo(model.dtype).eps * expected.abs().max().item()
    if logits.shape != expected.shape or not torch.allclose(logits, expected, 0, tolerance):
        head = "output embedding" if kind == "decoder" else "head"
        raise ModelError(
            f"model.path: {name} does not compute its logits as {head} x last hidden"
            " state, so that candidates cannot be scored"
        )
    if kind == "decoder":
        begin = model.base_model(input_ids=tokens[:, :3], **options).last_hidden_state
        if differs(hidden[:, :3], begin, model.dtype):  # a collapsed model has nan
            raise ModelError(
                f"model.kind: {name} is not a decoder: its tokens see later ones; is it model.kind=masked?"
            )


@torch.inference_mode()
def check_padding(model: Any, kind: str) -> None:
    """Raises ModelError if padding after a text changes a masked model's or an encoder's result, or it fails."""
    base = model.base_model if kind == "masked" else model.get_encoder()
    tokens, pad = _tokens(model), model.config.pad_token_id or 0
    padded = torch.nn.functional.pad(tokens, (0, 4), value=pad)
    seen = torch.arange(padded.shape[1], device=device_of(model))[None] < tokens.shape[1]
    try:
        alone = base(input_ids=tokens).last_hidden_state
        found = base(input_ids=padded, attention_mask=seen.long()).last_hidden_state
    except (RuntimeError, ValueError, TypeError) as error:
        raise ModelError(
            f"model.path: {type(model).__name__} cannot be scored: {str(error).splitlines()[0]}"
        ) from None
    if differs(found[:, : tokens.shape[1]], alone, model.dtype):
        raise ModelError(
            f"model.path: padding changes the scores of {type(model).__name__}, so batches cannot be scored; use"
            " another model, as roberta-large"
        )


def _cap(model: Any) -> float | None:
    """Returns the cap of a decoder's logits, cap · tanh(logits / cap), as in Gemma 2; None without one."""
    return getattr(model.config.get_text_config(), "final_logit_softcapping", None)


def _tokens(model: Any) -> torch.Tensor:
    return torch.arange(1, 6, device=device_of(model))[None]  # (1, 5)


def tied_rows(model: Any) -> nn.Embedding | None:
    """Returns the lookup of rows of a decoder's output embedding, if it is tied to the input's.

    A row times a hidden state is that token's logit. None if the two are not one tensor, or if either does more than
    a lookup and a product.
    """
    given, head = model.get_input_embeddings(), model.get_output_embeddings()
    plain = type(given) is nn.Embedding and type(head) is nn.Linear and head.bias is None
    return given if plain and given.weight is head.weight and not _cap(model) else None


def first_position(model: Any) -> int:
    """Returns the position of a text's first token, which is not 0 in RoBERTa."""
    embeddings = getattr(model.base_model, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return 0 if padding is None else padding + 1


@torch.inference_mode()
def packs(model: Any, kind: str) -> bool:
    """Returns whether texts in one row, separated by mask and positions, are computed as if alone.

    True if only attention connects tokens and takes their order from the positions. Otherwise (recurrent layers,
    distances in columns) the error is about that of no mask; rounding is far below an eighth of it in every dtype.
    """
    base = model.base_model
    takes_mask = getattr(base, "_supports_attention_backend", False) and (
        model.config._attn_implementation in ("sdpa", "eager")
    )
    if not takes_mask or "position_ids" not in inspect.signature(base.forward).parameters:
        return False
    n, m = 3, 4
    tokens = torch.arange(5, 5 + n + m, device=device_of(model))[None]  # (1, n + m)
    places = torch.cat([torch.arange(n), torch.arange(m)]).to(device_of(model))[None]
    text = torch.tensor([0] * n + [1] * m, device=device_of(model))
    sees = text[:, None] == text  # (n + m, n + m)
    if kind == "decoder":
        sees = sees.tril()
    mask = torch.zeros(sees.shape, dtype=model.dtype, device=device_of(model))
    mask = mask.masked_fill(~sees, torch.finfo(model.dtype).min)[None, None]

    def last(ids: Any, **options: Any) -> Any:
        options |= {"use_cache": False} if kind == "decoder" else {}
        return base(input_ids=ids, **options).last_hidden_state[0, -m:].float()

    alone, mixed = last(tokens[:, n:]), last(tokens)
    packed = last(tokens, attention_mask=mask, position_ids=places + first_position(model))
    wrong, without = (packed - alone).abs().max(), (mixed - alone).abs().max()
    return not bool(wrong > without / 8)  # also of a model that has collapsed, whose states are nan
