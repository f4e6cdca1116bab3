"""Frozen blocks are computed once per mini-batch: the same losses, bit for bit, for a part of the work."""

import re
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn

import zo
from tests.lm.test_adapt import adapted, quantised
from tests.support.pairwise import rotated
from tests.support.tiny_models import (
    LLAMA,
    MASKED_LM,
    MODELS,
    PACKED,
    SIZES,
    VOCABULARY,
    WINDOWS,
    examples_of,
    kind_of,
    llama,
    random_model,
    t5,
)
from zo.distributed.processes import Processes
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.encoder_decoder import EncoderDecoderScorer
from zo.optim import OPTIMIZERS
from zo.run.losses import BatchLoss, ShardedLoss
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
BLOCKS = re.compile(r"(?:layers?|h|block)\.\d+$")
LAST = r"(?:layers?|h|block)\.1\."
EXACT = ("snapshot", "streamed", "factors", "merged", "subtract")
TOKENS = torch.randint(5, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(0))


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


def steps_with_and_without(make, method="mezo", restore="streamed", shards=1, **settings):
    """Returns the losses and the counted calls of three steps on two mini-batches, with reuse and without."""
    found = []
    for reuses in (True, False):
        model = make()
        kind = "encoder-decoder" if model.config.is_encoder_decoder else kind_of(model)
        scorer_of = EncoderDecoderScorer if kind == "encoder-decoder" else CandidateScorer
        scorer = scorer_of(model, model.config.pad_token_id or 1, kind=kind)
        space = ParameterSpace.of(model, restore, "philox")
        config = OPTIMIZERS[method].config(**settings)
        optimizer = OPTIMIZERS[method].optimizer(space, config, lr=1e-2, seed=3)
        examples = examples_of([2, 1] if kind != "masked" else [1, 1], masked=kind == "masked")
        batches = [examples[:4], examples[1:]]
        batch = scorer.collate(batches[0])
        space.prefix.prove(lambda: scorer.loss(batch))  # noqa: B023
        if not reuses:
            space.prefix.leave("compared")
        calls, losses = counted(model), []
        for examples in (batches[0], batches[1], batches[0]):
            loss = BatchLoss(scorer, scorer.collate(examples), space)
            if shards > 1:
                loss = ShardedLoss(scorer, examples, shards, space, Processes())
            losses += optimizer.step(loss).losses
        found.append((losses, calls, space.prefix.describe()))
    return found


@pytest.mark.parametrize(
    ("name", "restore"), rotated(ARCHITECTURES, [e for e in EXACT if e != "factors"])
)
def test_frozen_blocks_are_computed_once_and_losses_have_the_same_bits(name, restore):
    make = ARCHITECTURES[name]
    (losses, calls, said), (plain, every, _) = steps_with_and_without(
        lambda: train_only(make(), LAST), "bszo", restore, prior_std=1.0
    )
    assert losses == plain
    assert len({*losses}) == len(losses), "nothing was measured"
    (first, last) = sorted(calls)
    assert (calls[first], calls[last]) == (3, 9)
    assert every[first] == every[last] == 9
    assert re.match(r"computed once per mini-batch: blocks 0 to 0 of [a-z_.]+$", said)


@pytest.mark.parametrize(
    ("pattern", "once"),
    [
        (r"decoder\.", ["encoder.block.0", "encoder.block.1"]),
        (r"decoder.block.1", ["decoder.block.0"]),
    ],
)
def test_a_frozen_encoder_is_computed_once_for_all_probes(pattern, once):
    (losses, calls, _), (plain, every, _) = steps_with_and_without(
        lambda: train_only(t5(), pattern)
    )
    assert losses == plain
    assert {*every.values()} == {6}
    assert all(calls[path] == 3 for path in once)
    assert calls["decoder.block.1"] == 6


@pytest.mark.parametrize(
    ("bits", "name", "restore"),
    rotated([None, "int8", "int4", "nf4"], ["lora", "ia3"], ["streamed", "merged", "snapshot"]),
)
def test_adapters_of_some_layers_and_quantised_weights(bits, name, restore):
    def make():
        base = quantised(bits) if bits else MODELS["llama"]()
        return adapted(base, name, layers="last:1").model

    (losses, calls, _), (plain, _, _) = steps_with_and_without(make, restore=restore, eps=1e-2)
    assert losses == plain
    assert [calls[path] for path in sorted(calls)] == [3, 6]


