"""What is in results/ says where it comes from: commits and trees of this repository, or a mark that they are gone.

The shipped weights are those that their checksums name.
"""

import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from analysis.select.provenance import NOT_HERE, foot
from zo.config.digests import of_tree, read

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
CITED = re.compile(r"(?:\bgit|commit|revisions?)\W{1,8}((?:[0-9a-f]{7,40}\b\+?(?:, | and )?)+)")
REVISION = re.compile(r"\b[0-9a-f]{7,40}\b")

pytestmark = pytest.mark.process


def git(*arguments: str, at: Path = ROOT, **more) -> str:
    how = {"capture_output": True, "text": True, "check": True, **more}
    return subprocess.run(["git", "-C", str(at), *arguments], **how).stdout.strip()


@pytest.fixture(scope="module")
def history() -> str:
    with suppress(OSError, subprocess.CalledProcessError):
        if git("rev-parse", "--is-shallow-repository") == "false":
            return " " + git("rev-list", "HEAD").replace("\n", " ")
    return pytest.skip("the history of the repository is not here")


@pytest.mark.parametrize("model", ["reviews-tiny", "reasoning-tiny"])
def test_shipped_weights_have_their_checksums(model):
    folder = ROOT / "src" / "zo" / "assets" / model
    sums = (folder / "SHA256SUMS").read_text().split()
    assert [read(folder / name, "sha256") for name in sums[1::2]] == sums[::2]
    assert sums[sums.index("model.safetensors") - 1] in (folder / "README.md").read_text()


def cited(path: Path) -> set[str]:
    """The commits that a text cites: behind a word, or in a column of a csv."""
    text = path.read_text(encoding="utf-8")
    groups = CITED.findall(text)
    if path.suffix == ".csv":
        table = pd.read_csv(path, dtype=str, usecols=lambda name: "revision" in name)
        groups += table.stack().tolist()
    return {one for group in groups for one in REVISION.findall(group)}


@pytest.mark.parametrize("suffix", ["csv", "json", "md"])
def test_a_commit_that_a_text_cites_is_here_or_the_text_says_that_it_is_not(history, suffix):
    paths = [path for path in RESULTS.rglob(f"*.{suffix}") if "local" not in path.parts]
    gone = {str(path): lost for path in paths if (lost := [one for one in cited(path) if f" {one}" not in history])
            and "not in this repository" not in path.read_text(encoding="utf-8")}  # fmt: skip
    assert gone == {}


def test_a_commit_and_a_file_of_it_that_a_page_cites_are_here(history):
    pinned = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "conf").rglob("*.yaml"))
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
    gone = {path: lost for path in texts
            if (lost := [one for one in cited(path) if f" {one}" not in history and one not in pinned])}  # fmt: skip
    assert gone == {}
    files = [
        re.findall(r"`(\S+\.\w+)` of commits? ([0-9a-f]{7,40})", text) for text in texts.values()
    ]
    named = [f"{commit}:{name}" for found in files for name, commit in found]
    assert named
    kinds = git("cat-file", "--batch-check=%(objecttype)", input="\n".join(named)).splitlines()
    assert dict(zip(named, kinds, strict=False)) == dict.fromkeys(named, "blob")


def test_a_recorded_run_cites_what_is_here_or_is_marked(history):
    trees = set()
    for path in RESULTS.rglob("measured/**/runs.parquet"):
        runs = pd.read_parquet(path, columns=["git_revisions", "provenance.sources"])
        revisions, sources = runs["git_revisions"].str.split(), runs["provenance.sources"]
        here = revisions.map(lambda ids: {*ids} <= {*history.split()})
        assert ((sources == NOT_HERE) == ~here).all(), path
        named = sources[sources != NOT_HERE].dropna().str.split().explode()
        trees |= {*named.str.split(":").str[-1]}
    kinds = git("cat-file", "--batch-check=%(objecttype)", input="\n".join(trees)).split()
    assert trees
    assert kinds == ["tree"] * len(trees)


def test_a_trees_hash_is_gits_own(tmp_path):
    code = tmp_path / "code"
    shutil.copytree(ROOT / "src/zo/noise", code, ignore=shutil.ignore_patterns("__pycache__"))
    (code / "cpu-and.py").write_text("")  # sorted before cpu/, as git does
    git("init", "-q", at=tmp_path)
    git("add", "code", at=tmp_path)
    assert of_tree(code) == git("rev-parse", f"{git('write-tree', at=tmp_path)}:code", at=tmp_path)
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "x.pyc").write_bytes(b"")
    before = of_tree(code)
    (code / "keys.py").write_text("other")
    assert before != of_tree(code)


def test_a_caption_marks_commits_that_are_gone():
    revisions = ["a" * 40, "b" * 40 + " " + "a" * 40]
    runs = pd.DataFrame({"git_revisions": revisions, "started": "2026-01-01"})
    assert "; git aaaaaaaaaa, bbbbbbbbbb; torch" in foot("2 runs", runs)
    marked = runs.assign(**{"provenance.sources": [None, NOT_HERE]})
    assert "; git aaaaaaaaaa, bbbbbbbbbb (not in this repository); torch" in foot("2 runs", marked)
