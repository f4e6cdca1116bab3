"""An evaluation that processes divide has the bits of one process, in the order of the examples."""

from dataclasses import asdict

import numpy as np
import pytest

from tests.support.crowd import alone, gather_results
from tests.support.tiny_models import opt, tokenizer
from zo.distributed.processes import Processes
from zo.lm.baselines import LinearProbe
from zo.lm.generation import Generator
from zo.lm.objectives import MetricScorer, text_scorer
from zo.lm.scoring import CandidateScorer
from zo.tasks import Encoded, TaskConfig

pytestmark = pytest.mark.process

COUNT, BUDGET = 13, 48  # of one to three examples per forward pass
TASK = TaskConfig(name="own", path="x", kind="completion", max_new_tokens=6)


def asked():
    """Returns prompts of two to nine tokens in no order of length."""
    rng = np.random.default_rng(1)
    rows = [[2, *rng.integers(5, 290, 1 + 5 * i % 8).tolist()] for i in range(COUNT)]
    return [
        Encoded(ids, [[7], [8]], i % 2, prompt=str(i), references=("the plot was",), row=i)
        for i, ids in enumerate(rows)
    ]


def evaluated(processes: Processes, kind: str, function: str = "") -> tuple:
    """Returns an evaluation, the examples that were counted, and the texts that this process wrote for it."""
    model, tok, told, wrote = opt(), tokenizer(), [], []
    tok.pad_token = tok.eos_token
    write = Generator.__call__
    Generator.__call__ = lambda self, of: wrote.extend(of) or write(self, of)
    options = (model, 1, "float32", "decoder", "classification", False, processes)
    if kind == "text":
        scorer = text_scorer(TASK, function or None, model, tok, processes)
    elif kind == "linear probe":
        scorer = LinearProbe(CandidateScorer(*options), asked()[:8], 1.0, BUDGET)
    else:
        scorer = {"metric": MetricScorer, "classification": CandidateScorer}[kind](*options)
    try:
        found = scorer.evaluate(asked(), BUDGET, told.append)
    except ValueError as error:
        return str(error), [], 0
    finally:
        Generator.__call__ = write
    return repr(asdict(found)), sum(told), len(wrote)


@pytest.mark.parametrize("kind", ["classification", "metric", "text", "linear probe"])
def test_processes_evaluate_as_one_does(kind):
    one, several = alone(evaluated, kind), gather_results(3, evaluated, kind)
    assert [of[:2] for of in several] == [one[:2]] * 3
    assert one[1] == COUNT
    if kind == "text":
        assert sum(of[2] for of in several) == one[2] == COUNT
        assert all(0 < of[2] < COUNT for of in several)


RULES = """
def score(prompts, texts):
    return [10 ** (int(p) % 4) + len(t) / 7 for p, t in zip(prompts, texts)]
def fail(prompts, texts):
    return [1 / (int(p) - 9) for p in prompts]
"""


def test_rewards_come_back_in_the_order_of_the_examples_and_a_failure_is_one_sentence_on_all(
    tmp_path,
):
    """What fails does so on one process."""
    rules = tmp_path / "rules.py"
    rules.write_text(RULES)
    one = alone(evaluated, "text", f"{rules}:score")
    assert [of[0] for of in gather_results(2, evaluated, "text", f"{rules}:score")] == [one[0]] * 2
    told = [of[0] for of in gather_results(2, evaluated, "text", f"{rules}:fail")]
    assert all("ZeroDivisionError: division by zero (row 9)" in of for of in told), told
