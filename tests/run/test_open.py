"""Opening a run: models and tasks of every kind fit together, or one sentence says why not, before any step."""

import pytest
import torch

from tests.support import hub_copies
from zo import config
from zo.config import command_line, identity
from zo.lm.load import load
from zo.run import runner
from zo.run.assembly import Session
from zo.run.directory import directory_of
from zo.run.rows import read_rows

TINY_ROBERTA = [
    "model=roberta-large",
    "model.weights=random",
    "model.architecture.hidden_size=32",
    "model.architecture.intermediate_size=64",
    "model.architecture.num_hidden_layers=2",
    "model.architecture.num_attention_heads=4",
]


def test_a_masked_model_with_random_weights_is_trained_and_evaluated(make_run):
    cfg = make_run(*TINY_ROBERTA, "optimizer=bszo", "steps=3", "eval_every=3")
    session = Session.open(cfg)
    assert {type(e.mask_at) for e in session.train + session.validation + session.test} == {int}
    summary = runner.run(cfg)
    assert (summary["run/status"], summary["run/steps"]) == ("finished", 3)
    assert 0 <= summary["best/test_accuracy"] <= 1


@pytest.fixture
def copa(tmp_path):
    """A run on a dozen made-up premises."""
    copy = hub_copies.write(tmp_path / "copa", "copa")
    config.register()
    task = ["task=copa", f"task.path={copy}", "task.train_size=12", "task.validation_size=6"]
    few = ["model=reviews-tiny", "optimizer=mezo", "steps=2", "eval_every=2", "batch_size=4"]
    (cfg,) = command_line.runs([*task, *few, f"out={tmp_path / 'out'}", "tracking.mode=disabled"])
    return cfg


def test_copa_trains_on_its_true_choices_alone_and_chooses_among_both(copa):
    session = Session.open(copa)
    assert {len(e.candidate_ids) for e in session.train} == {1}
    assert {len(e.candidate_ids) for e in session.validation + session.test} == {2}
    assert {e.label for e in session.validation} == {0, 1}
    tokenizer = load(copa.model, torch.float32, "cpu").tokenizer
    texts = [tokenizer.decode(e.candidate_ids[0]) for e in session.train]
    assert sorted({text.split()[0] for text in texts}) == ["i", "the"]  # both choices, lower case
    summary = runner.run(copa)
    assert summary["run/status"] == "finished"
    assert set(summary["best/test_predictions"]) <= set("01")
    assert len(summary["best/test_predictions"]) == 12


@pytest.mark.parametrize("method", ["icl", "linear_probe"])
def test_a_baseline_without_steps_reads_training_examples_and_is_a_run_of_its_own(make_run, method):
    cfg = make_run(f"optimizer={method}", *["optimizer.k=2"] * (method == "icl"))
    assert cfg.steps == 0
    assert identity.run_id(cfg) != identity.run_id(make_run(f"optimizer={method}", "seed=1"))
    summary = runner.run(cfg)
    assert (summary["run/status"], summary["run/steps"], summary["best/step"]) == ("finished", 0, 0)
    assert summary["best/test_accuracy"] > 0.7, "a few words tell the made-up labels"
    zero_shot = make_run("optimizer=zero_shot")
    runner.run(zero_shot)
    (mine,), (plain,) = (read_rows(directory_of(each)) for each in (cfg, zero_shot))
    assert mine["eval/val_loss"] != plain["eval/val_loss"]
