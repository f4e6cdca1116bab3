"""Tokens of prompts, candidates and completions; for masked models of a prompt with one mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.examples import Example
from zo.tasks.templates import MASK, columns, fill, is_text, pieces, shown, task_columns

Span = tuple[int, int]  # Begin and end of a part of a text, in characters


@dataclass(frozen=True)
class Encoded:
    """One example as token ids."""

    prompt_ids: list[int]  # the prompt with the tokenizer's special tokens; never empty
    # Per candidate, the tokens that follow the prompt or fill its mask; never empty
    candidate_ids: list[list[int]]
    label: int  # index of the true candidate
    # Position of the mask in `prompt_ids`; None: candidates follow the prompt
    mask_at: int | None = None
    cut: int = 0  # tokens that the prompt lost to ``task.max_length``
    accepted: tuple[int, ...] = ()  # indices of all right candidates; empty: only `label`
    prompt: str = ""  # the prompt's text, if text is generated
    references: tuple[str, ...] = ()  # right answers, for measures of generated text
    row: int = 0  # number in its file, from 0
    messages: list[dict[str, Any]] | None = None  # the prompt as a conversation, if it is one
    left_out: tuple[str, ...] = ()  # what the chat template leaves out of the whole conversation
    # Of the row, if a reward function gets them
    columns: dict[str, Any] = field(default_factory=dict)
    # Which tokens of the only candidate are of the assistant's messages; empty: all of every candidate
    trained: tuple[bool, ...] = ()
    # Of a pair, the log-probability of the first answer minus that of the second, by the reference
    reference: float | None = None

    @property
    def tokens(self) -> int:
        """Returns the number of the true candidate's tokens that are scored."""
        return sum(self.trained) or len(self.candidate_ids[self.label])

    @property
    def length(self) -> int:
        """Returns the number of tokens that a forward pass sees: the prompt and each candidate without its last."""
        return len(self.prompt_ids) + sum(len(ids) - 1 for ids in self.candidate_ids)

    def true_candidate_alone(self) -> Encoded:
        """Returns the example with only its true candidate, which is all that ``lm`` trains on."""
        return replace(self, candidate_ids=[self.candidate_ids[self.label]], label=0, accepted=())

    def is_right(self, prediction: int) -> bool:
        """Returns whether a candidate is right."""
        return prediction in self.accepted if self.accepted else prediction == self.label


def render(task: TaskConfig, example: Example) -> str:
    """Returns the prompt's text."""
    return fill(str(task.prompt), example.fields, "prompt")


def encode(
    task: TaskConfig, tokenizer: Any, examples: Sequence[Example], kind: str = "decoder"
) -> list[Encoded]:
    """Tokenizes prompts, and the candidates or the completion of each.

    If prompt and longest candidate exceed ``task.max_length``, the prompt loses its first tokens after special ones.

    Raises:
        TaskError: an empty candidate, a candidate whose first letters change the prompt's tokens, a ``max_length``
            without room for a prompt, a conversation that the tokenizer has no template for.
    """
    if task.kind == "classification":
        _check(task)
    if not examples:
        return []
    if task.turns == "all":
        if kind != "decoder":
            raise TaskError(f"task.turns=all: needs a decoder; take last for a {kind} model")
        return [_all_turns(task, tokenizer, example) for example in examples]
    texts = [_texts(task, tokenizer, example) for example in examples]
    separate = kind == "encoder-decoder"
    # A chat template writes the special tokens itself.
    options = {"verbose": False, "add_special_tokens": task.messages is None or separate}
    prefix, suffix = (0, 0) if separate else special_tokens(tokenizer, **options)

    def ids_of(texts: list[str]) -> list[list[int]]:
        return [ids[: len(ids) - suffix] for ids in tokenizer(texts, **options)["input_ids"]]

    prompt_ids = ids_of([prompt for prompt, _ in texts])
    encoded = []
    for example, (prompt, answers), ids in zip(examples, texts, prompt_ids, strict=True):
        if not ids:
            raise TaskError(f"task.prompt: there are no tokens for {example.fields}")
        if separate:
            tails = [tokenizer(text_target=a.strip())["input_ids"] for a in answers]
        elif task.kind == "classification":
            joined = ids_of([prompt + a for a in answers])
            tails = [_tail(a, prompt, ids, j) for a, j in zip(answers, joined, strict=True)]
        else:
            tails = [_completion(task, tokenizer, prompt, ids, a, ids_of) for a in answers]
        room = task.max_length - (0 if separate else max(map(len, tails), default=0))
        kept = _truncate(task, ids, prefix, room, example.row)
        more = _told(task, tokenizer, example, prompt, answers)
        encoded.append(Encoded(kept, tails, example.label, cut=len(ids) - len(kept), **more))
    return encoded


