"""What does not fit a model is refused in one sentence that names the key."""

import json
from functools import partial

import pytest
import torch

from tests.lm.test_adapt import adapted
from tests.lm.test_models import loaded_from, save
from tests.lm.test_objectives import TASK, TOKENS
from tests.support.tiny_models import (
    UNUSUAL,
    WIDE,
    examples_of,
    llama,
    opt,
    random_model,
    roberta,
    t5,
)
from zo.lm.config import ModelError
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.texts import text_scorer
from zo.tasks import Encoded, TaskError, hub

FNET = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 300}
CONVBERT = WIDE | {"embedding_size": 32, "head_ratio": 2}
NYSTROM = WIDE | {"num_landmarks": 4, "segment_means_seq_len": 8}
SHAPE = {"lm_head.weight": torch.zeros(100, 32)}
NAN = {"model.decoder.layers.0.fc1.bias": torch.full((64,), torch.nan)}


def saved(make, kind="decoder", **change):
    """Returns what loads a model that was saved with a change of its tensors."""
    return lambda at: loaded_from(save(at / "t", make(), **change), kind)


def scored(make, examples):
    return lambda _: CandidateScorer(make(), pad_id=1).check(examples)


def with_own_code(at):
    """Loads a directory whose code would end the process."""
    directory = save(at / "t", llama())
    settings = json.loads((directory / "config.json").read_text())
    own = {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"},
    }
    (directory / "config.json").write_text(json.dumps(settings | own))
    (directory / "own.py").write_text("raise SystemExit\n")
    loaded_from(directory)


def padded(name, **settings):
    """Returns what loads a masked model, which is scored in padded rows."""
    return lambda at: loaded_from(
        save(at / "t", random_model(f"{name}ForMaskedLM", **settings)), "masked", attention="eager"
    )


def quantised(**settings):
    """Returns what loads a checkpoint whose config.json says how it was quantised."""

    def load(at):
        directory = save(at / "t", llama())
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**config, **settings}))
        loaded_from(directory)

    return load


def adapter_alone(at):
    adapted(opt(), "lora", targets=["q_proj"]).adapter.save_pretrained(at)
    loaded_from(at)


QUANTISED = {
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    "torchao": {"quant_method": "torchao", "quant_type": {"default": {}}},
    "hqq": {"quant_method": "hqq", "weight_quant_params": {"nbits": 4}},
    "another": {"quant_method": "another"},
}

REFUSED = [
    (with_own_code, r"Python code of its own \(auto_map"),
    (padded("FNet", **FNET), "padding .* FNetForMaskedLM"),
    (padded("ConvBert", **CONVBERT), "padding .* ConvBertForMaskedLM"),
    (padded("Nystromformer", **NYSTROM), "NystromformerForMaskedLM cannot be scored"),
    (padded("Nystromformer", **WIDE), "padding .* NystromformerForMaskedLM"),
    *((quantised(quantization_config=of), f"quantised by {name}") for name, of in QUANTISED.items()),
    (quantised(quantization_config={"load_in_8bit": True}), "quantised by bitsandbytes"),
    (saved(llama, without="layers.1."), r"9 tensors \(model\.layers\.1\.\w+.*, \.\.\.\) of .* missing"),
    (saved(llama, **SHAPE), r"1 tensor \(lm_head\.weight\) .* is \(100, 32\), not \(300, 32\)"),
    (saved(opt, **NAN), r"computes NaN: model\.decoder\..* holds NaN"),
    (adapter_alone, r"model\.path=.* adapter=lora adapter\.path="),
    (saved(roberta), r"model\.kind=masked"),
    (saved(llama, "masked"), r"model\.kind=decoder"),
    (saved(t5), r"model\.kind=encoder-decoder"),
    (saved(UNUSUAL["no positions"]), r"model\.attention: BloomForCausalLM .* model\.attention=eager"),
    (lambda _: loaded_from("/no/such/model"), "no file or directory /no/such/model;"),
    (lambda _: loaded_from("a/b/c"), "no file or directory a/b/c;"),
    (loaded_from, r"model\.path: /.* cannot be loaded"),
    (scored(partial(opt, vocab_size=100), [Encoded([5], [[299], [4]], 0)]), "token 299, .* is 100"),
    (scored(opt, examples_of([1, 2], [64])), r"task\.max_length: 65 .* 64"),
    (lambda _: CandidateScorer(opt(), 1, graphs=True), r"precision\.graphs: "),
    (lambda _: adapted(llama(), "bias"), "adapter=bias: LlamaForCausalLM"),
    (lambda _: adapted(llama(), "layers", pattern="layer9"), r"adapter\.pattern=layer9: "),
    (lambda _: adapted(llama(), "lora", targets=["query"]), "q_proj, k_proj, v_proj"),
    (lambda _: adapted(llama(), "lora", layers="last:4"), r"adapter\.layers=last:4: .* 2 layers"),
    (lambda _: adapted(t5(), "lora", layers="last:1"), r"adapter\.layers: .* has 2"),
    (lambda _: adapted(opt(), "ia3", targets=["query"]), r"adapter\.targets: "),
    (lambda _: text_scorer(TASK, None, opt(), TOKENS).check([Encoded([5] * 60, [], 0, row=7)]),
        r"task\.max_new_tokens=6: row 7 .* 64"),
]  # fmt: skip


def test_a_name_that_is_no_path_here_is_said_before_advice_about_the_hub(monkeypatch):
    monkeypatch.setattr(hub, "answers", lambda: False)
    with pytest.raises(ModelError, match=r"^model\.path: no such file or directory no/such"):
        loaded_from("no/such")


@pytest.mark.parametrize(("attempt", "message"), REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(attempt, message, tmp_path, monkeypatch):
    """The hub is not asked for what can only be a path."""
    monkeypatch.setattr(hub, "answers", lambda: pytest.fail("the hub was asked"))
    with pytest.raises((ModelError, TaskError), match=message) as caught:
        attempt(tmp_path)
    assert "\n" not in str(caught.value)
