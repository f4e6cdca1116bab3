"""Which test examples a run gets right, checked against what it logged of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.logs.run_file import LogError


def right_answers(run: Mapping[Any, Any]) -> Any:
    """100 for every test example that the run gets right, 0 for the others: their mean is its accuracy in %."""
    predictions, labels = run["predictions"] or "", run["labels"] or ""
    if not labels or len(labels) != len(predictions) or len(labels) != run["test_n"]:
        raise LogError(
            f"run {run['run_id']} logs {len(predictions)} test predictions and {len(labels)} labels "
            f"for {run['test_n']:.0f} examples"
        )
    pairs = zip(predictions, labels, strict=True)
    right = 100.0 * np.array([p == y for p, y in pairs], dtype=float)
    if abs(right.mean() / 100 - run["test_accuracy"]) > 1e-6:
        raise LogError(
            f"run {run['run_id']} logs a test accuracy of {run['test_accuracy']:.6f}, "
            f"but its predictions have {right.mean() / 100:.6f}"
        )
    return right
