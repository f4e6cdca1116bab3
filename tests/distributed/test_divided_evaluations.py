"""An evaluation that processes divide has the bits of one process, in the order of the examples."""

from dataclasses import asdict
from unittest import mock

import numpy as np
import pytest

from tests.support.crowd import gather_results
from tests.support.tiny_models import opt, tokenizer
from zo.distributed.processes import Processes
from zo.lm.baselines import LinearProbeConfig
from zo.lm.scoring.baselines import Given, LinearProbe
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.generation import Generator
from zo.lm.scoring.texts import text_scorer
from zo.tasks import Encoded, TaskConfig
from zo.tasks.objective import ObjectiveConfig

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


def score(prompts, texts):
    return [10 ** (int(p) % 4) + len(t) / 7 for p, t in zip(prompts, texts, strict=True)]


def fail(prompts, texts):
    return [1 / (int(p) - 9) for p in prompts]


def evaluated(processes: Processes, kind: str) -> tuple:
    """Returns an evaluation, the examples that were counted, and how many texts this process wrote for it."""
    model, tok, told, wrote = opt(), tokenizer(), [], []
    tok.pad_token = tok.eos_token
    options = (model, 1, "float32", "decoder", "classification", False, processes)
    if kind == "linear probe":
        given = Given(CandidateScorer(*options), asked()[:8], 0, tok, BUDGET)
        scorer = LinearProbe(LinearProbeConfig(), given)
    elif kind == "classification":
        scorer = CandidateScorer(*options)
    else:
        rated = ObjectiveConfig("reward", function=f"{__file__}:{kind}", workers=1)
        scorer = text_scorer(TASK, rated, model, tok, processes)
    write = Generator.write
    with mock.patch.object(
        Generator, "write", lambda self, of, *how: wrote.extend(of) or write(self, of, *how)
    ):
        found = scorer.evaluate(asked(), BUDGET, told.append)
    return repr(asdict(found)), sum(told), len(wrote)


@pytest.mark.parametrize("kind", ["classification", "linear probe", "score"])
def test_processes_evaluate_as_one_does(kind):
    one, several = evaluated(Processes(), kind), gather_results(3, evaluated, kind)
    assert [of[:2] for of in several] == [one[:2]] * 3
    assert one[1] == COUNT
    if kind == "score":
        assert sum(of[2] for of in several) == one[2] == COUNT
        assert all(0 < of[2] < COUNT for of in several)


def test_a_failure_on_one_process_is_one_sentence_on_all():
    assert gather_results(2, failed) == [None, None]


def failed(processes: Processes) -> None:
    with pytest.raises(ValueError, match=r"ZeroDivisionError.*\(row 9\)"):
        evaluated(processes, "fail")
