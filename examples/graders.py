"""Reward functions by TRL's contract: keywords, the columns of the data among them.

python train.py task=reward task.path=examples/prompts.jsonl optimizer=mezo optimizer.eps=3e-2 lr=1e-3 \
    "objective.functions={examples/graders.py:praise: 1, examples/graders.py:brief: 0.5}"
"""

import asyncio


def brief(completion_ids: list[list[int]], log_metric, **_) -> list[float]:
    """Returns 0 for a text of at most twenty tokens, and less for a longer one."""
    longest = max(map(len, completion_ids))
    log_metric("longest", longest)
    return [-max(0, len(ids) - 20) / 20 for ids in completion_ids]


async def praise(prompts: list[str], completions: list[str], log_extra, **_) -> list[float | None]:
    """Returns 1 for a text that praises; None, no number, for one that only repeats its prompt."""
    found = await asyncio.gather(*map(_praised, completions))
    log_extra("words", [len(text.split()) for text in completions])
    return [
        None if text.strip() == prompt else value
        for prompt, text, value in zip(prompts, completions, found, strict=True)
    ]


async def _praised(text: str) -> float:
    await asyncio.sleep(0)  # where another model would be asked
    return float(any(word in text for word in ("great", "good", "wonderful")))


def exact(completions: list[str], answer: list[str], **_) -> list[float]:
    """Returns 1 for a text that is the answer of its problem, and else 0."""
    return [float(text.strip() == right) for text, right in zip(completions, answer, strict=True)]


def in_place(completions: list[str], answer: list[str], **_) -> list[float]:
    """Returns the share of characters in their places, of the longer of text and answer: 1 for the answer."""
    return [
        sum(a == b for a, b in zip(text.strip(), right, strict=False))
        / max(len(text.strip()), len(right))
        for text, right in zip(completions, answer, strict=True)
    ]
