"""Trains on conversations with ZOTrainer: chat_trainer.py DIRECTORY [STEPS [MODEL]].

The loss is that of the answers. The saved model is loaded by transformers, and answers a question.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    TrainingArguments,
)

from zo.integrations.transformers import ZOTrainer
from zo.tasks.package_files import resolve

DATA = Path(__file__).with_name("chats.jsonl")
TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)
"""For a tokenizer that has no chat template."""


def encode(tokenizer, row):
    """Returns the tokens of a conversation; the question has no labels."""
    question = [{"role": "user", "content": row["prompt"]}]
    answer = [{"role": "assistant", "content": row["completion"]}]
    options = {"tokenize": True, "return_dict": False}
    asked = tokenizer.apply_chat_template(question, add_generation_prompt=True, **options)
    ids = tokenizer.apply_chat_template(question + answer, **options)
    return {"input_ids": ids, "labels": [-100] * len(asked) + ids[len(asked) :]}


def main(
    directory: str, steps: int = 100, path: str = "package:zo/assets/reviews-tiny"
) -> list[float]:
    """Trains, saves and asks; returns the losses before and after."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(path))
    tokenizer.chat_template = tokenizer.chat_template or TEMPLATE
    rows = [encode(tokenizer, json.loads(line)) for line in DATA.read_text().splitlines()]
    arguments = TrainingArguments(
        output_dir=f"{directory}/trainer", max_steps=steps, per_device_train_batch_size=8, learning_rate=3e-2,
        save_strategy="no", logging_strategy="no", report_to=[], use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    trainer = ZOTrainer(
        AutoModelForCausalLM.from_pretrained(resolve(path), dtype=torch.float32),
        arguments,
        train_dataset=rows[8:],
        eval_dataset=rows[:8],
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        method="bszo",
        method_args={"eps": 1e-3, "noise": "philox", "restore": "merged"},
    )
    losses = [trainer.evaluate()["eval_loss"]]
    trainer.train()
    losses.append(trainer.evaluate()["eval_loss"])
    trainer.save_model(f"{directory}/model")
    tokenizer.save_pretrained(f"{directory}/model")
    print(f"loss of held-out answers: {losses[0]:.3f} before, {losses[1]:.3f} after {steps} steps")

    model = AutoModelForCausalLM.from_pretrained(f"{directory}/model")
    question = torch.tensor([rows[0]["input_ids"][: rows[0]["labels"].count(-100)]])
    written = model.generate(question, max_new_tokens=6, do_sample=False)[0, question.shape[1] :]
    print(
        f"{tokenizer.decode(question[0])!r}: {tokenizer.decode(written, skip_special_tokens=True)}"
    )
    return losses


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]), *sys.argv[3:4])
