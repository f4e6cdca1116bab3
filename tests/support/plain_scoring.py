"""Candidate scores written down plainly: one sequence at a time, all logits, no padding, no attention mask."""

import math

import torch


def plain_scores(model, examples):
    """One list of scores per example: mean log-probability of an answer's tokens, or a word's logit at the mask."""
    return [[_score(model, e, ids) for ids in e.candidate_ids] for e in examples]


def plain_loss(model, examples):
    """Mean over the examples of -log softmax(scores)[label], in Python floats."""
    losses = [
        math.log(sum(map(math.exp, row))) - row[example.label]
        for row, example in zip(plain_scores(model, examples), examples, strict=True)
    ]
    return sum(losses) / len(losses)


def _score(model, example, answer):
    masked = example.mask_at is not None
    sequence = example.prompt_ids + ([] if masked else answer)
    with torch.no_grad():
        logits = model(torch.tensor([sequence], device=model.device)).logits[0].float()
    if masked:
        return logits[example.mask_at, answer[0]].item()
    log_probs, first = torch.log_softmax(logits, dim=-1), len(example.prompt_ids)
    picked = [log_probs[first + j - 1, token].item() for j, token in enumerate(answer)]
    return sum(picked) / len(picked)
