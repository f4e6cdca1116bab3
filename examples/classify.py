"""Reads a review with an exported model and prints which word follows: classify.py DIRECTORY TEXT."""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

WORDS = (" terrible", " great")


def main(directory: str, text: str) -> None:
    """Prints the more probable word behind the prompt."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    inputs = tokenizer(f"{text} It was", return_tensors="pt")
    with torch.inference_mode():
        logits = model(input_ids=inputs["input_ids"]).logits[0, -1]
    tokens = [tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in WORDS]
    probable = WORDS[int(logits[tokens].argmax())].strip()
    print(f"{text!r}: {probable}")


if __name__ == "__main__":
    main(*sys.argv[1:])
