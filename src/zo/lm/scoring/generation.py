"""Generates completions, greedy or sampled, with a key-value cache; deterministic.

They are generated in batches, or one by one if padding changes a model's results. RWKV reads padding as text, BART as a
decoder counts positions from it, and MiniMax sees it when there is a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from zo.lm.scoring.candidates import PROMPTS, STATES
from zo.lm.scoring.decoding import Choose, Decoder, can_decode, most_probable
from zo.lm.scoring.heads import differs
from zo.lm.scoring.sampling import Draw, Draws
from zo.tasks.config import TaskError
from zo.tasks.prompts import Encoded
from zo.weights.offloaded import device_of

SCORES = (
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "bad_words_ids",
    "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "forced_bos_token_id", "forced_eos_token_id",
    "exponential_decay_length_penalty", "min_length", "min_new_tokens", "guidance_scale", "watermarking_config",
    "renormalize_logits", "remove_invalid_values",
)  # fmt: skip
"""Settings of a model's `generation_config` that texts obey; a task has none of its own for them."""

ROLES = "bos", "eos", "unk", "sep", "pad", "cls", "mask"

TRIED = 3  # Tokens that continue prompts in the check of whether a batch changes their scores


@dataclass(frozen=True)
class Written:
    """A completion."""

    text: str  # Without its end token or stop
    ids: list[int]  # Its tokens, with the end token
    truncated: bool  # Whether `max_new_tokens` came before an end


