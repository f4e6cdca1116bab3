"""Trains reasoning-tiny by TRL's GRPOTrainer on the rows, prompt, reward and number of texts of sweep=reward.

    python -m benchmarks.grpo --seeds 1 2 3 4 5 --lr 3e-4 [--texts 4096] [--out results/measured/reward]

The reference by backpropagation: AdamW, 16 prompts × 8 sampled completions a step, TRL's other defaults (temperature 1,
linear decay of the rate, no divergence term). Rewards before and after are those of greedy decoding, as in the suite's
evaluations; the model is the last step's. One thread. Adds a row per run to grpo.csv; `cpu_s` is processor time of the
training alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import trl
import yaml
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.graders import exact, in_place
from zo.config.presets import CONFIG_DIR
from zo.tasks.config import GENERATED, TaskConfig
from zo.tasks.examples import Example
from zo.tasks.generated import load_generated
from zo.tasks.package_files import resolve

MODEL = "package:zo/assets/reasoning-tiny"
PROMPTS, SAMPLES = 16, 8  # a step's; TRL's default of samples
AT_ONCE = 250  # texts, in evaluations


def read(name: str) -> dict[str, Any]:
    """Returns what a file of conf/ says."""
    found: dict[str, Any] = yaml.safe_load((CONFIG_DIR / name).read_text(encoding="utf-8"))
    return found


def task_of(sweep: dict[str, Any]) -> TaskConfig:
    """Returns the sweep's task."""
    values = read("task/reasoning_gym.yaml") | sweep["task"]
    del values["defaults"]
    return TaskConfig(**{**values, "path": f"{GENERATED}{values['name']}"})


def prompts_of(task: TaskConfig, rows: Sequence[Example]) -> list[str]:
    """Returns the prompts of some rows."""
    return [str(task.prompt).format(**row.columns) for row in rows]


@torch.no_grad()
def evaluate(model: Any, tokenizer: Any, task: TaskConfig, rows: Sequence[Example]) -> list[float]:
    """Returns the mean reward of greedy decoding, and the share that is exact."""
    prompts, texts = prompts_of(task, rows), []
    for i in range(0, len(rows), AT_ONCE):
        ids = tokenizer(prompts[i : i + AT_ONCE], return_tensors="pt", padding=True)
        how = {"max_new_tokens": task.max_new_tokens, "do_sample": False}
        asked, mask = ids["input_ids"], ids["attention_mask"]
        made = model.eval().generate(input_ids=asked, attention_mask=mask, **how)
        texts += tokenizer.batch_decode(made[:, asked.shape[1] :], skip_special_tokens=True)
    answers = [str(row.columns["answer"]) for row in rows]
    return [sum(grade(texts, answers)) / len(rows) for grade in (in_place, exact)]


def run(sweep: dict[str, Any], seed: int, lr: float, texts: int) -> dict[str, Any]:
    """Trains once; returns a row."""
    task = task_of(sweep)
    splits = load_generated(task)
    tokenizer = AutoTokenizer.from_pretrained(resolve(MODEL), padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(resolve(MODEL), dtype=torch.float32)

    def rated(when: str) -> dict[str, float]:
        test = evaluate(model, tokenizer, task, splits.test)
        validation = evaluate(model, tokenizer, task, splits.validation)[0]
        names = (f"{what}_{when}" for what in ("test_reward", "test_exact", "val_reward"))
        return dict(zip(names, [*test, validation], strict=True))

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
        return [*in_place(completions, answer)]

    before = rated("before")
    answers = [str(row.columns["answer"]) for row in splits.train]
    data = Dataset.from_dict({"prompt": prompts_of(task, splits.train), "answer": answers})
    with tempfile.TemporaryDirectory() as scratch:
        arguments = trl.GRPOConfig(
            scratch,
            seed=seed,
            learning_rate=lr,
            max_steps=texts // (PROMPTS * SAMPLES),
            per_device_train_batch_size=PROMPTS * SAMPLES,
            num_generations=SAMPLES,
            max_completion_length=task.max_new_tokens,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = trl.GRPOTrainer(model, reward, arguments, data, processing_class=tokenizer)
        begin, cpu = time.perf_counter(), time.process_time()
        trainer.train()
        took = {"seconds": time.perf_counter() - begin, "cpu_s": time.process_time() - cpu}
    found = {"seed": seed, "lr": lr, "texts": texts, **took, **before, **rated("after")}
    return {**found, "trl": trl.__version__}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpo", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--lr", type=float, nargs="+", default=[3e-4])
    parser.add_argument("--texts", type=int, help="that training writes; the sweep's by default")
    parser.add_argument("--out", type=Path, default=Path("results/measured/reward"))
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    path, sweep = given.out / "grpo.csv", read("sweep/reward.yaml")
    texts = given.texts or sweep["steps"] * sweep["batch_size"]
    for lr in given.lr:
        for seed in given.seeds:
            row = run(sweep, seed, lr, texts)
            pd.DataFrame([row]).to_csv(path, mode="a", header=not path.exists(), index=False)
            print({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()})


if __name__ == "__main__":
    main()
