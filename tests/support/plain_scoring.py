"""Candidate scores written down plainly: one sequence at a time, all logits, no padding, no attention mask."""

import math

import torch


def plain_scores(model, examples):
    """One list of scores per example; a score is the mean log-probability of the answer's tokens."""
    return [[_score(model, e.prompt_ids, ids) for ids in e.candidate_ids] for e in examples]


def plain_loss(model, examples):
    """Mean over the examples of -log softmax(scores)[label], in Python floats."""
    return _mean_cross_entropy(plain_scores(model, examples), examples)


def plain_lm_loss(model, examples):
    """Minus the mean log-probability of all tokens of all true answers."""
    total, count = 0.0, 0
    for scores, example in zip(plain_scores(model, examples), examples, strict=True):
        tokens = len(example.candidate_ids[example.label])
        total, count = total - scores[example.label] * tokens, count + tokens
    return total / count


def plain_masked_scores(model, examples):
    """One list of scores per example; a score is the logit of the label word at the mask."""
    scores = []
    for e in examples:
        with torch.no_grad():
            logits = model(torch.tensor([e.prompt_ids], device=model.device)).logits
        scores.append([logits[0, e.mask_at, word].item() for (word,) in e.candidate_ids])
    return scores


def plain_masked_loss(model, examples):
    """Mean over the examples of -log softmax(scores)[label], in Python floats."""
    return _mean_cross_entropy(plain_masked_scores(model, examples), examples)


def _score(model, prompt, answer):
    sequence = torch.tensor([prompt + answer], device=model.device)
    with torch.no_grad():
        log_probs = torch.log_softmax(model(sequence).logits[0].float(), dim=-1)
    first = len(prompt)
    picked = [log_probs[first + j - 1, token].item() for j, token in enumerate(answer)]
    return sum(picked) / len(picked)


def _mean_cross_entropy(scores, examples):
    losses = [
        math.log(sum(map(math.exp, row))) - row[example.label]
        for row, example in zip(scores, examples, strict=True)
    ]
    return sum(losses) / len(losses)