class Generator:
    """Generates completions of prompts, of at most `max_new_tokens`.

    They end with `stop`, or with the end tokens of tokenizer and model.
    """

    def __init__(self, model: Any, tokenizer: Any, max_new_tokens: int, stop: str | None) -> None:
        self._model, self._tokenizer, self._stop = model, tokenizer, stop
        self._left = not model.config.is_encoder_decoder
        self.max_new_tokens = max_new_tokens
        # Whether texts are generated one by one; None before two prompts of different length were seen
        self.alone: bool | None = None
        self._ends, pad = _ends(model, tokenizer), tokenizer.pad_token_id
        config = getattr(model, "generation_config", None)
        own = {name: getattr(config, name, None) for name in SCORES}
        self._own = [name for name, value in own.items() if value and value != 1.0]
        plain = can_decode(model) and not self._own
        self._decoder = Decoder(model, pad, self._ends) if plain else None
        special = [of.content for of in tokenizer.added_tokens_decoder.values() if of.special]
        named = {getattr(tokenizer, f"{role}_token") for role in ROLES}
        # Other than begin, end, padding and the like; texts are decoded without them
        self.dropped = [token for token in special if token not in named]
        self._special = special if stop and _is_lost(tokenizer, stop) else None
        self._options = {
            "max_new_tokens": max_new_tokens,
            "do_sample": False,
            "num_beams": 1,
            "repetition_penalty": 1.0,
            "use_cache": True,
            "eos_token_id": self._ends or None,
            "pad_token_id": pad,
        }

    def row_bytes(self, width: int) -> int:
        """Returns about the most bytes of a row after a prompt of so many tokens: cache, states and scores."""
        config = self._model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        bits = self._model.dtype.itemsize
        cache = 2 * config.num_hidden_layers * heads * size * bits * (width + self.max_new_tokens)
        states = STATES * config.hidden_size * bits * width
        return int(cache + states + 2 * 4 * config.vocab_size)

    def check(self, examples: Sequence[Encoded]) -> None:
        """Raises TaskError if a prompt and its completion exceed the model's window; finds whether to batch prompts."""
        self._check_room(examples)
        self._find_alone(examples[:PROMPTS])

    @property
    def notes(self) -> list[str]:
        """Sentences for the log about the generation of texts."""
        name = type(self._model).__name__
        said = f"padding changes the scores of {name}: texts are generated one by one"
        own = f"texts are generated with {', '.join(self._own)} of the model's generation_config"
        return [said] * bool(self.alone) + [own] * bool(self._own)

    def _check_room(self, examples: Sequence[Encoded]) -> None:
        most = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        if most is None or not self._left:
            return
        for example in examples:
            needed = len(example.prompt_ids) + self.max_new_tokens
            if needed > most:
                raise TaskError(
                    f"task.max_new_tokens={self.max_new_tokens}: row {example.row} has {len(example.prompt_ids)} prompt"
                    f" tokens, but the model sees {most} in all; lower it or task.max_length"
                )

    @torch.inference_mode()
    def write(
        self, examples: Sequence[Encoded], draws: Draws | None = None, parts: int = 1
    ) -> list[Written]:
        """Returns the completion of each prompt: sampled by `draws`, or greedy.

        `parts` is the number of branches, with equally many consecutive examples each.
        """
        if parts == 1:
            self._find_alone(examples)
        size = len(examples) // parts
        if not self.alone or size == 1:
            return self._write(examples, draws, parts)
        found: list[list[Written]] = []
        for i in range(size):
            some = None if draws is None else replace(draws, samples=draws.samples[i::size])
            found.append(self._write(examples[i::size], some, parts))
        return [of_one[part] for part in range(parts) for of_one in found]

    def _find_alone(self, examples: Sequence[Encoded]) -> None:
        """Compares scores of two prompts of different length, together and alone; sets `alone` if there are two.

        It compares scores, not texts, because rounding alone can change a text.
        """
        lengths = [len(e.prompt_ids) for e in examples]
        if self.alone is not None or len({*lengths}) == 1:
            return
        two = [examples[lengths.index(length)] for length in (min(lengths), max(lengths))]
        alone = torch.cat([self._scores([example]) for example in two])
        self.alone = differs(self._scores(two), alone, self._model.dtype)

    def _scores(self, examples: Sequence[Encoded]) -> torch.Tensor:
        """Returns scores of the first tokens after prompts, 0 where infinite.  # (prompts, tokens, vocabulary)."""
        known = range(self._model.config.get_text_config().vocab_size)
        given = next(token for token in known if token not in self._ends)
        seen: list[torch.Tensor] = []

        def choose(rows: torch.Tensor, position: int, scores: torch.Tensor) -> torch.Tensor:
            seen.append(scores.float())
            return torch.full_like(scores[:, 0], given, dtype=torch.long)

        self._tokens(examples, choose, min(TRIED, self.max_new_tokens))
        scores = torch.stack(seen, 1)
        return scores.masked_fill(scores.isinf(), 0.0)  # of tokens that the model's settings forbid

    def _write(self, examples: Sequence[Encoded], draws: Draws | None, parts: int) -> list[Written]:
        """Returns the completion of each prompt, in one batch."""
        draw = None
        if draws is not None:
            uniforms = draws.uniforms([e.row for e in examples], self.max_new_tokens)
            draw = Draw(draws.sampling, torch.from_numpy(uniforms).to(device_of(self._model)))
        written = self._tokens(examples, draw, self.max_new_tokens, parts)
        pairs = zip(self._texts(written), written.tolist(), strict=True)
        return [self._written(text, tokens) for text, tokens in pairs]

    def _tokens(
        self, examples: Sequence[Encoded], choose: Choose | None, most: int, parts: int = 1
    ) -> torch.Tensor:
        """Returns the tokens after each prompt, then padding.  # (prompts, tokens)."""
        width = max(len(e.prompt_ids) for e in examples)
        pad, rows, masks = self._options["pad_token_id"], [], []
        for own in (example.prompt_ids for example in examples):
            before, after = (width - len(own), 0) if self._left else (0, width - len(own))
            rows.append([pad] * before + own + [pad] * after)
            masks.append([0] * before + [1] * len(own) + [0] * after)
        device = device_of(self._model)
        ids, mask = torch.tensor(rows, device=device), torch.tensor(masks, device=device)
        if self._decoder is not None:
            ended = self._has_stop if self._stop else None
            return self._decoder(ids, mask, most, choose or most_probable, ended, parts)
        begin = width if self._left else 1  # a decoder of a pair begins with a token of its own

        def chosen(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            """Leaves the chosen token alone in each row."""
            assert choose is not None
            rows = torch.arange(len(scores), device=scores.device)
            tokens = choose(rows, ids.shape[1] - begin, scores)
            return torch.full_like(scores, -torch.inf).scatter_(-1, tokens[:, None], 0.0)

        def stopped(rows: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            return self._has_stop(rows[:, width if self._left else 0 :])

        written: torch.Tensor = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            logits_processor=[chosen] if choose else [],
            # `stop_strings` of transformers counts a stop that begins in the prompt.
            stopping_criteria=[stopped] if self._stop else [],
            **{**self._options, "max_new_tokens": most},
        )
        return written[:, begin:]

    def _written(self, text: str, ids: list[int]) -> Written:
        """Returns a completion from tokens with padding after its end."""
        stopped = self._stop is not None and self._stop in text
        full = len(ids) >= self.max_new_tokens and not stopped
        if stopped:
            text = text.partition(str(self._stop))[0]
            while ids and ids[-1] == self._options["pad_token_id"]:
                ids.pop()
        for token in self._special or ():
            text = text.replace(token, "")
        end = next((i + 1 for i, token in enumerate(ids) if token in self._ends), None)
        return Written(text, ids[:end], truncated=full and end is None)

    def _texts(self, written: torch.Tensor) -> list[str]:
        skip = self._special is None  # else the stop would not be seen
        return self._tokenizer.batch_decode(written, skip_special_tokens=skip)  # type: ignore[no-any-return]

    def _has_stop(self, written: torch.Tensor) -> torch.Tensor:
        """Returns which rows contain the stop."""
        found = [str(self._stop) in text for text in self._texts(written)]
        return torch.tensor(found, device=written.device)


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """Returns the tokens that end a text by the tokenizer or by the model's generation settings."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = [tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])]
    return sorted({end for end in ends if end is not None})


def _is_lost(tokenizer: Any, text: str) -> bool:
    """Returns whether a text is or holds a special token, so that it is lost in decoding."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    without, whole = (tokenizer.decode(ids, skip_special_tokens=skip) for skip in (True, False))
    return text in whole and text not in without
