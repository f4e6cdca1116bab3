"""Prints what an exported model writes after a prompt: write.py DIRECTORY TEXT."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer


def main(directory: str, text: str) -> None:
    """Prints the most probable continuation."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    inputs = tokenizer(text, return_tensors="pt")
    written = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    length = inputs["input_ids"].shape[1]
    print(f"{text!r}: {tokenizer.decode(written[0, length:], skip_special_tokens=True)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
