"""transformers' Trainer with zeroth-order steps: a real Trainer on a tiny model."""

import doctest
import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import trl
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForSequenceClassification,
    TrainingArguments,
)
from transformers.modeling_outputs import SequenceClassifierOutput

import zo
from tests.support.crowd import free_port
from tests.support.quadratic import same
from tests.support.tiny_models import VOCABULARY, llama, tokenizer
from zo.integrations.transformers import ZOTrainer, ZOTrainerMixin

pytestmark = pytest.mark.process  # importing Trainer and making checkpoints take seconds


def rows(count):
    """Returns sequences of 6 tokens; of different numbers of labels, so that token averages matter."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, VOCABULARY, (count, 6), generator=generator)
    labels = [torch.cat([torch.full((i % 4,), -100), t[i % 4 :]]) for i, t in enumerate(tokens)]
    return [{"input_ids": t, "labels": y} for t, y in zip(tokens, labels, strict=True)]


def make_model():
    return llama(attention_dropout=0.3, pad_token_id=0)


def arguments(out, kind=TrainingArguments, **given):
    """Returns the arguments of a Trainer, also of TRL's: log every step, save none, on the CPU in float32."""
    common = {"per_device_train_batch_size": 2, "learning_rate": 1e-2, "logging_steps": 1}
    common |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    common |= {"bf16": False, "gradient_checkpointing": False}
    return kind(str(out), **common | given)


def ours(name):
    """Returns one of TRL's trainers with zeroth-order steps."""
    return type("Ours", (ZOTrainerMixin, getattr(trl, name)), {})


def make_trainer(out, record=None, method="bszo", method_args=None, **kwargs):
    return ZOTrainer(
        make_model(),
        arguments(out, **{"max_steps": 6, **kwargs}),
        train_dataset=rows(16),
        eval_dataset=rows(4),
        method=method,
        method_args=method_args or {"k": 2, "eps": 1e-3, "prior_std": 1.0, "record": record},
    )