def special_tokens(tokenizer: Any, **options: Any) -> tuple[int, int]:
    """Returns how many special tokens a tokenizer puts before a text, as OPT's `</s>`, and how many behind it.

    Raises:
        TaskError: The tokens of a text are others beside special tokens.
    """
    around = tokenizer("a", **options)["input_ids"]
    text = tokenizer("a", **options | {"add_special_tokens": False})["input_ids"]
    count = len(around) - len(text)
    places = (i for i in reversed(range(count + 1)) if around[i : i + len(text)] == text)
    before = next(places, None)
    if before is None:
        raise TaskError("model.path: the tokenizer gives a text other tokens beside special tokens")
    return before, count - before


def _texts(task: TaskConfig, tokenizer: Any, example: Example) -> tuple[str, list[str]]:
    """Returns an example's prompt, and its candidates or completion."""
    if task.messages is not None:
        return _conversation(task, tokenizer, example)
    fields = example.fields
    if task.kind == "preference":
        from zo.tasks.preferences import pair_of, shared_beginning

        answers = pair_of(task, fields)
        if task.prompt is not None:
            return render(task, example), [*answers]
        prompt = shared_beginning(*answers)
        return prompt, [answer[len(prompt) :] for answer in answers]
    prompt = render(task, example)
    if task.kind == "prompts":
        return prompt, []
    if task.kind == "completion":
        if task.references is not None:
            fields = fields | {"reference": _references(task, example)[0]}
        return prompt, [fill(str(task.completion), fields, "completion")]
    if task.choices is None:
        return prompt, [fill(c, fields, "candidates") for c in task.words]
    mark = task.placeholder or "{choice}"
    return prompt, [
        fill(task.words[0], fields | {"choice": choice}, "candidates").replace(mark, shown(choice))
        for choice in fields[task.choices]
    ]


def _all_turns(task: TaskConfig, tokenizer: Any, example: Example) -> Encoded:
    """Returns a conversation whose candidate begins with the assistant's first message; it loses its first tokens."""
    from zo.tasks.conversations import TOOLS, rendered, trained_tokens

    turns, where = _turns(task, tokenizer, example), f"row {example.row}"
    try:
        ids, trained = trained_tokens(tokenizer, turns, example.fields.get(TOOLS))
    except Exception as error:  # a template raises what its author wrote
        raise TaskError(f"task.messages: {where}: {str(error).splitlines()[0]}") from error
    cut = max(0, len(ids) - task.max_length)
    ids, trained = ids[cut:], trained[cut:]
    first = next((i for i, of in enumerate(trained) if of and i), 0)
    if not first:
        what = "has no token of an assistant's message after another token"
        raise TaskError(f"task.turns=all: {where} {what}")
    end = len(ids) - trained[::-1].index(True)
    answers = [str(t["content"] or "") for t in turns if t["role"] == "assistant"]
    prompt = rendered(tokenizer, _asked(turns), None, asks=True)
    more = _told(task, tokenizer, example, prompt, answers[-1:])
    scored = tuple(trained[first:end])
    return Encoded(ids[:first], [ids[first:end]], 0, cut=cut, trained=scored, **more)


