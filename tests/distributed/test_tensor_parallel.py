"""train.py with distributed.tensor: two processes hold a part of each tensor."""

import pytest
import torch

from tests.support.crowd import gather_results
from tests.support.divided_runs import exit_statuses, told_by
from tests.support.tiny_models import llama, tokenizer
from tests.support.victims import At, here, what_it_came_to
from zo.run import checkpoint, runner
from zo.run.assembly import Assembly
from zo.run.directory import freeze, load
from zo.run.replay import replay_to
from zo.run.rows import read_rows, trajectory_of


@pytest.fixture
def llama_run(make_run, tmp_path):
    """Returns a function from overrides to a run of a tiny Llama."""
    llama(tie_word_embeddings=False).save_pretrained(tmp_path / "llama")
    tokenizer().save_pretrained(tmp_path / "llama")

    def make(*overrides):
        return make_run(
            *(f"model.path={tmp_path / 'llama'}", "optimizer=bszo", "precision.noise=philox"),
            *("device=cpu", "threads=1", "distributed.timeout=60", *overrides),
        )

    return make


@pytest.mark.process
def test_a_run_with_divided_tensors_steps_as_one_process_and_goes_on_from_a_whole_checkpoint(
    llama_run, tmp_path
):
    """After a process was killed; the checkpoint has the bits that one process replays."""
    settings = "optimizer=zo_momentum", "checkpoint.full_every=2", "checkpoint.keep_best=true"
    run, twin, whole = (
        freeze(llama_run(f"distributed.tensor={n}", *settings, "steps=7", f"out={tmp_path / name}"))
        for name, n in (("run", 2), ("twin", 2), ("whole", 1))
    )
    assert run.name != whole.name
    log = run / "log.txt"
    points = {1: (At("zo.run.losses:TensorParallelLoss.__call__", 10),)}
    assert exit_statuses(run, 2, points) == [143, -9], log.read_text()
    assert checkpoint.steps(run) == [2, 4]
    one = Assembly.of(load(run))
    assert replay_to(one, trajectory_of(run), 4) == 0
    saved = Assembly.of(load(run))
    assert checkpoint.load_newest(run, run.name, saved.optimizer, 4) == 4
    assert saved.weights_hash() == one.weights_hash()
    assert all(map(torch.equal, saved.optimizer.state["m"], one.optimizer.state["m"]))
    assert exit_statuses(run, 2) == exit_statuses(twin, 2) == [0, 0], log.read_text()
    assert "goes on after step 4 (from step 4, 0 steps replayed)" in log.read_text()
    assert what_it_came_to(run) == what_it_came_to(twin)
    assert here(whole) == 0
    for row, other in zip(read_rows(run), read_rows(whole), strict=True):
        assert row["train/loss"] == pytest.approx(other["train/loss"], rel=1e-5)
    again, bests = Assembly.of(load(run)), trajectory_of(run).bests
    replay_to(again, trajectory_of(run), max(bests))  # refuses other weights
    assert again.weights_hash() == bests[max(bests)].weights


@pytest.mark.process
def test_a_weight_that_is_infinite_on_one_process_is_a_collapse_on_all(llama_run):
    """It is of the last token in the vocabulary, which no loss sees."""
    cfg = llama_run("distributed.tensor=2", "precision.restore=snapshot")
    assert gather_results(2, told_by, cfg, "an infinite weight", timeout_s=120) == ["collapsed"] * 2


def test_the_number_of_processes_is_that_of_the_setting(llama_run):
    with pytest.raises(runner.ProcessesError, match=r"distributed\.tensor=2: needs as many .* 1;"):
        runner.run(llama_run("distributed.tensor=2"))