def test_the_example_in_the_docstring_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"ZOTrainer": ZOTrainer, "TrainingArguments": TrainingArguments}
    given |= {"model": make_model(), "data": rows(16)}
    text = str(ZOTrainer.__doc__)
    example = doctest.DocTestParser().get_doctest(text, given, "ZOTrainer", None, 0)
    assert len(example.examples) == 3
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def losses(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def test_training_logs_follows_the_schedule_records_and_resumes(tmp_path):
    """A resumed training ends with the bits of the uninterrupted one."""
    saved = {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2}
    trainer = make_trainer(tmp_path, record=tmp_path / "run.zo", **saved)
    trainer.train()
    logs = trainer.state.log_history
    rates = [log["learning_rate"] for log in logs if "learning_rate" in log]
    assert rates == sorted({*rates}, reverse=True)
    assert len(rates) == len(losses(trainer)) == 6
    assert trainer.optimizer.optimizer.info.forwards == 3
    again = make_model()
    assert not same(weights(trainer.model), weights(again))
    zo.replay(again, tmp_path / "run.zo")
    assert same(weights(trainer.model), weights(again))
    resumed = make_trainer(tmp_path / "resumed", **saved)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.state.global_step == 6
    assert same(weights(trainer.model), weights(resumed.model))
    assert losses(trainer) == losses(resumed)


def test_a_checkpoint_under_factors_has_the_trained_weights_and_resumes(tmp_path):
    how = {"save_strategy": "steps", "save_steps": 2, "method": "tezo"}
    how |= {"method_args": {"restore": "factors", "eps": 1e-3}, "learning_rate": 1e-4}
    trainer = make_trainer(tmp_path, **how)
    trainer.train()
    live = trainer.evaluate()["eval_loss"]
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-6")
    assert same(weights(saved), weights(trainer.model))
    assert not any(map(torch.equal, weights(saved), weights(make_model())))
    resumed = make_trainer(tmp_path / "resumed", **how)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(weights(trainer.model), weights(resumed.model))
    assert live == trainer.evaluate()["eval_loss"] == resumed.evaluate()["eval_loss"]


@pytest.mark.parametrize("name", ["GRPOTrainer", "RLOOTrainer"])
def test_trainers_whose_loss_is_a_surrogate_are_refused_with_what_to_use(name):
    says = f"{name}: not with.* train.py objective=reward or in a closure"
    with pytest.raises(TypeError, match=says):
        ours(name)(llama(), reward_funcs=len)


def test_trl_counts_the_tokens_and_metrics_of_a_batch_once(tmp_path):
    """As it does with gradients."""
    found, how = [], {"max_steps": 2, "learning_rate": 0.0, "gradient_accumulation_steps": 2}
    for trainer_of in (trl.SFTTrainer, ours("SFTTrainer")):
        trainer = trainer_of(
            llama(pad_token_id=0, eos_token_id=2),
            arguments(tmp_path, trl.SFTConfig, seed=3, **how),
            train_dataset=Dataset.from_list(rows(16)),
            processing_class=tokenizer(),
        )
        trainer.train()
        logs = trainer.state.log_history[:2]
        found.append([(log["num_tokens"], log["loss"], log["entropy"]) for log in logs])
    assert [tokens for tokens, *_ in found[0]] == [tokens for tokens, *_ in found[1]]
    assert found[0] == [pytest.approx(of, rel=1e-3) for of in found[1]]


@pytest.mark.parametrize(
    ("asked", "value"),
    [("gradient_checkpointing", True), ("fp16", True), ("neftune_noise_alpha", 5.0)],
)
def test_what_steps_cannot_do_is_refused_by_name(asked, value, tmp_path):
    with pytest.raises(ValueError, match=f"{asked}: not with zeroth-order steps"):
        make_trainer(tmp_path, **{asked: value})


class Dropping(LlamaForSequenceClassification):
    """A classifier whose own forward has dropout, and which takes keywords that it does not use."""

    def forward(self, input_ids, labels, **kwargs):
        hidden = F.dropout(self.model(input_ids).last_hidden_state, 0.5, self.training)
        loss = F.cross_entropy(self.score(hidden[:, -1]), labels)
        return SequenceClassifierOutput(loss=loss)


def test_a_classifiers_loss_is_the_mean_of_its_micro_batches_and_logs_have_signals(tmp_path):
    """It ignores the number of items that Trainer tells it."""
    found = []
    for accumulated, size in ((1, 8), (4, 2)):
        model = classifier()
        args = arguments(
            tmp_path,
            max_steps=2,
            per_device_train_batch_size=size,
            learning_rate=1e-3,
            gradient_accumulation_steps=accumulated,
        )
        data = [{"input_ids": r["input_ids"], "labels": i % 2} for i, r in enumerate(rows(16))]
        how = {"method": "bszo", "method_args": {"prior_std": 1.0, "noise": "torch"}}
        trainer = ZOTrainer(model, args, train_dataset=data, **how)
        trainer.train()
        found.append([log for log in trainer.state.log_history if "loss" in log])
    for key in ("loss", "slope", "noise_std"):
        whole, parts = ([log[key] for log in logs] for logs in found)
        assert parts == pytest.approx(whole, rel=2e-2)
    assert [log["forwards"] for log in found[0]] == [3, 3]
    assert "grad_norm" not in found[0][0]


def classifier():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Dropping(make_model().config)


MODELS = {"divides": make_model, "ignores the number of items": classifier}


class InOrder(ZOTrainer):
    """A Trainer that does not shuffle, and is interrupted after some micro-batches."""

    interrupted_after: int | None = None

    def _get_train_sampler(self, *_, **__):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def training_step(self, *args, **kwargs):
        if self.interrupted_after == 0:
            raise KeyboardInterrupt
        if self.interrupted_after is not None:
            self.interrupted_after -= 1
        return super().training_step(*args, **kwargs)


def in_order(out, data, model, **given):
    """Returns a Trainer of a model that does not move."""
    how = {"method": "mezo", "method_args": {"restore": "snapshot", "eps": 1e-6}}
    args = arguments(out, **{"learning_rate": 0.0, "max_steps": 4, **given})
    return InOrder(model, args, train_dataset=data, **how)


@pytest.mark.parametrize("masked", [0, 1])
def test_micro_batches_without_labels_do_not_decide_how_later_losses_are_divided(tmp_path, masked):
    data = rows(16)
    for row in data[2 * masked : 2 * masked + 2]:
        row["labels"] = torch.full((6,), -100)
    found = []
    for size, accumulated in ((2, 2), (4, 1)):
        how = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
        trainer = in_order(tmp_path, data, make_model(), **how)
        trainer.train()
        found.append(losses(trainer))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_an_interrupted_training_leaves_no_micro_batches_to_the_next(tmp_path):
    found = []
    for after in (None, 3):
        trainer = in_order(tmp_path, rows(16), make_model(), gradient_accumulation_steps=2)
        if after is not None:
            trainer.interrupted_after = after
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
            trainer.interrupted_after = None
        trainer.train()
        found.append(losses(trainer)[-4:])
    assert found[0] == pytest.approx(found[1], rel=2e-2)  # at other directions


@pytest.mark.parametrize("method", ["mezo", "bszo"])
def test_a_checkpoint_without_optimizer_state_repeats_no_directions(tmp_path, method):
    """It goes on where the steps are all that the method keeps, and is refused elsewhere."""
    how = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "method": method}
    how |= {"method_args": {"restore": "snapshot"}, "lr_scheduler_type": "constant"}
    whole = make_trainer(tmp_path, save_only_model=True, **how)
    whole.train()
    resumed = make_trainer(tmp_path / "resumed", save_only_model=True, **how)
    resume = lambda: resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))  # noqa: E731
    if method == "bszo":
        with pytest.raises(ValueError, match="noise_var"):
            resume()
        return
    resume()
    assert same(weights(whole.model), weights(resumed.model))


