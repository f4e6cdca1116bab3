"""train.py with distributed.tensor: two processes hold a part of each tensor."""

import pytest
import torch

from tests.support.crowd import gather_results
from tests.support.divided_runs import exit_statuses, told_by
from tests.support.tiny_models import llama, tokenizer
from tests.support.victims import At, what_it_came_to
from zo.run import checkpoint, runner
from zo.run.assembly import Assembly
from zo.run.directory import directory_of, freeze, load
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
def test_a_run_with_divided_tensors_moves_the_weights_as_one_process_does(llama_run):
    cfg, alone = llama_run("distributed.tensor=2"), llama_run()
    assert gather_results(2, told_by, cfg, timeout_s=150) == ["finished", "finished"]
    runner.run(alone)
    rows, others = read_rows(directory_of(cfg)), read_rows(directory_of(alone))
    for row, other in zip(rows, others, strict=True):
        assert row["train/loss"] == pytest.approx(other["train/loss"], rel=1e-5)
    assert directory_of(cfg) != directory_of(alone)
    whole = Assembly.of(cfg)
    trajectory = trajectory_of(directory_of(cfg))
    assert trajectory.bests
    replay_to(whole, trajectory, max(trajectory.bests))  # refuses other weights
    assert whole.weights_hash() == trajectory.bests[max(trajectory.bests)].weights


@pytest.mark.process
def test_a_run_with_divided_tensors_goes_on_from_a_whole_checkpoint(llama_run, tmp_path):
    """After a process was killed; the checkpoint has the bits that one process replays."""
    settings = "optimizer=zo_momentum", "checkpoint.full_every=2", "checkpoint.keep_best=true"
    run, twin = (
        freeze(llama_run("distributed.tensor=2", *settings, "steps=7", f"out={tmp_path / name}"))
        for name in ("run", "twin")
    )
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


def test_the_number_of_processes_is_that_of_the_setting(llama_run):
    with pytest.raises(runner.ProcessesError, match=r"distributed\.tensor=2: needs as many .* 1;"):
        runner.run(llama_run("distributed.tensor=2"))
