"""Slopes in half precision: the float32 ones are the gradient's, and errors go where they must."""

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.slopes import measure as slopes_module
from benchmarks.slopes.__main__ import main
from benchmarks.slopes.measure import measure, slopes
from zo.config import register
from zo.lm.load import load
from zo.noise import PERTURBATION, NoiseKey
from zo.tasks import encode, load_splits
from zo.weights.directions import Gaussian

pytestmark = pytest.mark.process

register()


def test_slopes_are_differences_over_epsilon():
    losses = np.array([1.0, 1.5, 0.25])  # at 0, +1, −1
    assert slopes(losses, 0.1, 1) == pytest.approx(5.0)
    assert slopes(losses, 0.1, 2) == pytest.approx(6.25)


def gradient_along(model: str, j: int, dtype: torch.dtype) -> float:
    """g · z by backpropagation at the same weights, mini-batch and direction; scores are computed plainly."""
    (cfg,) = slopes_module.command_line.runs(
        [f"model={model}", "task=rotten_tomatoes", "optimizer=mezo", "lr=1"]
    )
    bench = slopes_module._Bench(cfg, dtype, 0, 16)
    loaded = load(cfg.model, torch.float32, "cpu")
    for p, theta in zip(loaded.model.parameters(), bench._theta, strict=True):
        p.data.copy_(theta)
    examples = encode(cfg.task, loaded.tokenizer, load_splits(cfg.task).train)
    losses = []
    for example in (examples[i] for i in bench._order.indices(j)):
        assert all(len(c) == 1 for c in example.candidate_ids)
        logits = loaded.model(torch.tensor([example.prompt_ids])).logits[0, -1]
        scores = torch.log_softmax(logits, -1)[[c[0] for c in example.candidate_ids]]
        losses.append(-torch.log_softmax(scores, -1)[example.label])
    torch.stack(losses).mean().backward()
    z = Gaussian(NoiseKey(0, PERTURBATION, j, 0), bench._full.engine)
    return sum(
        float((p.grad * z.sample(i, p)).sum()) for i, p in enumerate(loaded.model.parameters())
    )


def test_the_float32_slope_is_the_gradients():
    (one, two) = measure("reviews-tiny", "rotten_tomatoes", "bfloat16", [2e-4], 1)
    wanted = abs(gradient_along("reviews-tiny", 0, torch.bfloat16))
    assert two.slope == pytest.approx(wanted, rel=0.01)
    assert (one.sides, two.sides) == (1, 2)


def test_errors_shrink_with_epsilon_and_with_digits():
    bf16 = measure("reviews-tiny", "rotten_tomatoes", "bfloat16", [1e-4, 1e-2], 4)
    fp16 = measure("reviews-tiny", "rotten_tomatoes", "float16", [1e-4, 1e-2], 4)
    for half in (bf16, fp16):
        small, large = half[1], half[3]
        assert (small.eps, large.eps) == (1e-4, 1e-2)
        for error in ("probe", "forward", "loss", "error"):
            assert 0 < getattr(large, error) < getattr(small, error) / 5
    assert fp16[1].error < bf16[1].error / 2
    assert bf16[1].error > bf16[1].slope  # bf16 at the paper's ε: more rounding than slope


def test_the_command_keeps_what_was_measured_before(tmp_path, capsys):
    base = ["--directions", "1", "--dtypes", "bfloat16", "--results", str(tmp_path), "--eps"]
    assert main([*base, "1e-3"]) == 0
    assert main([*base, "1e-2"]) == 0
    frame = pd.read_csv(tmp_path / "slopes.csv")
    assert sorted(set(frame["eps"])) == [1e-3, 1e-2]
    assert len(frame) == 4
    page = (tmp_path / "slopes.md").read_text()
    assert [page.count(f"| bf16 | {eps} |") for eps in ("0.001", "0.01")] == [2, 2]
    assert (tmp_path / "slope_errors.png").stat().st_size > 0


def test_bad_input_is_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--eps", "0"])
    assert "--eps above 0" in capsys.readouterr().err