def trained(out, accumulated, size=2, kind="divides"):
    """Trains in all processes that were started together; returns their number, losses and weights."""
    how = {"gradient_accumulation_steps": accumulated, "per_device_train_batch_size": size}
    how |= {"eval_strategy": "steps", "eval_steps": 3, "max_steps": 6}
    data, evaluated = rows(16), rows(4)
    if kind != "divides":
        for i, row in enumerate([*data, *evaluated]):
            row["labels"] = i % 2
    method_args = {"k": 2, "eps": 1e-3, "prior_std": 1.0}
    model, given = MODELS[kind](), {"method": "bszo", "method_args": method_args}
    trainer = ZOTrainer(
        model, arguments(out, **how), train_dataset=data, eval_dataset=evaluated, **given
    )
    trainer.train()
    assert "eval_loss" in trainer.evaluate()
    bits = [p.numpy().tobytes() for p in weights(trainer.model)]
    return trainer.args.world_size, losses(trainer), bits


SCRIPT = """
import pickle, sys
import torch.distributed as dist
from tests.integrations.test_transformers import MODELS, trained
found = [trained(sys.argv[1], 2, kind=kind) for kind in MODELS]
open(f"{sys.argv[1]}/{dist.get_rank()}.pickle", "wb").write(pickle.dumps((dist.get_backend(), found)))
dist.barrier()
dist.destroy_process_group()  # torch asks for it: a process that exits before the others may be aborted
"""


def test_accelerate_launch_gives_two_processes_the_bits_of_one_that_accumulates_their_batches(
    tmp_path,
):
    """Which are one batch: its losses are those of the same batch in one piece."""
    alone = [trained(tmp_path / "one", 4, kind=kind) for kind in MODELS]
    for kind, one in zip(MODELS, alone, strict=True):
        whole = trained(tmp_path / "whole", 1, 8, kind)
        assert one[1] == pytest.approx(whole[1], rel=1e-3)
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1"
    plain = f"--mixed_precision no --dynamo_backend no --main_process_port {free_port()}"
    given = [*launch.split(), *plain.split(), str(tmp_path / "script.py"), str(tmp_path)]
    told = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    made = subprocess.run(
        [sys.executable, *given], env={**os.environ, **told}, capture_output=True, timeout=240
    )
    assert made.returncode == 0, made.stderr[-8000:]
    found = [pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in (0, 1)]
    assert found == [("gloo", [(2, *one[1:]) for one in alone])] * 2


def test_the_example_on_conversations_lowers_the_loss_of_answers_and_saves_a_model(tmp_path):
    file = Path(__file__).parents[2] / "examples" / "chat_trainer.py"
    before, after = runpy.run_path(str(file))["main"](str(tmp_path), 12)
    assert after < before
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template


@pytest.mark.parametrize("kind", ["SFT", "DPO", "Reward"])
def test_trls_trainers_of_losses_learn_with_zeroth_order_steps(kind, tmp_path):
    how = {"max_steps": 30, "per_device_train_batch_size": 8, "lr_scheduler_type": "constant"}
    pairs = [
        {"prompt": f"x {i} y", "chosen": f" good {i}", "rejected": f" bad {i}"} for i in range(8)
    ]
    data = [{"text": p["prompt"] + p["chosen"]} for p in pairs] if kind == "SFT" else pairs
    model = llama(pad_token_id=0, eos_token_id=2)
    if kind == "Reward":
        model.config.num_labels = 1
        model = LlamaForSequenceClassification(model.config)
    beside = {"ref_model": llama(pad_token_id=0, eos_token_id=2)} if kind == "DPO" else {}
    trainer = ours(f"{kind}Trainer")(
        model,
        args=arguments(tmp_path, getattr(trl, f"{kind}Config"), **how),
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer(),
        method="mezo",
        method_args={"eps": 1e-3, "n": 4},
        **beside,
    )
    trainer.train()
    found = losses(trainer)
    assert sum(found[-3:]) < 0.8 * sum(found[:3])
