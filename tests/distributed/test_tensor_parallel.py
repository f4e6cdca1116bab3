"""train.py with distributed.tensor: two processes hold a part of each tensor."""

import pytest
import torch

from tests.support.crowd import gather_results
from tests.support.divided_runs import told_by
from tests.support.tiny_models import llama, tokenizer
from tests.support.victims import KILLED, At, exit_statuses, what_it_came_to
from zo.run import runner
from zo.run.__main__ import main
from zo.run.assembly import Assembly
from zo.run.results.replay import replay_to
from zo.run.store import checkpoint
from zo.run.store.directory import load
from zo.run.store.rows import read_rows, trajectory_of

DIVIDED = ("distributed.tensor=2", "distributed.timeout=60", "precision.noise=philox")


@pytest.fixture
def tiny_llama(tmp_path):
    """Returns the override that takes a tiny Llama."""
    llama(tie_word_embeddings=False).save_pretrained(tmp_path / "llama")
    tokenizer().save_pretrained(tmp_path / "llama")
    return f"model.path={tmp_path / 'llama'}"


@pytest.mark.process
def test_a_run_with_divided_tensors_steps_as_one_process_and_goes_on_from_a_whole_checkpoint(
    frozen, tiny_llama
):
    """After a process was killed; the checkpoint has the bits that one process replays."""
    settings = (tiny_llama, "optimizer=zo_momentum", "lr=1e-4", "eval_every=2", *DIVIDED)
    settings += ("checkpoint.full_every=2", "checkpoint.keep_best=true")
    run, twin = frozen(2, *settings)
    (whole,) = frozen(1, *settings, "distributed.tensor=1")
    assert run.name != whole.name
    log = run / "log.txt"
    kill = At("zo.distributed.executor.AgreedLoss.__call__", 10)
    assert exit_statuses(run, 2, {1: kill}) == [143, KILLED], log.read_text()
    assert checkpoint.steps(run) == [2, 4]
    one, saved = Assembly.of(load(run)), Assembly.of(load(run))
    assert replay_to(one, trajectory_of(run), 4) == 0
    assert checkpoint.load_newest(run, saved.optimizer, 4) == 4
    assert saved.weights_hash() == one.weights_hash()
    assert all(map(torch.equal, saved.optimizer.state["m"], one.optimizer.state["m"]))
    assert exit_statuses(run, 2) == exit_statuses(twin, 2) == [0, 0], log.read_text()
    assert "goes on after step 4 (from step 4, 0 steps replayed)" in log.read_text()
    assert what_it_came_to(run) == what_it_came_to(twin)
    assert main([str(whole)]) == 0
    for row, other in zip(read_rows(run), read_rows(whole), strict=True):
        assert row["train/loss"] == pytest.approx(other["train/loss"], rel=1e-5)


@pytest.mark.process
def test_a_weight_that_is_infinite_on_one_process_is_a_collapse_on_all(make_run, tiny_llama):
    """It is of the last token in the vocabulary, which no loss sees."""
    cfg = make_run(tiny_llama, "optimizer=bszo", *DIVIDED, "precision.restore=snapshot")
    assert gather_results(2, told_by, cfg, "an infinite weight") == ["collapsed"] * 2


def test_the_number_of_processes_is_that_of_the_setting(make_run):
    with pytest.raises(runner.ProcessesError, match=r"distributed\.tensor=2: "):
        runner.run(make_run(*DIVIDED))
