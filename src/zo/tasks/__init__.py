"""Tasks as data: where the examples are, how they are asked, which answers there are."""

from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.data import load_splits
from zo.tasks.examples import Example, Splits
from zo.tasks.prompts import Encoded, encode, encode_masked, render, tokenize

__all__ = [
    "Encoded",
    "Example",
    "Splits",
    "TaskConfig",
    "TaskError",
    "encode",
    "encode_masked",
    "load_splits",
    "render",
    "tokenize",
]
