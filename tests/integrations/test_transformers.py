"""transformers' Trainer with zeroth-order steps: a real Trainer on a tiny model."""

import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
    TrainingArguments,
)

import zo
from tests.support.crowd import free_port
from zo.integrations.transformers import ZOTrainer

pytestmark = pytest.mark.process  # importing Trainer and making checkpoints take seconds


class Tokens(Dataset):
    """16 sequences of 6 tokens; of different numbers of labels, so that token averages matter."""

    def __init__(self, count=16):
        generator = torch.Generator().manual_seed(7)
        self.rows = torch.randint(0, 32, (count, 6), generator=generator)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        labels = self.rows[i].clone()
        labels[: i % 4] = -100
        return {"input_ids": self.rows[i], "labels": labels}


def make_model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    rest = {"num_hidden_layers": 2, "attention_dropout": 0.3, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes, **rest))


def make_trainer(out, callbacks=None, compute_metrics=None, record=None, **kwargs):
    given = {
        "output_dir": str(out),
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "max_steps": 6,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "lr_scheduler_type": "cosine",
    }
    return ZOTrainer(
        make_model(),
        TrainingArguments(**{**given, **kwargs}),
        train_dataset=Tokens(),
        eval_dataset=Tokens(4),
        callbacks=callbacks,
        compute_metrics=compute_metrics,
        method="bszo",
        method_args={"k": 2, "eps": 1e-3, "prior_std": 1.0, "record": record},
    )


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def losses(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


class Steps(TrainerCallback):
    made = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.made += 1


def test_training_logs_evaluates_calls_back_follows_the_schedule_records_and_resumes(tmp_path):
    """A resumed training ends with the bits of the uninterrupted one."""
    steps = Steps()
    saved = {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2}
    trainer = make_trainer(
        tmp_path,
        callbacks=[steps],
        compute_metrics=lambda p: {"mean_label": float(p.label_ids.mean())},
        record=tmp_path / "run.zo",
        eval_strategy="steps",
        eval_steps=3,
        **saved,
    )
    before = weights(trainer.model)
    trainer.train()
    assert steps.made == len(losses(trainer)) == 6
    logs = trainer.state.log_history
    rates = [log["learning_rate"] for log in logs if "learning_rate" in log]
    assert len(set(rates)) == 6
    assert rates == sorted(rates, reverse=True)
    assert all(0 < loss < 10 for loss in losses(trainer))
    assert len([log for log in logs if "eval_mean_label" in log]) == 2
    assert not equal(before, weights(trainer.model))
    assert trainer.optimizer.optimizer.info.forwards == 3
    again = make_model()
    zo.replay(again, tmp_path / "run.zo")
    assert equal(weights(trainer.model), weights(again))
    resumed = make_trainer(tmp_path / "resumed", **saved)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.state.global_step == 6
    assert equal(weights(trainer.model), weights(resumed.model))
    assert losses(trainer) == losses(resumed)


def test_a_step_has_one_loss_over_the_accumulated_micro_batches(tmp_path):
    """Two micro-batches of 2 are one batch of 4: the same weights to rounding, and not those of the last of them."""
    whole, split = (
        make_trainer(tmp_path, max_steps=2, per_device_train_batch_size=size,
                     gradient_accumulation_steps=parts, seed=1)
        for size, parts in ((4, 1), (2, 2))
    )  # fmt: skip
    half = make_trainer(tmp_path, max_steps=2, per_device_train_batch_size=2, seed=1)
    for trainer in (whole, split, half):
        trainer.train()
    a, b, c = (weights(t.model) for t in (whole, split, half))
    far = max(float((x - y).abs().max()) for x, y in zip(a, c, strict=True))
    near = max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))
    assert near < 0.05 * far
    assert losses(whole) == pytest.approx(losses(split), rel=1e-3)


@pytest.mark.parametrize("asked", ["gradient_checkpointing", "fp16"])
def test_what_needs_gradients_is_refused_by_name(asked, tmp_path):
    with pytest.raises(ValueError, match=f"{asked}: not with zeroth-order steps"):
        make_trainer(tmp_path, **{asked: True})


def trained(out, accumulated):
    """Trains in all processes that were started together; returns their number, losses and weights."""
    how = {"gradient_accumulation_steps": accumulated, "eval_strategy": "steps", "eval_steps": 3}
    trainer = make_trainer(out, **how)
    trainer.train()
    assert "eval_loss" in trainer.evaluate()
    return (
        trainer.args.world_size,
        losses(trainer),
        [p.numpy().tobytes() for p in weights(trainer.model)],
    )


SCRIPT = """
import pickle, sys
import torch.distributed as dist
from tests.integrations.test_transformers import trained
found = trained(sys.argv[1], 2)
open(f"{sys.argv[1]}/{dist.get_rank()}.pickle", "wb").write(pickle.dumps((dist.get_backend(), found)))
"""


def test_accelerate_launch_gives_two_processes_the_bits_of_one_that_accumulates_their_batches(
    tmp_path,
):
    alone = trained(tmp_path / "one", 4)
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = "accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1"
    plain = f"--mixed_precision no --dynamo_backend no --main_process_port {free_port()}"
    command = [sys.executable, "-m", *launch.split(), *plain.split()]
    told = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    made = subprocess.run(
        [*command, str(tmp_path / "script.py"), str(tmp_path)],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    found = [pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in (0, 1)]
    assert found == [("gloo", (2, *alone[1:]))] * 2


def test_the_example_on_conversations_lowers_the_loss_of_answers_and_saves_a_model(tmp_path):
    file = Path(__file__).parents[2] / "examples" / "chat_trainer.py"
    before, after = runpy.run_path(str(file))["main"](str(tmp_path), 12)
    assert after < before
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template
