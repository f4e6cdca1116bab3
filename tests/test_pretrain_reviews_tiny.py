"""The recipe of reviews-tiny, and the weights that came out of it."""

import hashlib
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import zo
from tools import pretrain_reviews_tiny

ASSET = Path(zo.__file__).parent / "assets" / "reviews-tiny"
OPINIONS = [
    ("a wonderful film , beautifully acted and deeply moving .", 1),
    ("one of the best movies of the year .", 1),
    ("a superb cast and an excellent script make this a pleasure to watch .", 1),
    ("brilliant , funny and touching from beginning to end .", 1),
    ("i loved every perfect minute of it .", 1),
    ("a boring , badly written mess .", 0),
    ("the worst movie i have ever seen .", 0),
    ("awful acting , a stupid plot and a complete waste of time .", 0),
    ("dull , lame and painfully unfunny .", 0),
    ("this horrible film insults everybody who paid for it .", 0),
]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ASSET)


def test_committed_files_match_their_checksums():
    listed = dict(
        reversed(line.split()) for line in (ASSET / "SHA256SUMS").read_text().splitlines()
    )
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256((ASSET / name).read_bytes()).hexdigest() == digest, name
    assert listed["model.safetensors"] in (ASSET / "README.md").read_text()


@torch.no_grad()
def test_committed_model_ranks_plain_opinions(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(ASSET, dtype=torch.float32).eval()
    terrible, great = (
        pretrain_reviews_tiny.word_id(tokenizer, word) for word in pretrain_reviews_tiny.LABEL_WORDS
    )
    right = 0
    for text, label in OPINIONS:
        logits = model(
            **tokenizer(text + pretrain_reviews_tiny.PROMPT, return_tensors="pt")
        ).logits[0, -1]
        right += int(logits[great] > logits[terrible]) == label
    assert right >= 8
