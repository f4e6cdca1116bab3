"""Runs whose weights lie on disk: the run of those in memory, in a directory that keeps nothing of it."""

import shutil
from pathlib import Path

import pytest

from tests.support.runs import REVIEWS_TINY
from tests.support.victims import what_it_came_to
from zo.lm.config import ModelError
from zo.run.assembly import Assembly
from zo.run.results.export import export
from zo.run.runner import run
from zo.run.store.directory import directory_of
from zo.weights.offload import backing_store
from zo.weights.offloaded import offload_of

STREAMED = "precision.restore=streamed", "precision.noise=philox"
ON_DISK = (*STREAMED, "model.offload=disk")


@pytest.fixture
def weights(tmp_path) -> Path:
    """A copy of the model's files."""
    shutil.copytree(REVIEWS_TINY, tmp_path / "weights")
    return tmp_path / "weights"


ANCHORED = "optimizer=es optimizer.n=2 optimizer.anchor=start optimizer.anchor_decay=10"
MORE = ANCHORED, "adapter=lora lr=1e-2", "adapter=layers adapter.layers=last:1 lr=1e-3"


@pytest.mark.parametrize(
    "settings", ["optimizer=bszo", *(pytest.param(of, marks=pytest.mark.process) for of in MORE)]
)
def test_a_run_from_disk_is_the_run_in_memory(make_run, weights, settings):
    """Its export, too."""
    found, model = [], weights / "model.safetensors"
    before = model.read_bytes()
    for where in ("null", "disk"):
        given = *settings.split(), f"out={weights.parent / where}", f"model.path={weights}"
        cfg = make_run(*STREAMED, *given, f"model.offload={where}")
        run(cfg)
        came_to = what_it_came_to(directory_of(cfg))
        assert not [*directory_of(cfg).glob("offloaded*")]
        export(directory_of(cfg), "3", out := weights.parent / f"{where}-weights")
        (file,) = out.glob("*.safetensors")
        found.append((came_to, file.read_bytes()))
    assert found[0] == found[1]
    assert model.read_bytes() == before


def test_a_disk_without_room_for_the_copy_is_refused_before_the_first_step(make_run, monkeypatch):
    cfg = make_run(*ON_DISK)
    room = shutil.disk_usage(".")._replace(free=10**6)
    monkeypatch.setattr(backing_store.shutil, "disk_usage", lambda _: room)
    with pytest.raises(ModelError, match=r"model.offload=disk: .* GB"):
        run(cfg)
    assert not directory_of(cfg).exists()


def test_a_baseline_reads_the_files_where_they_are(make_run, weights, tmp_path):
    given = "optimizer=zero_shot", "precision=fp16", f"model.path={weights}", "model.offload=disk"
    assembly = Assembly.of(make_run(*given), tmp_path / "scratch")
    offload = offload_of(assembly.params.parameters)
    assert offload is not None
    files = {of.file.path for of in offload.stores if isinstance(of, backing_store.OnDisk)}
    assert files == {weights / "model.safetensors"}
    assert not [*(tmp_path / "scratch").glob("*.safetensors")]
    here = make_run(*given[:3], f"out={tmp_path / 'memory'}")
    assert run(make_run(*given))["best/val_accuracy"] == run(here)["best/val_accuracy"]


def test_a_method_that_needs_the_device_for_itself_is_refused(make_run):
    with pytest.raises(ModelError, match=r"model.offload=disk: adam"):
        Assembly.of(make_run(*ON_DISK, "optimizer=adam", "lr=1e-3"))
