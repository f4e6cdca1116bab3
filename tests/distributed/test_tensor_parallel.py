"""train.py with distributed.tensor: two processes hold a part of each tensor."""

import pytest

from tests.support.crowd import gather_results
from tests.support.divided_runs import told_by
from tests.support.tiny_models import llama, tokenizer
from zo.config import ConfigError
from zo.run import runner
from zo.run.assembly import Assembly
from zo.run.directory import directory_of
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


def test_what_divided_tensors_cannot_do_is_refused_by_key(make_run):
    with pytest.raises(ConfigError) as refused:
        make_run("distributed.tensor=2", "optimizer=lozo", "precision.restore=streamed")
    assert "optimizer=lozo: must be mezo or bszo or bszo_b or" in str(refused.value)
    assert "restore=streamed: must be merged or subtract or snapshot" in str(refused.value)
    with pytest.raises(ConfigError, match=r"precision\.noise=philox: must be torch with distrib"):
        make_run("distributed.tensor=2", "optimizer=hizoo", "precision.noise=philox")


def test_the_number_of_processes_is_that_of_the_setting(llama_run):
    with pytest.raises(runner.ProcessesError, match=r"distributed\.tensor=2: needs as many .* 1;"):
        runner.run(llama_run("distributed.tensor=2"))
