"""What evolution strategies promise beyond the contract and the renderings."""

from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

import zo
from tests.support.crowd import gather_results
from tests.support.tiny_models import seeded
from zo.distributed.processes import Processes
from zo.lm.scoring.generation import Written
from zo.lm.scoring.texts import TextScorer
from zo.optim.es import centred_ranks
from zo.rewards.tally import Ratings
from zo.run.losses import BatchLoss, ShardedLoss
from zo.tasks import Encoded
from zo.weights.space import ParameterSpace


def test_equal_losses_share_the_mean_of_their_ranks():
    assert centred_ranks([3.0, 1.0, 2.0]) == pytest.approx([0.5, -0.5, 0.0])
    assert centred_ranks([0.0, 0.0, 0.0, 1.0]) == pytest.approx([-1 / 6, -1 / 6, -1 / 6, 0.5])


PROMPTS = [Encoded([], [], 0, prompt=text) for text in ("one", "three", "seventeen")]


def rewarded(processes: Processes) -> tuple[list, list, list[list[float]]]:
    """Returns what five steps of EGGROLL come to on rewards of three prompts, and all rewards that were given here.

    Texts are the prompts again. A reward is a text's length and an entry of a bias.
    """
    model, given, infos = seeded(lambda: nn.Linear(4, 3)), [], []

    def write(examples, draws, parts):
        return [Written(example.prompt, [], False) for example in examples]

    def rate(request, rows, together=False):
        bias = model.bias.tolist()
        given.append([bias[len(text) % 3] + len(text) for text in request.texts])
        return Ratings(given[-1])

    scorer = TextScorer(SimpleNamespace(write=write), SimpleNamespace(rate=rate), "reward")
    params = ParameterSpace.of(model, "snapshot")
    method = zo.optim.OPTIMIZERS["eggroll"]
    opt = method.optimizer(params, method.config(n=6), lr=1e-2, seed=5)
    for _ in range(5):
        loss = BatchLoss(scorer, PROMPTS, params)
        if processes.world > 1:
            loss = ShardedLoss(scorer, PROMPTS, 1, params, processes)
        infos.append(opt.step(loss))
    return infos, [p.tolist() for p in params.local], given


def test_the_prompts_baseline_divides_by_the_spread_of_all_prompts_rewards():
    infos, _, given = rewarded(Processes())
    assert {(info.forwards, len(info.losses)) for info in infos} == {(6, 7)}
    for i, info in enumerate(infos):
        rewards = np.array(given[6 * i : 6 * i + 6])
        # prompts differ by more than members
        assert rewards.std(1).min() > 100 * rewards.mean(1).std() > 0
        w = (rewards - rewards.mean(0)) / np.sqrt(rewards.var() + 1e-5)  # EGGROLL's, of each prompt
        expected = -(w.mean(1)[::2] - w.mean(1)[1::2]) / 2
        assert info.coefficients == pytest.approx(expected, rel=1e-6)


@pytest.mark.process
def test_prompts_baselines_have_the_same_bits_on_any_number_of_processes():
    one = rewarded(Processes())
    for world in (2, 4):
        for infos, weights, given in gather_results(world, rewarded):
            assert (infos, weights) == one[:2]
            assert len(given) < len(one[2])
