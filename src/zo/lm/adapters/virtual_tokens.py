"""Prefix and prompt tuning: a decoder with virtual tokens before every text."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from zo.lm.config import ModelError
from zo.weights.offloaded import device_of


class VirtualTokens(nn.Module):
    """A peft model with virtual tokens, in the form that the scorer needs: `base_model` and a head.

    Attributes:
        base_model: Returns last hidden states of the texts' own tokens.
        config: The model's, with positions and window reduced by the number of virtual tokens.
    """

    def __init__(self, peft: Any):
        super().__init__()
        self.base_model = _Body(peft)
        model = peft.get_base_model()
        self.config = copy.deepcopy(model.config)
        self.generation_config = model.generation_config
        for limit in ("max_position_embeddings", "sliding_window"):
            if (most := getattr(self.config.get_text_config(), limit, None)) is not None:
                setattr(self.config.get_text_config(), limit, most - self.base_model.count)
        self.device, self.dtype = device_of(model), model.dtype

    def get_input_embeddings(self) -> Any:
        """Returns the model's."""
        return self.base_model.peft.get_base_model().get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        """Returns the model's."""
        return self.base_model.peft.get_base_model().get_output_embeddings()

    def generate(self, **options: Any) -> Any:
        """Returns what the model generates after the virtual tokens."""
        return self.base_model.peft.generate(**options)

    @torch.no_grad()
    def begin_from(self, tokens: Tensor) -> None:
        """Initialises the virtual tokens so that they act like these tokens, (N,), one for each, before a text.

        Raises ModelError if the model's outputs differ.
        """
        body, model = self.base_model, self.base_model.peft.get_base_model()
        if body.is_prefix:
            cache = model.base_model(input_ids=tokens[None], use_cache=True).past_key_values
            layers = [t for layer in cache.layers for t in (layer.keys[0], layer.values[0])]
            start = torch.stack(layers).permute(2, 0, 1, 3)  # (N, 2 layers, heads, d)
        else:
            start = model.get_input_embeddings()(tokens)
        weight = body.encoder.embedding.weight
        if start.numel() != weight.numel():
            raise ModelError(f"adapter: peft's prefix has another shape than {_name(model)}'s keys")
        weight.copy_(start.reshape(weight.shape))
        text = torch.arange(1, 6, device=tokens.device)[None]
        options = {"use_cache": False}
        both = model.base_model(input_ids=torch.cat([tokens[None], text], 1), **options)
        expected = both.last_hidden_state[:, -text.shape[1] :].float()
        found = body(text, **options).last_hidden_state.float()
        wrong = (found - expected).abs().max() / expected.abs().max()
        if wrong > torch.finfo(self.dtype).eps ** 0.5:  # nan, of a collapsed model, is not
            raise ModelError(
                f"adapter: {_name(model)} has other results with virtual tokens than with tokens; use adapter=lora"
            )


class _Body(nn.Module):
    """The model without its head, with virtual tokens before every row."""

    _supports_attention_backend: bool

    def __init__(self, peft: Any):
        super().__init__()
        self.peft = peft
        own = peft.get_base_model().base_model
        self._supports_attention_backend = getattr(own, "_supports_attention_backend", False)
        self.is_prefix = peft.active_peft_config.peft_type == "PREFIX_TUNING"
        self.count = peft.active_peft_config.num_virtual_tokens

    @property
    def encoder(self) -> Any:
        """The module of the virtual tokens."""
        return self.peft.prompt_encoder[self.peft.active_adapter]

    def forward(
        self,
        input_ids: Tensor,  # (P, L)
        attention_mask: Tensor | None = None,  # additive, (P, 1, L, L)
        position_ids: Tensor | None = None,  # (P, L)
        use_cache: bool = False,
    ) -> Any:
        """Returns the output of the model's body, without the virtual tokens."""
        model, rows = self.peft.get_base_model(), input_ids.shape[0]
        options: dict[str, Any] = {"use_cache": use_cache}
        if attention_mask is not None:
            options["attention_mask"] = self._mask(attention_mask)
        if self.is_prefix:
            if position_ids is not None:
                options["position_ids"] = position_ids + self.count
            options["past_key_values"] = self.peft.get_prompt(rows)
            return model.base_model(input_ids=input_ids, **options)
        own = torch.arange(self.count, device=input_ids.device).expand(rows, -1)
        if position_ids is not None:
            options["position_ids"] = torch.cat([own, position_ids + self.count], 1)
        texts = model.get_input_embeddings()(input_ids)
        embeddings = torch.cat([self.encoder(own).to(texts.dtype), texts], 1)
        output = model.base_model(inputs_embeds=embeddings, **options)
        output.last_hidden_state = output.last_hidden_state[:, self.count :]
        return output

    def _mask(self, mask: Tensor) -> Tensor:
        """Returns the mask of texts that see all virtual tokens.  # (P, 1, L or N + L, N + L)."""
        rows, _, length, _ = mask.shape
        seen = mask.new_zeros(rows, 1, length, self.count)
        below = torch.cat([seen, mask], -1)
        if self.is_prefix:
            return below
        hidden = torch.finfo(mask.dtype).min
        above = mask.new_full((self.count, self.count + length), hidden).triu_(1)
        return torch.cat([above.expand(rows, 1, -1, -1), below], 2)


def _name(model: nn.Module) -> str:
    return type(model).__name__