def _turns(task: TaskConfig, tokenizer: Any, example: Example) -> list[dict[str, Any]]:
    """Returns an example's messages, for which the tokenizer has a chat template."""
    if tokenizer.chat_template is None:
        raise TaskError(
            "task.messages: the model's tokenizer has no chat template; use a model that has one, or give"
            " task.prompt and task.completion"
        )
    turns: list[dict[str, Any]] = example.fields[str(task.messages)]
    if task.kind == "completion" and _asked(turns) == turns:
        raise TaskError(
            f"task.messages: row {example.row} ends with the role {turns[-1]['role']!r}; the assistant's is needed"
        )
    return turns


def _conversation(task: TaskConfig, tokenizer: Any, example: Example) -> tuple[str, list[str]]:
    """Returns a conversation as text, cut before the assistant's last message."""
    from zo.tasks.conversations import TOOLS, rendered

    turns, where = _turns(task, tokenizer, example), f"row {example.row}"
    asked, answered = turns if task.kind == "classification" else _asked(turns), [turns]
    if task.kind == "preference":
        from zo.tasks.preferences import pair_of, shared_turns

        answered = [*pair_of(task, example.fields)]
        asked = shared_turns(answered[0], answered[1], example.row)
    tools = example.fields.get(TOOLS)
    try:
        prompt = rendered(tokenizer, asked, tools, asks=True)
        whole = [rendered(tokenizer, of, tools) for of in answered]
    except Exception as error:  # a template raises what its author wrote
        raise TaskError(f"task.messages: {where}: {str(error).splitlines()[0]}") from error
    if task.kind in ("classification", "prompts"):
        return prompt, [fill(c, example.fields, "candidates") for c in task.words]
    if not all(of.startswith(prompt) for of in whole):
        what = "the chat template does not put the answer after the prompt"
        raise TaskError(f"task.messages: {where}: {what}")
    return prompt, [of[len(prompt) :] for of in whole]


