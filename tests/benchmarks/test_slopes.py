"""Slopes in half precision: the float32 ones are the gradient's, and errors go where they must."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.slopes import measure, page
from zo.config import register

register()


@pytest.mark.process
def test_errors_shrink_with_epsilon_and_with_digits():
    bf16 = measure("reviews-tiny", "rotten_tomatoes", "bfloat16", [1e-4, 1e-2], 4)
    fp16 = measure("reviews-tiny", "rotten_tomatoes", "float16", [1e-4, 1e-2], 4)
    for half in (bf16, fp16):
        small, large = half[1], half[3]
        assert (small["eps"], large["eps"]) == (1e-4, 1e-2)
        for error in ("probe", "forward", "loss", "error"):
            assert 0 < large[error] < small[error] / 5
    assert fp16[1]["error"] < bf16[1]["error"] / 2
    assert bf16[1]["error"] > bf16[1]["slope"]  # bf16 at the paper's ε: more rounding than slope


def test_the_committed_page_has_the_numbers_of_the_committed_csv():
    folder = Path(__file__).parents[2] / "results" / "measured" / "half_precision"
    assert (folder / "slopes.md").read_text() == page(pd.read_csv(folder / "slopes.csv"))
