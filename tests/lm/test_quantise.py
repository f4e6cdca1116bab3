"""Quantised weights: close to the model, smaller, and trained around or by their scales alone."""

import pytest
import torch

from tests.lm.test_adapt import BITS, adapted
from tests.lm.test_scoring import SHAPES
from tests.support.pairwise import rotated
from tests.support.quadratic import DTYPES
from tests.support.tiny_models import examples_of, llama, opt, roberta
from zo.lm.adapt import merged
from zo.lm.quantise import QuantisedLinear, count, quantise, weight_bytes
from zo.lm.scoring import CandidateScorer
from zo.weights.space import ParameterSpace


def quantised(bits, make=llama, dtype=torch.float32):
    model = make().to(dtype)
    quantise(model, bits)
    return model


@pytest.mark.parametrize(
    ("bits", "levels", "gap", "share", "make"),
    [("int8", 127, 1, 0.3, llama), ("int4", 7.5, 1, 0.19, opt), ("nf4", 1, 0.304, 0.16, roberta)],
)
def test_each_weight_is_within_half_a_step_of_what_it_was_in_a_share_of_the_memory(
    bits, levels, gap, share, make
):
    before, model = make(), make()
    said = quantise(model, bits)
    dense = dict(before.named_modules())
    found = {n: m for n, m in model.named_modules() if isinstance(m, QuantisedLinear)}
    assert found
    for name, layer in found.items():
        weight = dense[name].weight
        step = layer.scale.repeat_interleave(weight.shape[1] // layer.scale.shape[1], 1)
        assert ((layer.dequantised() - weight).abs() <= 0.51 * gap * step).all()
        assert layer.scale.max() <= 1.01 * weight.abs().max() / levels
    assert not isinstance(model.get_output_embeddings(), QuantisedLinear)
    assert count(model) == count(before)
    linear = sum(dense[name].weight.numel() for name in found)
    bytes_of = [weight_bytes(of) for of in (model, before)]
    assert bytes_of[1] - bytes_of[0] > (1 - share) * 4 * linear
    for told in (bits, f"{linear:,}", *(f"{n / 2**20:.1f} MiB" for n in bytes_of)):
        assert told in said


@pytest.mark.parametrize("bits", BITS)
def test_scales_alone_are_trained_and_reached_by_backpropagation(bits):
    loaded = adapted(quantised(bits), "scales")
    names = ParameterSpace.of(loaded.model).names
    assert len(names) == 2 * 7
    assert all(name.endswith("_proj.scale") for name in names)
    scorer = CandidateScorer(loaded.model, pad_id=1)
    scorer.differentiable_loss(scorer.collate(examples_of(SHAPES["one token"]))).backward()
    assert all(p.grad.abs().max() > 0 for p in loaded.model.parameters() if p.requires_grad)


@pytest.mark.parametrize(("dtype", "bits"), rotated(DTYPES, BITS))
def test_what_is_exported_has_ordinary_weights_and_scores_as_the_quantised_model(bits, dtype):
    loaded = adapted(quantised(bits, opt, dtype), "lora")
    scorer = CandidateScorer(loaded.model, pad_id=1)
    batch = scorer.collate(examples_of(SHAPES["several tokens"]))
    expected = scorer.scores(batch)
    model = merged(loaded)
    assert not any(isinstance(m, QuantisedLinear) for m in model.modules())
    assert list(model.state_dict()) == list(opt().state_dict())
    found = CandidateScorer(model, pad_id=1).scores(batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=30 * torch.finfo(dtype).eps)
