"""Candidate scores written down plainly: one sequence at a time, all logits, no padding, no mask."""

import math

import torch


def plain_scores(model, examples):
    """One list of scores per example; a score is the mean log-probability of the answer's tokens."""
    return [[_score(model, e.prompt_ids, ids) for ids in e.candidate_ids] for e in examples]


def plain_loss(model, examples):
    """Mean over the examples of -log softmax(scores)[label], in Python floats."""
    losses = []
    for scores, example in zip(plain_scores(model, examples), examples, strict=True):
        losses.append(math.log(sum(map(math.exp, scores))) - scores[example.label])
    return sum(losses) / len(losses)


def _score(model, prompt, answer):
    sequence = torch.tensor([prompt + answer], device=model.device)
    with torch.no_grad():
        log_probs = torch.log_softmax(model(sequence).logits[0].float(), dim=-1)
    first = len(prompt)
    picked = [log_probs[first + j - 1, token].item() for j, token in enumerate(answer)]
    return sum(picked) / len(picked)
