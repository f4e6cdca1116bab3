"""Frozen blocks are computed once per mini-batch, bit for bit, or their hidden states are kept per example."""

import re
from collections import Counter
from functools import partial

import pytest
import torch

import zo
from tests.lm.test_adapt import adapted, quantised
from tests.support.pairwise import rotated
from tests.support.tiny_models import (
    ALONE,
    LLAMA,
    MASKED_LM,
    MODELS,
    PACKED,
    SIZES,
    WINDOWS,
    examples_of,
    kind_of,
    llama,
    random_model,
    t5,
)
from zo.distributed.processes import Processes
from zo.lm.config import StatesError
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.encoder_decoder import EncoderDecoderScorer
from zo.lm.scoring.states import FrozenBlocks, KeptStates
from zo.optim import OPTIMIZERS
from zo.run.losses import BatchLoss, divided
from zo.weights.space import ParameterSpace

NEOX = SIZES | {"intermediate_size": 64, "initializer_range": 0.3}
MODERN = MASKED_LM | {"pad_token_id": 0, "local_attention": 4, "global_attn_every_n_layers": 2}
MODERN |= {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
ARCHITECTURES = {
    **{name: MODELS[name] for name in ("llama", "opt", "gpt2", "bert", "roberta")},
    "gpt-neox": partial(random_model, "GPTNeoXForCausalLM", **NEOX),
    "qwen 3": partial(random_model, "Qwen3ForCausalLM", **LLAMA, head_dim=8),
    "modernbert": partial(random_model, "ModernBertForMaskedLM", **MODERN),
    "mistral with a window": PACKED["a sliding window"],
    **{name: WINDOWS[name] for name in ("gemma 3", "phi 3")},
}
EVERY = {**ARCHITECTURES, **PACKED, **WINDOWS, **ALONE}
BLOCKS = re.compile(r"(?:layers?|h|block)\.\d+$")
LAST = r"(?:layers?|h|block)\.1\."
LENGTHS = (12, 2, 9, 1, 14, 7, 3)
EXACT = ("snapshot", "streamed", "merged", "subtract")


def train_only(model, pattern):
    for name, p in model.named_parameters():
        p.requires_grad_(re.search(pattern, name) is not None)
    return model


def counted(model):
    """Counts calls of the first module inside each block: one that is left out calls none of its modules."""
    calls = Counter()

    def counting(path, forward, *args, **kwargs):
        calls[path] += 1
        return forward(*args, **kwargs)

    for path, block in model.named_modules():
        if BLOCKS.search(path):
            inner = next(m for m in block.modules() if not list(m.children()))
            inner.forward = partial(counting, path, inner.forward)
    return calls


def scorer_of(model):
    if model.config.is_encoder_decoder:
        return EncoderDecoderScorer(model, 1, kind="encoder-decoder")
    return CandidateScorer(
        model, getattr(model.config, "pad_token_id", None) or 1, kind=kind_of(model)
    )


def finding(model, example):
    """Returns a scorer that knows the frozen blocks."""
    scorer = scorer_of(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    scorer.find_frozen(FrozenBlocks(model, trained), example)
    return scorer


def adapter(bits, name):
    base = quantised(bits) if bits else MODELS["llama"]()
    return adapted(base, name, layers="last:1").model


def frozen(name, pattern=LAST, **settings):
    return partial(lambda: train_only((ARCHITECTURES | {"t5": t5})[name](**settings), pattern))


FIRST = r"[.]0$"
"""Paths of blocks in front of what is trained, of two."""
CASES = [
    *((frozen(name), FIRST, {"method": "bszo", "restore": restore, "prior_std": 1.0})
        for name, restore in rotated(ARCHITECTURES, EXACT)),
    (frozen("t5", r"decoder\."), r"encoder", {}),
    (frozen("t5", r"decoder.block.1"), r"encoder|decoder.block.0", {}),
    (frozen("t5", r"encoder.block.1"), r"encoder.block.0", {}),
    *((partial(adapter, bits, name), FIRST, {"restore": restore, "eps": 1e-2})
        for bits, name, restore in rotated(
            [None, "int8", "int4", "nf4"], ["lora", "ia3"], ["streamed", "merged", "snapshot"]
        )),
    *((frozen("llama"), FIRST, {"restore": of, "shards": 2}) for of in ("streamed", "merged")),
    (frozen("opt", r"layers\.2\.", num_hidden_layers=3), r"[.][01]$", {"offload": "disk"}),
]  # fmt: skip
"""Models, their frozen blocks, and how they are trained."""


@pytest.mark.parametrize(("make", "once", "how"), CASES)
def test_frozen_blocks_are_computed_once_per_mini_batch_and_losses_have_the_same_bits(
    make, once, how, tmp_path
):
    """Three steps on two mini-batches, with frozen blocks computed once and not."""
    how = {"method": "mezo", "restore": "streamed", "shards": 1, "offload": None, **how}
    method, restore, shards, offload = (
        how.pop(key) for key in ("method", "restore", "shards", "offload")
    )
    found = []
    for only_once in (True, False):
        model = make()
        if offload:
            zo.offload(model, offload, device="cpu", directory=tmp_path / str(only_once))
        masked = kind_of(model) == "masked"
        examples = examples_of([1, 1] if masked else [2, 1], masked=masked)
        space = ParameterSpace.of(model, restore, "philox")
        config = OPTIMIZERS[method].config(**how)
        optimizer = OPTIMIZERS[method].optimizer(space, config, lr=1e-2, seed=3)
        scorer = finding(model, examples[0])
        scorer.once = only_once
        calls, losses = counted(model), []
        for batch in (examples[:4], examples[1:], examples[:4]):
            loss = BatchLoss(scorer, scorer.collate(batch), space)
            if shards > 1:
                loss = divided(scorer, batch, shards, space, Processes())
            losses += optimizer.step(loss).losses
        found.append((losses, calls))
    (losses, calls), (plain, every) = found
    assert losses == plain
    assert len({*losses}) == len(losses), "nothing was measured"
    passes = config.forwards_per_step
    assert {*every.values()} == {3 * shards * passes}
    for path in every:
        assert calls[path] == 3 * shards * (1 if re.search(once, path) else passes)


def test_a_pass_that_is_broken_off_leaves_the_model_as_it_was_and_keeps_nothing():
    model = train_only(llama(), LAST)
    examples = examples_of([2, 1])
    scorer = finding(model, examples[0])
    scorer.once = True
    batch, own = scorer.collate(examples), model.model.norm.forward

    def breaks(x):
        raise KeyboardInterrupt

    model.model.norm.forward = breaks
    with pytest.raises(KeyboardInterrupt):
        scorer.loss(batch)
    model.model.norm.forward = own
    assert not [name for name, m in model.model.layers.named_modules() if "forward" in m.__dict__]
    assert not batch.outputs
    plain = scorer_of(model)
    assert scorer.loss(batch) == scorer.loss(batch) == plain.loss(plain.collate(examples))


def keeping(model, examples):
    """Returns a scorer that keeps the examples' states."""
    scorer = finding(model, examples[0])
    like = scorer.find_states(examples[0])
    scorer.keep(KeptStates([examples], like.shape[-1], like))
    return scorer


def examples_for(model, candidates=(1, 4, 2)):
    """Two candidates begin alike; prompts do, too."""
    masked = kind_of(model) == "masked"
    found = examples_of([1, 1] if masked else list(candidates), LENGTHS, masked, start=(2, 4))
    if not masked:
        for example in found:
            example.candidate_ids[2][:] = example.candidate_ids[1][:2]
    return found


@pytest.mark.parametrize(
    ("name", "candidates"), rotated([*EVERY, "t5"], [[1, 4, 2], [2, 3, 2]]), ids=str
)
def test_scores_are_those_of_computing_every_block(name, candidates):
    """Of an evaluation, mini-batches and copies of one; after the first time no frozen block is computed."""
    make = t5 if name == "t5" else EVERY[name]
    model = train_only(make(), r"decoder\." if name == "t5" else LAST)
    examples = examples_for(model, candidates)
    plain, keeps = scorer_of(model), keeping(model, examples)
    expected = plain.evaluate(examples, 60)
    first = keeps.evaluate(examples, 60)
    calls = counted(model)
    again = keeps.evaluate(examples, 60)
    assert first == again
    assert again.predictions == expected.predictions
    assert again.loss == pytest.approx(expected.loss, abs=1e-5)
    for part in (examples, examples[:3], examples[4:1:-1]):
        batches = plain.collate(part), keeps.collate(part)
        loss = plain.loss(batches[0])
        before = dict(calls)
        assert keeps.loss(batches[1]) == pytest.approx(loss, abs=1e-5)
        for path in calls:
            frozen = path.startswith("encoder") if name == "t5" else not path.endswith("1")
            assert (calls[path] == before[path]) == frozen
        if name != "t5":
            assert keeps.branches(batches[1], 2) == pytest.approx([loss] * 2, abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "bert", "falcon"])
def test_no_bit_depends_on_which_batch_came_first(name):
    losses = []
    for order in ([0, 1, 2, 3, 4, 5, 6], [6, 2, 4, 0, 1, 3, 5]):
        model = train_only(EVERY.get(name, MODELS.get(name))(), LAST)
        examples = examples_for(model)
        scorer = keeping(model, examples)
        for i in order:
            scorer.loss(scorer.collate([examples[i], examples[order[0]]]))
        losses.append([scorer.loss(scorer.collate(examples)), scorer.evaluate(examples, 40).loss])
    assert losses[0] == losses[1]


def test_examples_of_other_splits_are_computed_whole():
    model = train_only(MODELS["llama"](), LAST)
    examples = examples_for(model)
    scorer, plain = keeping(model, examples[:4]), scorer_of(model)
    mixed = examples[2:6]
    assert scorer.loss(scorer.collate(mixed)) == plain.loss(plain.collate(mixed))


def test_the_gradient_is_that_of_the_whole_model():
    found = []
    for keeps in (True, False):
        model = train_only(MODELS["llama"](), LAST)
        examples = examples_for(model)
        scorer = keeping(model, examples) if keeps else scorer_of(model)
        scorer.differentiable_loss(scorer.collate(examples)).backward()
        found.append([p.grad for p in model.parameters() if p.requires_grad])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: train_only(MODELS["llama"](), rf"embed|{LAST}"),
            "input of model.layers depends on trained",
        ),
        (
            lambda: train_only(MODELS["llama, tied"](), rf"lm_head|embed|{LAST}"),
            "depends on trained",
        ),
        (lambda: adapted(MODELS["llama"](), "prompt").model, "depends on trained weights"),
        (lambda: adapted(MODELS["llama"](), "prefix").model, "depends on trained weights"),
        (lambda: train_only(t5(), "block.1"), "the encoder trains"),
    ],
)
def test_states_that_depend_on_trained_weights_are_not_kept(make, why):
    model = make()
    example = examples_for(model)[0]
    with pytest.raises(StatesError, match=why):
        finding(model, example).find_states(example)
