"""The weights of reviews-tiny are those that its README describes."""

import hashlib
from pathlib import Path

import zo

ASSET = Path(zo.__file__).parent / "assets" / "reviews-tiny"


def test_committed_files_match_their_checksums():
    lines = (ASSET / "SHA256SUMS").read_text().splitlines()
    listed = dict(reversed(line.split()) for line in lines)
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256((ASSET / name).read_bytes()).hexdigest() == digest, name
    assert listed["model.safetensors"] in (ASSET / "README.md").read_text()
