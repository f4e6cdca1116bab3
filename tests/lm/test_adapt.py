"""Adapters: what they compute at first, what moves, and that every exact restore policy measures the same."""

import pytest
import torch

from tests.lm.test_scoring import SHAPES
from tests.support.pairwise import pairwise, rotated
from tests.support.plain_scoring import plain_scores
from tests.support.quadratic import same
from tests.support.tiny_models import DECODERS, MASKED, VOCABULARY, examples_of, opt, tokenizer
from tests.support.tiny_runs import TinyRun
from zo.lm.adapt import adapt, merged
from zo.lm.adapter_config import ADAPTERS
from zo.lm.config import ModelError
from zo.lm.load import Loaded
from zo.lm.quantise import quantise
from zo.lm.scoring import CandidateScorer
from zo.tasks import Encoded

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


def moved(loaded, restore, method="mezo"):
    """Returns θ and the losses after a few steps on one mini-batch."""
    run = TinyRun(loaded.model, method, restore, "philox", 1e-2, SHAPES["several tokens"], eps=1e-2)
    losses = run.steps(3)
    return run.weights(), losses


def model_of(architecture, bits):
    model = DECODERS[architecture]()
    if bits:
        quantise(model, bits)
    return model


@pytest.mark.parametrize(
    ("name", "architecture", "method", "bits"),
    [
        *[
            case
            for case in pairwise(SETTINGS, ["llama", "opt"], ["mezo", "bszo"], [None, *BITS])
            if case[:2] != ("bias", "llama")  # which has none
        ],
        ("none", "opt", "mezo", "nf4"),
        *[("scales", "llama", "mezo", bits) for bits in BITS],
    ],
)
def test_streamed_measures_and_moves_as_snapshot_bit_for_bit(name, architecture, method, bits):
    (snapshot, losses), (streamed, measured) = (
        moved(adapted(model_of(architecture, bits), name), restore, method)
        for restore in ("snapshot", "streamed")
    )
    assert losses == measured
    assert same(snapshot, streamed)
    model = adapted(model_of(architecture, bits), name).model
    start = [p for p in model.parameters() if p.requires_grad]
    assert not same(snapshot, [p.data for p in start])


@pytest.mark.parametrize("name", ["lora", "prefix", "bias"])
def test_factors_measures_all_points_at_once_as_snapshot_does_one_by_one(name):
    one_by_one, at_once = (
        torch.tensor(moved(adapted(opt(), name), restore, "lozo")[1])
        for restore in ("snapshot", "factors")
    )
    torch.testing.assert_close(at_once, one_by_one, rtol=0, atol=2e-5)


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
    found = scorer.evaluate(examples, 60)
    assert found.predictions == expected.argmax(1).tolist()


@pytest.mark.parametrize(("architecture", "name"), rotated([*DECODERS, *MASKED], ["lora", "ia3"]))
def test_an_adapter_scores_as_the_model_at_first_and_as_the_merged_model_later(architecture, name):
    """Also one of a masked model, which takes adapters that add no tokens."""
    make, masked = (DECODERS | MASKED)[architecture], architecture in MASKED
    kind = "masked" if masked else "decoder"
    examples = examples_of(SHAPES["several tokens"], masked=masked)
    before = torch.tensor(plain_scores(make(), examples))
    loaded = adapted(make(), name, kind)
    scales = [m.scaling["default"] for m in loaded.adapter.modules() if hasattr(m, "lora_A")]
    assert set(scales) == ({16 / 2} if name == "lora" else set()), "α/r"
    scorer = CandidateScorer(loaded.model, pad_id=1, kind=kind)
    batch = scorer.collate(examples)
    torch.testing.assert_close(scorer.scores(batch), before, rtol=0, atol=2e-5)
    for p in loaded.model.parameters():
        if p.requires_grad:
            p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3))
    scores = scorer.scores(batch)
    assert (scores - before).abs().max() > 0.01
    model = merged(loaded)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in make().named_parameters()]
    torch.testing.assert_close(
        torch.tensor(plain_scores(model, examples)), scores, rtol=0, atol=1e-4
    )


def test_only_what_is_named_is_trained_and_the_note_says_how_much():
    loaded = adapted(DECODERS["llama"](), "layers", pattern=r"layers\.1\.mlp")
    trained = {n: p.numel() for n, p in loaded.model.named_parameters() if p.requires_grad}
    assert set(trained) == {f"model.layers.1.mlp.{n}_proj.weight" for n in ("gate", "up", "down")}
    count, total = sum(trained.values()), sum(p.numel() for p in loaded.model.parameters())
    share = f"{count:,} parameters are trained, {count / total:.2%} of the model's {total:,}"
    assert loaded.notes == (f"adapter=layers: {share}",)


@pytest.mark.parametrize("name", ["lora", "prefix", "prompt", "ia3"])
def test_first_values_follow_the_seed_alone_in_the_models_dtype(name):
    def first(seed):
        torch.manual_seed(seed + 7)  # is not what decides
        state = torch.get_rng_state()
        model = adapted(DECODERS["gpt2"]().to(torch.bfloat16), name, seed=seed).model
        assert torch.equal(torch.get_rng_state(), state), "the global random state is left alone"
        return torch.cat([p.flatten() for p in model.parameters() if p.requires_grad])

    assert first(0).dtype == torch.bfloat16
    assert torch.equal(first(0), first(0))
    assert torch.equal(first(0), first(1)) is (name == "ia3"), "which begins as ones"


@pytest.mark.parametrize(
    ("model", "name", "settings", "said"),
    [
        ("llama", "bias", {}, "adapter=bias: LlamaForCausalLM has no biases; there are model."),
        ("llama", "layers", {"pattern": "layer9"}, "adapter.pattern=layer9: is found in no name"),
        ("llama", "lora", {"targets": ["query"]}, "has the linear layers q_proj, k_proj, v_proj"),
        ("opt", "ia3", {"targets": ["query"]}, "adapter.targets: "),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(model, name, settings, said):
    with pytest.raises(ModelError) as error:
        adapted(DECODERS[model](), name, **settings)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
