"""Losses of pairs of answers: those of their formulas, and of TRL."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from tests.support.tiny_models import LLAMA, examples_of, llama, opt, random_model, t5
from tests.support.tiny_models import tokenizer as tiny_tokenizer
from zo.lm.scoring.preferences import PreferencePairScorer, PreferenceScorer
from zo.tasks import Example, TaskConfig, tokenize
from zo.tasks.objective import ObjectiveConfig

DPO, SIMPO = ObjectiveConfig("dpo", beta=0.3), ObjectiveConfig("simpo", beta=2.0, gamma=0.7)
ROWS = [
    {"prompt": "the film was", "chosen": " great .", "rejected": " the worst ."},
    {"prompt": "the plot", "chosen": " was good to see , and it was great", "rejected": " was bad"},
    {
        "prompt": "a story that it was good to see , and",
        "chosen": " great",
        "rejected": " terrible",
    },
]
MAKE = {"opt": opt, "llama": llama, "t5": t5}
MAKE["no packing"] = lambda: random_model("GPTJForCausalLM", **LLAMA, rotary_dim=8)


def scorer_of(model, objective):
    pairs = model.config.is_encoder_decoder
    kind = PreferencePairScorer if pairs else PreferenceScorer
    how = "encoder-decoder" if pairs else "decoder"
    return kind(model, 1, "model", how, objective.name, objective=objective)


def with_reference(model, examples):
    """Returns the examples with the numbers of a model before its weights move a little."""
    found = scorer_of(model, DPO).log_probabilities(examples, 64)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.02)
    return [replace(e, reference=c - r) for e, (c, r) in zip(examples, found, strict=True)]


def plain(model, example, objective):
    """Returns loss and margin of one pair from two forward passes of plain rows."""
    logs, lengths = [], []
    for ids in example.candidate_ids:
        if model.config.is_encoder_decoder:
            begun = torch.tensor([[model.config.decoder_start_token_id, *ids[:-1]]])
            given = {"input_ids": torch.tensor([example.prompt_ids]), "decoder_input_ids": begun}
            logits = model(**given).logits[0]
        else:
            row = torch.tensor([example.prompt_ids + ids])
            logits = model(row).logits[0, len(example.prompt_ids) - 1 : -1]
        logits = logits.detach().double().numpy()
        values = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        logs.append(values[range(len(ids)), ids].sum())
        lengths.append(len(ids))
    if objective.name == "simpo":
        margin = objective.beta * (logs[0] / lengths[0] - logs[1] / lengths[1])
        return np.log1p(np.exp(objective.gamma - margin)), margin
    margin = objective.beta * (logs[0] - logs[1] - example.reference)
    return np.log1p(np.exp(-margin)), margin


@pytest.mark.parametrize("objective", [DPO, SIMPO], ids=lambda of: of.name)
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_losses_accuracy_and_margin_are_those_of_the_formula(make, objective):
    """Packed or not, from copies in one pass, with a gradient, and of a whole split."""
    model = make()
    examples = [replace(e, label=0) for e in examples_of((3, 5))]
    examples = with_reference(model, examples)
    scorer = scorer_of(model, objective)
    losses, margins = zip(*(plain(model, e, objective) for e in examples), strict=True)
    batch, mean = scorer.collate(examples), pytest.approx(np.mean(losses), rel=1e-5)
    assert scorer.loss(batch) == mean
    assert scorer.branches(batch, 2) == [mean, mean]
    loss = scorer.differentiable_loss(batch)
    loss.backward()
    assert loss.item() == mean
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    found = scorer.evaluate(examples, 40)
    assert found.loss == mean
    assert found.predictions == [int(margin <= 0) for margin in margins]
    assert found.value == np.mean(np.array(margins) > 0)
    assert found.more["margin"] == pytest.approx(np.mean(margins), rel=1e-4)
    sizes = np.abs(margins)
    assert found.probabilities == pytest.approx(1 / (1 + np.exp(-sizes)), rel=1e-4)


def test_the_reference_itself_prefers_nothing():
    """Its margins are exactly 0 where the same batches are evaluated; DPO's loss is ln 2 then."""
    examples = [replace(e, label=0) for e in examples_of((3, 5))]
    scorer = scorer_of(opt(), DPO)
    found = scorer.log_probabilities(examples, 64)
    examples = [replace(e, reference=c - r) for e, (c, r) in zip(examples, found, strict=True)]
    evaluated = scorer.evaluate(examples, 64)
    assert (evaluated.loss, evaluated.value) == (pytest.approx(np.log(2), abs=0), 0)
    assert evaluated.more["margin"] == 0


@pytest.mark.process  # importing a trainer takes seconds
@pytest.mark.parametrize("objective", [DPO, SIMPO], ids=lambda of: of.name)
def test_losses_are_those_of_trl_to_a_millionth(objective, tmp_path):
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    tokens = tiny_tokenizer()
    tokens.pad_token = "<pad>"
    common = {"report_to": [], "use_cpu": True, "bf16": False, "beta": objective.beta}
    common |= {"gradient_checkpointing": False, "per_device_train_batch_size": len(ROWS)}
    model, reference = (llama(pad_token_id=1).double() for _ in range(2))
    if objective.name == "dpo":
        kind = partial(trl.DPOTrainer, ref_model=reference)
        arguments = trl.DPOConfig(str(tmp_path), **common)
    else:
        from trl.experimental.cpo import CPOConfig, CPOTrainer

        more = {"loss_type": "simpo", "simpo_gamma": objective.gamma, "cpo_alpha": 0.0}
        kind, arguments = CPOTrainer, CPOConfig(str(tmp_path), **common, **more)
    task = TaskConfig("own", "-", "preference", prompt="{prompt}", max_length=64)
    task = replace(task, chosen="{chosen}", rejected="{rejected}")
    found = tokenize(task, tokens, [Example(row, 0) for row in ROWS], "decoder")
    data = Dataset.from_list(ROWS)
    trainer = kind(model, args=arguments, train_dataset=data, processing_class=tokens)
    found = with_reference(model, found)
    (inputs,) = trainer.get_train_dataloader()
    theirs = trainer.compute_loss(model.eval(), inputs).item()
    scorer = scorer_of(model, objective)
    ours = scorer.loss(scorer.collate(found))
    print(f"{objective.name}: {ours:.9f}, TRL {theirs:.9f}, difference {abs(ours - theirs):.1e}")
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert abs(ours - np.log(2)) > 1e-3
