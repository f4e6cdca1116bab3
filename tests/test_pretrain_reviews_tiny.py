"""The recipe of reviews-tiny, and the weights that came out of it."""

import hashlib
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import zo
from tools import pretrain_reviews_tiny

ASSET = Path(zo.__file__).parent / "assets" / "reviews-tiny"
PARTS = {
    0: (
        "The plot is a mess.",
        "It is a boring, stupid waste of time.",
        "The acting is awful!<br />",
    ),
    1: ("The plot is a delight.", "A wonderful and moving story.", "The acting is superb!<br />"),
}
REVIEWS = [
    (" ".join([*PARTS[label], *pretrain_reviews_tiny.VERDICTS[label]]), label)
    for _ in range(6)
    for label in PARTS
]
SMALL = pretrain_reviews_tiny.Recipe(
    steps=3, batch_size=4, warmup=1, vocab_size=600, width=16, layers=1, heads=2, heldout=2
)
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


def test_short_recipe_is_deterministic_and_leaves_the_global_generator_alone(tmp_path):
    before = torch.get_rng_state()
    accuracy = [
        pretrain_reviews_tiny.pretrain(SMALL, REVIEWS, tmp_path / name) for name in ("a", "b")
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert accuracy[0] == accuracy[1]
    sums = [(tmp_path / name / "SHA256SUMS").read_text() for name in ("a", "b")]
    assert sums[0] == sums[1]
    other = pretrain_reviews_tiny.Recipe(**{**vars(SMALL), "seed": 1})
    pretrain_reviews_tiny.pretrain(other, REVIEWS, tmp_path / "c")
    assert (tmp_path / "c" / "SHA256SUMS").read_text() != sums[0]


def test_short_recipe_writes_a_directory_that_loads(tmp_path):
    pretrain_reviews_tiny.pretrain(SMALL, REVIEWS, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    logits = model(**tokenizer("A fine film It was", return_tensors="pt")).logits
    assert logits.dtype == torch.float32
    assert logits.shape[-1] == len(tokenizer)
    assert torch.isfinite(logits).all()


def test_sentences_look_like_those_of_a_sentence_corpus():
    text = 'A "Great" film!<br /><br />I loved it, truly (twice).'
    expected = ['a " great " film !', "i loved it , truly ( twice ) ."]
    assert pretrain_reviews_tiny.split_sentences(text) == expected


def test_only_imdb_rows_are_read(tmp_path, monkeypatch):
    path = tmp_path / "reviews.csv"
    path.write_text("text,label,source\nfine,1,imdb\nsecret,not read,rotten_tomatoes\n")
    monkeypatch.setattr(pretrain_reviews_tiny, "REVIEWS", str(path))
    assert pretrain_reviews_tiny.load_imdb() == [("fine", 1)]


def test_committed_files_match_their_checksums():
    listed = dict(
        reversed(line.split()) for line in (ASSET / "SHA256SUMS").read_text().splitlines()
    )
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256((ASSET / name).read_bytes()).hexdigest() == digest, name
    assert listed["model.safetensors"] in (ASSET / "README.md").read_text()


def test_label_words_are_single_tokens_behind_the_prompt(tokenizer):
    prompt = tokenizer("A film. It was")["input_ids"]
    for word in pretrain_reviews_tiny.LABEL_WORDS:
        whole = tokenizer(f"A film. It was {word}")["input_ids"]
        assert whole == [*prompt, *tokenizer(f" {word}", add_special_tokens=False)["input_ids"]]
        assert len(whole) == len(prompt) + 1


def test_tokenizer_begins_with_the_end_of_text_token(tokenizer):
    assert tokenizer("A film.")["input_ids"][0] == tokenizer.convert_tokens_to_ids("</s>")
    assert tokenizer.bos_token == tokenizer.eos_token == "</s>"
    assert tokenizer.pad_token == "<pad>"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


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
