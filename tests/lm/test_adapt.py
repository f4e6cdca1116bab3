"""Adapters and quantised weights: what they compute, what moves, and that exact restore policies measure the same."""

import re
import sys
from dataclasses import replace

import pytest
import torch

from tests.lm.test_scoring import SHAPES
from tests.support.pairwise import pairwise, rotated
from tests.support.plain_scoring import plain_scores
from tests.support.quadratic import DTYPES, same
from tests.support.tiny_models import DECODERS, MODELS, VOCABULARY, examples_of, kind_of, tokenizer
from tests.support.tiny_runs import TinyRun
from zo.lm.adapters.adapt import adapt, merged
from zo.lm.adapters.config import ADAPTERS, RIGHT_LAYERS
from zo.lm.config import ModelError
from zo.lm.load import Loaded
from zo.lm.quantise import QuantisedLinear, count, quantise, weight_bytes
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.generation import Generator
from zo.tasks import Encoded
from zo.weights.space import ParameterSpace

BITS = ("int8", "int4", "nf4")
SETTINGS = {
    "lora": {"r": 2},
    "prefix": {"tokens": 3},
    "prompt": {"tokens": 3},
    "ia3": {},
    "layers": {"pattern": r"layers?\.1\."},
    "bias": {},
}


def adapted(model, name, kind="decoder", seed=0, **settings):
    cfg = ADAPTERS[name](**{**SETTINGS.get(name, {}), **settings})
    return adapt(Loaded(model, tokenizer(), kind=kind), cfg, seed)


def quantised(bits, make=MODELS["llama"]):
    model = make()
    if bits:
        quantise(model, bits)
    return model


@pytest.mark.parametrize(
    ("name", "architecture", "shape"),
    pairwise(["prefix", "prompt"], DECODERS, ["one token", "several tokens"]),
)
def test_virtual_tokens_begin_as_real_ones_in_front_of_every_text(name, architecture, shape):
    """Also where texts share rows, and although an evaluation sorts them."""
    examples = examples_of(SHAPES[shape])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokens = torch.randint(VOCABULARY, (3,)).tolist()
    longer = [Encoded(tokens + e.prompt_ids, e.candidate_ids, e.label) for e in examples]
    expected = torch.tensor(plain_scores(DECODERS[architecture](), longer))
    scorer = CandidateScorer(adapted(DECODERS[architecture](), name).model, pad_id=1)
    torch.testing.assert_close(scorer.scores(scorer.collate(examples)), expected, rtol=0, atol=1e-4)
    assert scorer.evaluate(examples, 60).predictions == expected.argmax(1).tolist()


@pytest.mark.parametrize(
    ("architecture", "name", "bits", "dtype"),
    [
        *(
            (*case, None, DTYPES[0])
            for case in rotated([*DECODERS, "roberta", "bert"], ["lora", "ia3"])
        ),
        *(("opt", "lora", *case) for case in zip(BITS, DTYPES, strict=True)),
    ],
)
def test_an_adapter_scores_as_the_model_at_first_and_as_the_merged_model_later(
    architecture, name, bits, dtype
):
    """Also one of a masked model, which takes adapters that add no tokens, and one of quantised weights."""
    model = quantised(bits, lambda: MODELS[architecture]().to(dtype))
    close = {"rtol": 0, "atol": 1e-4 if dtype == torch.float32 else 30 * torch.finfo(dtype).eps}
    expected, kind = [n for n, _ in MODELS[architecture]().named_parameters()], kind_of(model)
    examples = examples_of(SHAPES["several tokens"], masked=kind == "masked")
    before = torch.tensor(plain_scores(model, examples))
    loaded = adapted(model, name, kind)
    scales = [m.scaling["default"] for m in loaded.adapter.modules() if hasattr(m, "lora_A")]
    assert set(scales) == ({16 / 2} if name == "lora" else set()), "α/r"
    scorer = CandidateScorer(loaded.model, pad_id=1, kind=kind)
    batch = scorer.collate(examples)
    torch.testing.assert_close(scorer.scores(batch), before, **close)
    for p in (p for p in loaded.model.parameters() if p.requires_grad):
        p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3))
    scores = scorer.scores(batch)
    assert (scores - before).abs().max() > 0.01
    model = merged(loaded)
    assert [n for n, _ in model.named_parameters()] == expected
    after = torch.tensor(plain_scores(model, examples))
    torch.testing.assert_close(after, scores, **close)