def _asked(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a conversation without its last message, if that is the assistant's."""
    return turns[:-1] if turns[-1]["role"] == "assistant" else turns


def _completion(
    task: TaskConfig,
    tokenizer: Any,
    prompt: str,
    ids: list[int],
    text: str,
    ids_of: Callable[[list[str]], list[list[int]]],
) -> list[int]:
    """Returns a completion's tokens with its end: from the joint text, or alone if that changes the prompt's tokens."""
    text += task.stop or ""
    (joined,) = ids_of([prompt + text])
    if joined[: len(ids)] == ids and len(joined) > len(ids):
        tail = joined[len(ids) :]
    else:
        tail = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    ended = task.stop is not None or task.messages is not None or tokenizer.eos_token_id is None
    return tail if ended else [*tail, tokenizer.eos_token_id]


def _references(task: TaskConfig, example: Example) -> list[str]:
    """Returns an example's right answers."""
    found = example.fields[str(task.references)]
    found = [found] if is_text(found) else found or ()
    if isinstance(found, Mapping):
        within = next((key for key in found if "text" in key or "answer" in key), next(iter(found)))
        raise TaskError(
            f"task.references: row {example.row} has several parts in {task.references} ({', '.join(found)}); name one,"
            f" as {task.references}.{within}"
        )
    if other := [answer for answer in found if not is_text(answer)]:
        raise TaskError(
            f"task.references: row {example.row} has {other[0]!r} in {task.references}; must be texts"
        )
    if not len(found):
        raise TaskError(f"task.references: row {example.row} has no answer in {task.references}")
    answers = [shown(answer) for answer in found]
    if any(answers) and not answers[0].strip():
        raise TaskError(
            f"task.references: the first answer of row {example.row} in {task.references} is empty, and would be"
            " trained; put another one first"
        )
    return answers


def _told(
    task: TaskConfig, tokenizer: Any, example: Example, prompt: str, answers: list[str]
) -> dict[str, Any]:
    """Returns the fields of an encoded example other than its tokens."""
    if task.choices is not None:
        choices, right = (
            example.fields[task.choices],
            right_choices(example.fields[str(task.label)]),
        )
        return {"accepted": tuple(i for i, choice in enumerate(choices) if choice in right)}
    if task.kind in ("classification", "preference"):
        return {}
    references = _references(task, example) if task.references is not None else answers
    told = {"prompt": prompt, "row": example.row, "columns": example.columns}
    if task.messages is not None:
        turns = example.fields[task.messages]
        lost = _left_out(task, tokenizer, example, turns, prompt, answers)
        reply = turns[-1].get("content") if task.kind == "completion" else None
        if task.references is None and reply and "content" not in lost:
            references = [str(reply)]  # without the template's end
        told |= {"messages": _asked(turns), "left_out": lost}
    return {**told, "references": tuple(references)}


def _left_out(
    task: TaskConfig,
    tokenizer: Any,
    example: Example,
    turns: list[dict[str, Any]],
    prompt: str,
    answers: list[str],
) -> tuple[str, ...]:
    """Returns what the chat template leaves out of a conversation, as `left_out`."""
    from zo.tasks.conversations import TOOLS, left_out, rendered

    asks = task.kind == "prompts"
    turns, tools = _asked(turns) if asks else turns, example.fields.get(TOOLS)

    def render(of: Sequence[Any], tools: Any) -> str:
        return rendered(tokenizer, of, tools, asks)

    text = prompt if asks or not answers else prompt + answers[0]
    text = render(turns, tools) if task.turns == "all" else text
    try:
        return left_out(render, turns, tools, text)
    except ValueError as error:
        raise TaskError(f"task.messages: row {example.row}: {error}") from None


def right_choices(cell: Any) -> Sequence[Any]:
    """Returns an example's right choices from its cell, which has a list of them or one."""
    return cell if isinstance(cell, list | tuple) else [cell]


def _check(task: TaskConfig) -> None:
    columns(str(task.prompt), "prompt")
    if len(task.words) < (1 if task.choices else 2):
        raise TaskError(f"task.candidates: {len(task.words)} given, at least 2 are needed")
    for candidate in task.words:
        if not candidate.strip():
            raise TaskError(f"task.candidates: {candidate!r} is empty, a word is needed")


def _tail(candidate: str, prompt: str, prompt_ids: list[int], joined: list[int]) -> list[int]:
    """Returns the candidate's tokens: those after the prompt's in the joint text."""
    n = len(prompt_ids)
    if joined[:n] != prompt_ids or len(joined) == n:
        raise TaskError(
            f"task.candidates: {candidate!r} changes the last tokens of the prompt"
            f" {prompt[-40:]!r}; end task.prompt at a word and begin the candidate with the space"
        )
    return joined[n:]


def _truncate(
    task: TaskConfig, prompt_ids: list[int], prefix: int, room: int, row: int
) -> list[int]:
    """Returns the leading special tokens and the end of the prompt; at most `room` tokens in all."""
    if room <= prefix:
        least = task.max_length + prefix - room + 1
        raise TaskError(
            f"task.max_length={task.max_length}: special tokens and the longest answer leave no room for the prompt"
            f" of row {row}; give at least {least}"
        )
    if len(prompt_ids) <= room:
        return prompt_ids
    return prompt_ids[:prefix] + prompt_ids[len(prompt_ids) - room + prefix :]


def tokenize(
    task: TaskConfig, tokenizer: Any, examples: Sequence[Example], kind: str
) -> list[Encoded]:
    """Returns the examples as tokens. Raises TaskError if the task does not fit this kind of model, or as `encode`."""
    if kind != "masked":
        return encode(task, tokenizer, examples, kind)
    if task.kind != "classification":
        raise TaskError(f"task.kind={task.kind}: a masked model generates no text; use a decoder")
    return encode_masked(task, tokenizer, examples)


def encode_masked(task: TaskConfig, tokenizer: Any, examples: Sequence[Example]) -> list[Encoded]:
    """Tokenizes prompts with their mask; candidates are the label words, one token each.

    A prompt of more than ``task.max_length`` tokens loses the first tokens of its longest column. The mask, the
    template's words and the other columns stay.

    Raises:
        TaskError: no masked prompt, a tokenizer without a mask, a label word that is not one token,
            a ``max_length`` without room.
    """
    words = [[token] for token in _label_tokens(task, tokenizer)]
    if not examples:
        return []
    rendered = [_render(task, example, tokenizer.mask_token) for example in examples]
    texts = [text for text, _, _ in rendered]
    encoding = tokenizer(texts, return_offsets_mapping=True, verbose=False)
    encoded = []
    for i, (_, spans, mask) in enumerate(rendered):
        ids, offsets = encoding["input_ids"][i], encoding["offset_mapping"][i]
        mask_at = _place_of_mask(ids, offsets, mask, tokenizer.mask_token_id)
        dropped = _dropped(task, offsets, spans, mask_at)
        kept = [token for place, token in enumerate(ids) if place not in dropped]
        mask_at -= sum(place < mask_at for place in dropped)
        encoded.append(Encoded(kept, words, examples[i].label, mask_at, len(dropped)))
    return encoded


def _label_tokens(task: TaskConfig, tokenizer: Any) -> list[int]:
    task_columns(task)  # checks the templates
    if task.masked_prompt is None or task.label_words is None:
        raise TaskError(f"task.masked_prompt: {task.name} has none, which a masked model needs")
    if tokenizer.mask_token_id is None:
        raise TaskError("model.kind: the model's tokenizer has no mask token")
    if len(task.label_words) != len(task.words):
        raise TaskError(f"task.label_words: {len(task.words)} are needed, as task.candidates")
    tokens = []
    for word in task.label_words:
        ids = tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
            parts = " ".join(tokenizer.convert_ids_to_tokens(ids))
            what = f"{word!r} is not one token of the model"
            raise TaskError(f"task.label_words: {what}, but {parts}")
        tokens += ids
    if len(set(tokens)) < len(tokens):
        raise TaskError(f"task.label_words: {task.label_words} are not different tokens")
    return tokens


def _render(task: TaskConfig, example: Example, mask_token: str) -> tuple[str, list[Span], Span]:
    """Returns the prompt's text, and the spans of the columns and of the mask."""
    text, spans, mask = "", [], (0, 0)
    for piece, is_column in pieces(str(task.masked_prompt), example.fields, "masked_prompt"):
        if is_column:
            spans.append((len(text), len(text) + len(piece)))
            text += piece
            continue
        before, found, after = piece.partition(MASK)
        text += before
        if found:
            mask = (len(text), len(text) + len(mask_token))
            text += mask_token
        text += after
    return text, spans, mask


def _place_of_mask(ids: list[int], offsets: list[Span], mask: Span, mask_id: int) -> int:
    """Returns the position of the template's mask, even if the data contain a mask, too."""
    places = [i for i, token in enumerate(ids) if token == mask_id and offsets[i][1] == mask[1]]
    if len(places) != 1:
        raise TaskError(f"task.masked_prompt: the model's tokenizer makes no token of {MASK}")
    return places[0]


def _dropped(
    task: TaskConfig, offsets: list[Span], spans: list[Span], mask_at: int
) -> frozenset[int]:
    """Returns the positions that a prompt of more than `max_length` tokens loses."""
    excess = len(offsets) - task.max_length
    if excess <= 0:
        return frozenset()
    tokens_of = [
        [
            i
            for i, (begin, end) in enumerate(offsets)
            if begin < end and begin < last and end > first and i != mask_at
        ]
        for first, last in spans
    ]
    longest = max(tokens_of, key=len, default=[])
    if excess >= len(longest):
        raise TaskError(
            f"task.max_length={task.max_length}: the template leaves no room for the texts; give at least"
            f" {task.max_length + excess - len(longest) + 1}"
        )
    return frozenset(longest[:excess])
