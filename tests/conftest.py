"""What the tests of several rooms share: made-up reviews on disk, and runs that take a second."""

import gc
import os
import random
import shutil
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path

# Workers share the machine; torch reads it once, when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import submitit  # noqa: F401  # first: it closes what absl logs to, and that would be pytest's own file
import torch
from hypothesis import settings

settings.register_profile("quick", max_examples=40, deadline=None, derandomize=True)
settings.load_profile("quick")

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
if not torch.cuda.is_available():  # read when Triton is imported: its kernels then run by numpy
    os.environ.setdefault("TRITON_INTERPRET", "1")

GOOD = ("a warm and funny film", "brilliant from start to end", "wonderful and lovely acting")
BAD = ("a dull and lifeless mess", "awful from start to end", "terrible acting and a stupid story")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--method", help="a method to test, too: my_method.py:MyMethod")


def pytest_configure(config: pytest.Config) -> None:
    if address := config.getoption("--method"):
        from zo.library.methods import method_named

        method_named(address)


def keep_out_of_collections() -> None:
    """Has garbage collections pass over all that is alive: libraries that take them half a second each."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    keep_out_of_collections()


def pytest_runtest_setup() -> None:
    """Weights and data that a test draws are the same at each run of it, whatever ran before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  libraries draw from it
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def own_hub_cache(tmp_path_factory):
    """No test reads or fills the user's own cache of datasets."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets")


@pytest.fixture(scope="session", autouse=True)
def committed_code():
    """Whoever edits this checkout's methods has the ids of committed ones in tests."""
    from zo.config import digests, method_code

    own, git = method_code.PACKAGE, digests.git
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "git", lambda at, *asked: git(at, *asked) if at != own else "")
        yield


@pytest.fixture
def file(tmp_path) -> Path:
    """Where a training of the library is recorded."""
    return tmp_path / "run.zo"


@pytest.fixture
def own_conf(tmp_path, monkeypatch) -> Path:
    """A copy of conf/ that commands read; options that a test registers are gone after it."""
    from hydra.core.config_store import ConfigStore

    from analysis.report import comparison
    from zo.config import arms, command_line

    conf = shutil.copytree(command_line.CONFIG_DIR, tmp_path / "conf")
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", deepcopy(store.repo))
    for module in (arms, command_line):
        monkeypatch.setattr(module, "CONFIG_DIR", conf)
    for module in (arms, comparison):
        monkeypatch.setattr(module, "SETTINGS", conf / "settings")
    return conf


@pytest.fixture(scope="session")
def reviews_csv(tmp_path_factory) -> Path:
    rng = random.Random(0)
    reviews = [
        (f"{rng.choice(GOOD if label else BAD)} number {rng.randrange(10**6)}", label)
        for label in (0, 1) * 100
    ]
    return write_reviews(tmp_path_factory.mktemp("reviews") / "reviews.csv", reviews)


def write_reviews(path: Path, reviews: Iterable[tuple[str, int]]) -> Path:
    rows = [f"{text},{label},rotten_tomatoes\n" for text, label in reviews]
    path.write_text("text,label,source\n" + "".join(rows))
    return path


def small_task(reviews: Path) -> list[str]:
    sizes = ("train_size=64", "validation_size=32", "test_size=48", "max_length=32")
    data = f"task.data_files.train={reviews}"
    return ["model=reviews-tiny", "task=rotten_tomatoes", data, *(f"task.{of}" for of in sizes)]


@pytest.fixture
def make_run(reviews_csv, tmp_path):
    """Returns a function from overrides to the checked configuration of a run on the made-up reviews."""
    keep_out_of_collections()
    return lambda *overrides: _run_on(reviews_csv, tmp_path / "out", *overrides)


def _run_on(reviews: Path, out: Path, *overrides: str):
    from tests.support.runs import composed

    base = (*small_task(reviews), "steps=4", "eval_every=2", "lr=1e-4", "patience=8")
    return composed(out, *base, "precision.noise=torch", "precision.restore=merged", *overrides)


FINISHED = ("optimizer=mezo", "eval_every=1")


@pytest.fixture(scope="session")
def made_once(reviews_csv, tmp_path_factory) -> Path:
    from zo.run.runner import run

    out = tmp_path_factory.mktemp("made_once") / "out"
    run(_run_on(reviews_csv, out, *FINISHED))
    return out


@pytest.fixture
def finished(made_once, make_run):
    """A finished run of MeZO with an evaluation after each of four steps: a copy of one that is made once."""
    cfg = make_run(*FINISHED)
    shutil.copytree(made_once, cfg.out)
    return cfg


@pytest.fixture
def frozen(make_run, tmp_path):
    """Returns a function from overrides to the frozen directories of equal runs, each in a place of its own.

    Words and labels of the reviews mean nothing, so that the best step comes late with some methods.
    """
    from zo.run.store.directory import freeze

    rng, words = random.Random(1), " ".join(GOOD + BAD).split()
    reviews = [(" ".join(rng.choices(words, k=6)), rng.randrange(2)) for _ in range(200)]
    train = f"task.data_files.train={write_reviews(tmp_path / 'guesses.csv', reviews)}"
    small = (train, "steps=8", "lr=1e-3", "threads=1")
    return lambda count, *overrides: [
        freeze(make_run(*small, *overrides, f"out={tmp_path / f'copy{i}'}")) for i in range(count)
    ]