@pytest.mark.parametrize("restore", ["streamed", "merged"])
def test_parts_of_a_mini_batch_are_each_computed_once(restore):
    found = steps_with_and_without(lambda: train_only(llama(), LAST), restore=restore, shards=2)
    (losses, calls, _), (plain, _, _) = found
    assert losses == plain
    assert [calls[path] for path in sorted(calls)] == [6, 12]


def in_own_loop(closure_of, restore="merged", make=llama, pattern=LAST, steps=3, **settings):
    """Returns the losses of steps with a closure of one's own, with reuse and without, and what is said of it."""
    found = []
    for reuses in (True, False):
        model = train_only(make(), pattern)
        optimizer = zo.MeZO(model, 1e-2, restore=restore, **settings)
        if not reuses:
            optimizer.method.params.prefix.leave("compared")
        calls, losses, closure = counted(model), [], closure_of(model)
        for _ in range(steps):
            optimizer.step(closure)
            losses += optimizer.info.losses
        found.append((losses, calls, optimizer.frozen_prefix))
    return found


@pytest.mark.parametrize("restore", ["merged", "streamed", "factors"])
def test_a_loop_of_ones_own_computes_frozen_blocks_once(restore):
    """Also where the model fills a cache of keys and values that nobody reads; the first step's check is two calls."""
    make = {"factors": zo.LOZO}.get(restore, zo.MeZO)
    found = []
    for reuses in (True, False):
        model = train_only(llama(), LAST)
        model.config.use_cache = True
        optimizer = make(model, 1e-2, restore=restore)
        if not reuses:
            optimizer.method.params.prefix.leave("compared")
        calls, losses = counted(model), []
        for _ in range(3):
            optimizer.step(lambda: model(input_ids=TOKENS, labels=TOKENS).loss)  # noqa: B023
            losses += optimizer.info.losses
        found.append((losses, [calls[path] for path in sorted(calls)]))
    (losses, calls), (plain, every) = found
    assert losses == plain
    assert (calls, every) == ([1 + 3, 2 + 6], [2 + 6, 2 + 6])


def several_calls(model):
    """A preference loss: two texts, one of which is given twice."""

    def closure():
        a, b, c = (model(input_ids=of, labels=of).loss for of in (TOKENS, TOKENS[:2], TOKENS))
        return a - b + c

    return closure


def changed_in_the_second_probe(change):
    """Losses whose second call in a step meets something else than the first."""

    def closure_of(model):
        mask, count = torch.ones_like(TOKENS), [0]
        mask[:, -1] = 0  # else it is left out

        def closure():
            count[0] += 1
            if count[0] > 2 and count[0] % 2 == 0:  # the first two are the check
                change(model, mask)
            return model(input_ids=TOKENS, attention_mask=mask, labels=TOKENS).loss

        return closure

    return closure_of


def other_mask(model, mask):
    mask[:, -3:] = 0


def other_weights(model, mask):
    model.model.layers[0].mlp.up_proj.weight.data = (
        model.model.layers[0].mlp.up_proj.weight.data * 1.01
    )


def other_values(model, mask):
    model.model.layers[0].mlp.up_proj.weight.mul_(1.01)


@pytest.mark.parametrize("change", [other_mask, other_weights, other_values])
def test_what_changes_between_two_probes_is_noticed(change):
    (losses, _, _), (plain, _, _) = in_own_loop(changed_in_the_second_probe(change))
    assert losses == plain
    assert len({*losses}) == len(losses)


def test_several_forward_passes_of_a_closure_are_told_apart():
    (losses, calls, _), (plain, every, _) = in_own_loop(several_calls)
    assert losses == plain
    assert (min(calls.values()), min(every.values())) == (2 + 3 * 2, 6 + 3 * 6)


def reads_hidden_states(model):
    return lambda: model(TOKENS, labels=TOKENS, output_hidden_states=True).hidden_states[1].mean()


def reads_an_attribute(model):
    """Reads what a frozen block left behind, without a hook."""
    block, forward = model.model.layers[0], model.model.layers[0].mlp.forward
    block.mlp.forward = lambda x: setattr(block, "left", forward(x)) or block.left

    def closure():
        block.left = torch.zeros(1)
        return model(TOKENS, labels=TOKENS).loss + block.left.mean()

    return closure


