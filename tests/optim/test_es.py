"""What evolution strategies promise beyond the contract and the renderings."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import zo
from tests.support.crowd import gather_results
from tests.support.quadratic import Quadratic, make, start, steps
from zo.distributed.processes import Processes
from zo.lm.scoring.generation import Written
from zo.lm.scoring.texts import TextScorer
from zo.optim.es import centred_ranks
from zo.rewards.tally import Ratings
from zo.run.losses import BatchLoss, ShardedLoss
from zo.tasks import Encoded
from zo.weights.space import ParameterSpace


def test_mirrored_slopes_are_mezo_s_of_half_as_many_directions():
    population, pairs = (Quadratic(restore="snapshot") for _ in range(2))
    es = make("es", population, 1e-2, n=6, shaping="none")
    mezo = make("mezo", pairs, 1e-2, n=3, eps=1e-3)
    for _ in range(20):
        assert es.step(population).losses == pytest.approx(mezo.step(pairs).losses, abs=1e-6)
    for p, q in zip(population.weights(), pairs.weights(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shaping", ["zscore", "ranks"])
def test_a_step_has_one_length_whatever_the_rewards_scale_is(shaping):
    first = []
    for scale in (1, 64):
        loss = Quadratic(restore="snapshot")
        loss.h = [scale * h for h in loss.h]
        first.append(steps(start("es", loss, shaping=shaping), loss, 1))
    torch.testing.assert_close(*first, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("losses", "ranks"),
    [
        ([3.0, 1.0, 2.0], [0.5, -0.5, 0.0]),
        ([1.0, 0.0, 1.0, 0.0], [1 / 3, -1 / 3, 1 / 3, -1 / 3]),
        ([0.0, 0.0, 0.0, 1.0], [-1 / 6, -1 / 6, -1 / 6, 0.5]),
    ],
)
def test_equal_losses_share_the_mean_of_their_ranks(losses, ranks):
    assert centred_ranks(losses) == pytest.approx(ranks)
    assert math.fsum(centred_ranks(losses)) == pytest.approx(0)


def test_a_direction_of_low_rank_has_factors_of_its_own_and_entries_of_variance_1():
    weights = [torch.zeros(96, 80), torch.zeros(96, 80), torch.zeros(50)]
    params = ParameterSpace(zip("abc", weights, strict=True), "snapshot")
    es = zo.optim.OPTIMIZERS["es"]
    opt = es.optimizer(params, es.config(directions="low_rank", rank=4), lr=1e-2, seed=0)
    z = [[opt.direction(i).sample(j, w) for j, w in enumerate(weights)] for i in range(2)]
    for one in z:
        assert [torch.linalg.matrix_rank(x) for x in one[:2]] == [4, 4]
        assert all(abs(float(x.square().mean()) - 1) < 0.35 for x in one[:2])
    flat = torch.stack([x.flatten() for one in z for x in one[:2]])
    assert (torch.corrcoef(flat) - torch.eye(4)).abs().max() < 0.2
    both = torch.cat([z[0][0], z[1][0]], 1), torch.cat([z[0][0], z[1][0]])
    assert [torch.linalg.matrix_rank(x) for x in both] == [8, 8]  # neither factor is shared


def test_a_rank_above_a_side_names_the_matrix():
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))  # a side of 1 is a vector
    with pytest.raises(
        ValueError, match=r"rank=5: must be at most 4, the shorter side of 0\.weight"
    ):
        zo.ES(model, lr=1e-2, directions="low_rank", rank=5)
    zo.ES(model, lr=1e-2, directions="low_rank", rank=4)


PROMPTS = [Encoded([], [], 0, prompt=text) for text in ("one", "three", "seventeen")]


class Echo:
    """Writes the prompt again."""

    def write(self, examples, draws, parts):
        return [Written(example.prompt, [], False) for example in examples]


class BiasRater:
    """Rates a text by its length and an entry of a bias; keeps what it gave."""

    def __init__(self, bias):
        self.given, self._bias = [], bias

    def rate(self, request, rows, together=False):
        numbers = [float(self._bias[len(text) % 3]) + len(text) for text in request.texts]
        self.given.append(numbers)
        return Ratings(numbers)


def rewarded(processes: Processes) -> tuple[list, list, list[list[float]]]:
    """Returns what five steps of EGGROLL come to on rewards of three prompts, and all rewards that were given here."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Linear(4, 3)
    rater = BiasRater(model.bias.detach())
    scorer = TextScorer(Echo(), rater, "reward")
    params = ParameterSpace.of(model, "snapshot")
    method = zo.optim.OPTIMIZERS["eggroll"]
    opt = method.optimizer(params, method.config(n=6), lr=1e-2, seed=5)
    infos = []
    for _ in range(5):
        loss = BatchLoss(scorer, PROMPTS, params)
        if processes.world > 1:
            loss = ShardedLoss(scorer, PROMPTS, 1, params, processes)
        infos.append(opt.step(loss))
    return infos, [p.tolist() for p in params.local], rater.given


def test_the_prompts_baseline_divides_by_the_spread_of_all_prompts_rewards():
    infos, _, given = rewarded(Processes())
    assert {(info.forwards, len(info.losses)) for info in infos} == {(6, 7)}
    for i, info in enumerate(infos):
        rewards = np.array(given[6 * i : 6 * i + 6])
        assert (
            rewards.std(1).min() > 100 * rewards.mean(1).std() > 0
        )  # prompts differ by more than members
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
