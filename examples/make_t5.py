"""Makes a T5 of 2 layers with random weights: python examples/make_t5.py DIRECTORY."""

import sys

import torch
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from zo.tasks.package_files import resolve


def make(directory: str) -> None:
    """Writes model and tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("package:zo/assets/reviews-tiny"))
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=tokenizer.pad_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    T5ForConditionalGeneration(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    make(sys.argv[1])