def goes_on_from_its_cache(model):
    def closure():
        begun = model(TOKENS[:, :5], use_cache=True)
        more = model(TOKENS[:, 5:], past_key_values=begun.past_key_values, labels=TOKENS[:, 5:])
        return more.loss

    return closure


@pytest.mark.parametrize(
    ("closure_of", "why"),
    [
        (reads_hidden_states, "a block of model.layers has a forward hook"),
        (reads_an_attribute, r"the loss is [\d.]+ with the kept output of model.layers and [\d.]+"),
        (goes_on_from_its_cache, "blocks of model.layers fill a DynamicCache that the loss reads"),
    ],
)
def test_a_loss_that_reads_more_than_the_last_blocks_output_is_left_alone(closure_of, why):
    (losses, _, said), (plain, _, _) = in_own_loop(closure_of)
    assert losses == plain
    assert re.match(f"all blocks are computed for every probe: .*{why}", said), said


def in_training_mode(model):
    model.model.layers[0].mlp.train()
    return lambda: model(TOKENS, labels=TOKENS).loss


def as_usual(model):
    return lambda: model(TOKENS, labels=TOKENS).loss


@pytest.mark.parametrize(
    ("closure_of", "pattern", "why"),
    [
        (in_training_mode, LAST, "model.layers is in training mode"),
        (as_usual, rf"embed|{LAST}", "what enters model.layers is not the same"),
    ],
)
def test_what_cannot_be_reused_is_said(closure_of, pattern, why):
    (losses, _, said), (plain, _, _) = in_own_loop(closure_of, pattern=pattern, eps=1e-2)
    assert losses == plain
    assert said.startswith(f"all blocks are computed for every probe: {why}"), said


@pytest.mark.process  # compiling takes seconds
def test_a_compiled_loss_stays_whole():
    found, said = [], []
    for reuses in (True, False):
        torch._dynamo.reset()
        model = train_only(llama(), LAST)
        run = torch.compile(model, backend="eager", fullgraph=True)
        optimizer = zo.MeZO(model, 1e-2)
        if not reuses:
            optimizer.method.params.prefix.leave("compared")
        steps = [
            optimizer.step(lambda: run(TOKENS, labels=TOKENS, use_cache=False).loss)  # noqa: B023
            for _ in range(3)
        ]
        found.append(steps)
        said.append(optimizer.frozen_prefix)
    assert found[0] == found[1]
    assert said[0].endswith("the loss does not call them")


class Chain(nn.Module):
    """Two frozen blocks and one that trains; `more` is an argument of the second alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Adding() for _ in range(3))

    def forward(self, x, more):
        for block, of in zip(self.blocks, (0.25, more, 0.5), strict=True):
            x = block(x, of)
        return x


class Adding(nn.Module):
    """Writes into what it is called with."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x, more):
        return self.linear(x.add_(more)).relu_()


def test_a_later_blocks_argument_alone_makes_the_blocks_before_it_compute_after_all():
    """Blocks may write into their arguments; the second pass of the first step has another one."""
    found, said = [], ""
    for reuses in (True, False):
        model, x, count = train_only(Chain().eval(), r"blocks\.2"), torch.ones(2, 5), [0]
        optimizer = zo.BSZO(model, 1e-2, prior_std=1.0)
        if not reuses:
            optimizer.method.params.prefix.leave("compared")

        def closure():
            count[0] += 1  # noqa: B023
            return model(x.clone(), 1.0 + (count[0] == 4)).sum()  # noqa: B023

        for _ in range(3):
            optimizer.step(closure)
            found.append(optimizer.info.losses)
        said = said or optimizer.frozen_prefix
    assert found[:3] == found[3:]
    assert "computed once" in said


def test_the_model_is_as_before_when_a_step_is_broken_off():
    model, calls = train_only(llama(), LAST), []
    optimizer = zo.MeZO(model, 1e-2, restore="streamed")

    def closure():
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return model(TOKENS, labels=TOKENS).loss

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert not [name for name, m in model.named_modules() if "forward" in m.__dict__]
    assert optimizer.step(closure) > 0