@pytest.mark.parametrize("architecture", ["llama", "opt", "gpt2"])
@pytest.mark.parametrize("name", ["prompt", "prefix"])
def test_virtual_tokens_are_continued_as_real_ones_are(name, architecture):
    """In batches, too: the tokens behind prompts of different length."""
    model, examples = DECODERS[architecture](), examples_of([1], (3, 7, 4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokens = torch.randint(VOCABULARY, (3,)).tolist()
    behind = [replace(e, prompt_ids=[*tokens, *e.prompt_ids]) for e in examples]
    words = tokenizer()
    words.pad_token = "<pad>"
    expected = [w.ids for w in Generator(model, words, 6, None).write(behind)]
    found = Generator(adapted(model, name).model, words, 6, None)
    assert [w.ids for w in found.write(examples)] == expected
    assert [found.write([e])[0].ids for e in examples] == expected


def test_only_what_is_named_is_trained_and_the_note_says_how_much():
    loaded = adapted(MODELS["llama"](), "layers", pattern=r"layers\.1\.mlp")
    trained = {n: p.numel() for n, p in loaded.model.named_parameters() if p.requires_grad}
    assert set(trained) == {f"model.layers.1.mlp.{n}_proj.weight" for n in ("gate", "up", "down")}
    count, total = sum(trained.values()), sum(p.numel() for p in loaded.model.parameters())
    share = f"{count:,} parameters are trained, {count / total:.2%} of the model's {total:,}"
    assert loaded.notes == (f"adapter=layers: {share}",)


@pytest.mark.parametrize("restore", ["merged", "snapshot", "streamed", "factors"])
def test_small_steps_of_an_adapter_over_half_precision_are_not_rounded_away(restore):
    """As with peft's defaults, θ is float32. B begins as 0, so that A shows it."""

    def share_moved(dtype):
        model = adapted(MODELS["opt"]().bfloat16(), "lora", dtype=dtype).model
        run = TinyRun(model, "lozo", restore, "philox", 1e-5, SHAPES["several tokens"], eps=1e-2)
        before = [p.float() for p in run.weights()]
        run.steps(4)
        if restore == "factors":
            run.params.policy.merge_factors()
        pairs = zip(run.params.names, before, run.weights(), strict=True)
        moved = torch.cat([(a != b).flatten() for name, a, b in pairs if "lora_A" in name])
        return moved.float().mean().item()

    assert share_moved("float32") > 0.9
    assert share_moved("model") < 0.8


@pytest.mark.parametrize("dtype", ["float32", "model"])
@pytest.mark.parametrize("name", ["lora", "prefix", "prompt", "ia3"])
def test_first_values_follow_the_seed_alone_in_the_adapters_dtype(name, dtype):
    def first(seed):
        state = torch.get_rng_state()
        model = adapted(MODELS["gpt2"]().bfloat16(), name, seed=seed, dtype=dtype).model
        assert torch.equal(torch.get_rng_state(), state), "the global random state is left alone"
        torch.manual_seed(seed + 7)  # is not what decides
        return [p.data for p in model.parameters() if p.requires_grad]

    assert same(first(0), first(0))
    assert {p.dtype for p in first(0)} == {DTYPES[dtype == "model"]}
    assert same(first(0), first(1)) is (name == "ia3"), "which begins as ones"


@pytest.mark.parametrize(
    ("bits", "levels", "gap", "share", "name"),
    [
        ("int8", 127, 1, 0.3, "llama"),
        ("int4", 7.5, 1, 0.19, "opt"),
        ("nf4", 1, 0.304, 0.16, "bert"),
    ],
)
def test_each_weight_is_within_half_a_step_of_what_it_was_in_a_share_of_the_memory(
    bits, levels, gap, share, name
):
    before, model = MODELS[name](), MODELS[name]()
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


def test_an_adapter_of_another_architecture_or_depth_is_refused(tmp_path):
    adapted(MODELS["opt"](), "lora", targets=["q_proj"]).adapter.save_pretrained(tmp_path)
    cfg = ADAPTERS["lora"](path=str(tmp_path))
    adapt(Loaded(MODELS["opt"](), tokenizer(), kind="decoder"), cfg, 0)
    deeper = MODELS["opt"](num_hidden_layers=3)
    for model, counts in (
        (MODELS["llama"](), "4 of its 4 .* 4 are"),
        (deeper, "0 of its 4 .* 2 are"),
    ):
        with pytest.raises(
            ModelError, match=rf"adapter\.path=.*: does not fit .*: {counts} missing"
        ):
            adapt(Loaded(model, tokenizer(), kind="decoder"), cfg, 0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from transformers import Gone", "peft is installed and cannot be .*: .*'Gone'"),
        ("import gone_from_here", "needs `pip install peft`"),
    ],
)
def test_a_package_that_cannot_be_imported_says_why_itself(line, said, tmp_path, monkeypatch):
    (tmp_path / "peft.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "peft", raising=False)
    with pytest.raises(ModelError, match=f"adapter=lora: {said}"):
        adapted(MODELS["opt"](), "lora")


@pytest.mark.parametrize("name", ["lora", "ia3", "layers"])
@pytest.mark.parametrize("architecture", ["llama", "opt", "gpt2", "bert"])
def test_an_adapter_trains_the_blocks_that_are_chosen(name, architecture):
    for layers, numbers in (("last:1", {2}), ("first:2", {0, 1}), ([0, 2], {0, 2})):
        model = MODELS[architecture](num_hidden_layers=3)
        kind = "masked" if architecture == "bert" else "decoder"
        given = {"pattern": ""} if name == "layers" else {}
        space = ParameterSpace.of(adapted(model, name, kind, layers=layers, **given).model)
        assert {int(re.search(r"\.(\d+)\.", of)[1]) for of in space.names} == numbers


def test_layers_that_no_model_has_are_refused():
    for wrong in ("last:0", "4", [], [-1], 3):
        assert ADAPTERS["lora"](layers=wrong).problems() == [("layers", RIGHT_LAYERS)]
