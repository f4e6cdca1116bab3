"""LOZO beside the weights is LOZO in the weights, with one forward pass per step and one write per interval."""

import math

import pytest
import torch
from torch import Tensor, nn

from tests.lm.test_packing import examples_of
from tests.lm.test_scoring import make_examples
from tests.support.quadratic import Interrupted
from tests.support.tiny_models import DECODERS, bert, llama, opt, roberta
from zo.lm.scoring import CandidateScorer
from zo.noise import NoiseKey
from zo.optim.base import NonFiniteError
from zo.optim.config import LOZOConfig, MeZOConfig
from zo.optim.lozo import LOZO
from zo.optim.mezo import MeZO
from zo.run.loop import BatchLoss
from zo.weights.directions import Gaussian
from zo.weights.restore import factors
from zo.weights.space import ParameterSpace

LR, EPS = 1e-4, 1e-3
INTERVAL = 3
MODELS = {
    **DECODERS,
    "opt, untied": lambda: opt(tie_word_embeddings=False),
    "llama, tied": lambda: llama(tie_word_embeddings=True, attention_bias=True),
    "roberta": roberta,
    "bert": bert,
}
CANDIDATES = {"one token": [1, 1], "several tokens": [1, 4, 2, 1, 3]}
VARIANTS = {
    "two-sided": {},
    "one-sided": {"two_sided": False},
    "n = 2": {"n": 2, "divide_by_rank": True},
    "rank 1, n = 2, one-sided": {"n": 2, "rank": 1, "two_sided": False},
}


class Trial:
    """LOZO on a tiny model, under one policy."""

    def __init__(self, model, restore, candidates=(1, 1), lr=LR, loss_dtype="float32", **settings):
        masked = type(model).__name__.endswith("MaskedLM")
        kind, pad = ("masked", model.config.pad_token_id) if masked else ("decoder", 1)
        examples = (
            examples_of([1], (7, 2, 16, 1, 11), masked)
            if masked
            else make_examples(list(candidates))
        )
        self.model, self.params = model, ParameterSpace.of(model, restore)
        self.scorer = CandidateScorer(model, pad, loss_dtype, kind)
        self.batch = self.scorer.collate(examples)
        self.loss = BatchLoss(self.scorer, self.batch, self.params)
        config = LOZOConfig(**{"eps": EPS, "interval": INTERVAL, **settings})
        self.optimizer = LOZO(self.params, config, lr=lr, seed=3)

    def steps(self, count: int) -> list[float]:
        return [loss for _ in range(count) for loss in self.optimizer.step(self.loss).losses]

    def theta(self) -> list[Tensor]:
        """W + A Vᵀ, in float64."""
        if self.params.restore != "factors":
            return [p.double() for p in self.params.tensors]
        return [
            p.double() + (a.T @ v if p.dim() > 1 else 0)
            for p, (a, v) in zip(self.params.tensors, self.sides(), strict=True)
        ]

    def sides(self) -> list[tuple[Tensor, Tensor]]:
        """Aᵀ and Vᵀ of every tensor, in float64."""
        pairs = zip(self.params.policy.a, self.params.policy._v, strict=True)
        return [(a.double(), v.double()) for a, v in pairs]

    def weights(self) -> list[Tensor]:
        return [p.clone() for p in self.params.tensors]


def farthest(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x.double() - y.double()).abs().max()) for x, y in zip(a, b, strict=True))


def bit_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def agree(kind: str, candidates: str, settings: dict) -> None:
    """Losses of eight steps within 2e-5, weights after them within 5e-6; they move by a hundred times as much."""
    plain, beside = (
        Trial(MODELS[kind](), restore, CANDIDATES[candidates], **settings)
        for restore in ("snapshot", "factors")
    )
    start, steps = plain.theta(), 2 * INTERVAL + 2
    expected, found = plain.steps(steps), beside.steps(steps)
    assert found == pytest.approx(expected, abs=2e-5, rel=0)
    assert max(expected) - min(expected) > 2e-3
    assert farthest(beside.theta(), plain.theta()) < 5e-6 < 1e-2 * farthest(start, plain.theta())
    assert beside.loss() == pytest.approx(plain.loss(), abs=2e-5, rel=0)
    beside.params.fold()
    assert farthest(beside.weights(), plain.weights()) < 5e-6
    assert beside.loss() == pytest.approx(plain.loss(), abs=2e-5, rel=0)


@pytest.mark.parametrize(
    ("kind", "candidates", "variant"),
    [(k, [*CANDIDATES][i % 2], [*VARIANTS][(i + i // 4) % 4]) for i, k in enumerate(MODELS)],
)
def test_losses_and_weights_are_those_of_plain_lozo(kind, candidates, variant):
    agree(kind, candidates, VARIANTS[variant])


@pytest.mark.parametrize(
    ("settings", "branches"), [({}, 2), ({"n": 3}, 6), ({"n": 2, "two_sided": False}, 3)]
)
def test_a_step_is_one_forward_pass_of_all_branches(settings, branches):
    trial, rows = Trial(opt(), "factors", **settings), []
    trial.model.base_model.register_forward_pre_hook(
        lambda _, __, inputs: rows.append(len(inputs["input_ids"])), with_kwargs=True
    )
    trial.loss()
    one = rows.copy()
    rows.clear()
    info = trial.optimizer.step(trial.loss)
    assert rows == [branches * n for n in one]
    assert info.forwards == trial.optimizer.forwards_per_step == branches
    assert len(set(info.losses)) == branches


def test_matrices_are_written_once_per_interval():
    trial = Trial(opt(), "factors")
    start = trial.weights()
    matrices = [i for i, p in enumerate(start) if p.dim() > 1]
    for step in range(1, 2 * INTERVAL + 1):
        was = trial.weights()
        trial.steps(1)
        for i, (p, q) in enumerate(zip(trial.params.tensors, was, strict=True)):
            assert torch.equal(p, q) == (i in matrices and step % INTERVAL != 0)
    assert not any(a.any() for a in trial.params.policy.a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_fold_rounds_once_and_in_whatever_pieces(dtype, monkeypatch):
    folded = []
    for values in (factors.FOLD, 100):
        monkeypatch.setattr(factors, "FOLD", values)
        trial = Trial(opt().to(dtype), "factors", rank=3)
        trial.steps(2)
        exact, was, sides = trial.theta(), trial.weights(), trial.sides()
        trial.params.fold()
        folded.append(trial.weights())
        for p, q, e, (a, v) in zip(folded[-1], was, exact, sides, strict=True):
            size = q.double().abs() + (a.abs().T @ v.abs() if p.dim() > 1 else 0)
            half = e.abs().clamp_min(torch.finfo(dtype).tiny) * torch.finfo(dtype).eps / 2
            assert (p.double() - e).abs().le(half + 2**-22 * size).all()
    assert bit_equal(*folded)


@pytest.mark.parametrize("where", ["embeddings", "head"])
def test_theta_is_as_it_was_after_a_forward_pass_that_fails(where):
    trial, twin = (Trial(opt(tie_word_embeddings=False), "factors") for _ in range(2))
    trial.steps(1), twin.steps(1)
    module = {
        "embeddings": trial.model.model.decoder.embed_positions,
        "head": trial.model.lm_head,
    }[where]
    inner = module.forward

    def fail(*args, **kwargs):
        inner(*args, **kwargs)
        raise Interrupted

    module.forward, was, loss = fail, trial.theta(), twin.loss()
    with pytest.raises(Interrupted):
        trial.optimizer.step(trial.loss)
    module.forward = inner
    assert trial.optimizer.step_index == 1
    assert bit_equal(trial.theta(), was)
    assert trial.loss() == loss
    assert trial.steps(4) == twin.steps(4)


def test_one_branchs_loss_that_is_not_finite_is_a_collapse():
    trial = Trial(opt(), "factors")
    trial.steps(1)
    was, branches = trial.theta(), trial.loss.branches
    trial.loss.branches = lambda n: [math.nan if b == 1 else x for b, x in enumerate(branches(n))]
    with pytest.raises(NonFiniteError, match="step 1: loss is nan"):
        trial.optimizer.step(trial.loss)
    assert bit_equal(trial.theta(), was)
    assert trial.optimizer.step_index == 1


def test_a_state_goes_on_bit_for_bit_in_the_middle_of_an_interval():
    first, second = Trial(opt(), "factors", n=2), Trial(opt(), "factors", n=2)
    first.steps(1)
    for p, q in zip(second.params.tensors, first.params.tensors, strict=True):
        p.copy_(q)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert second.loss() == first.loss()
    assert second.steps(3) == first.steps(3)
    assert bit_equal(second.params.parts()[1], first.params.parts()[1])


def test_losses_replay_the_run_bit_for_bit():
    trial, again = Trial(opt(), "factors"), Trial(opt(), "factors")
    made = [trial.optimizer.step(trial.loss) for _ in range(2 * INTERVAL + 1)]
    assert [again.optimizer.replay(info.losses) for info in made] == made
    assert bit_equal(again.params.parts()[1], trial.params.parts()[1])
    assert again.steps(3) == trial.steps(3)


class Odd(nn.Module):
    """Adds a parameter that belongs to no layer of its own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.shift = nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Odd(), "shift"),
        (nn.Sequential(nn.Conv1d(2, 3, 1)), "0.weight"),
        (nn.Sequential(nn.Embedding(4, 2, max_norm=1.0)), "0.weight"),
    ],
)
def test_a_tensor_that_no_known_layer_computes_with_is_refused_by_name(model, name):
    with pytest.raises(ValueError, match=f"restore=factors: {name} belongs to no linear"):
        ParameterSpace.of(model, "factors")


def test_other_directions_and_decay_are_refused():
    trial = Trial(opt(), "factors")
    with pytest.raises(ValueError, match="restore='factors': factors needs a method"):
        MeZO(trial.params, MeZOConfig(), lr=LR, seed=0)
    with pytest.raises(TypeError, match="low rank alone"):
        trial.params.add_([(1.0, Gaussian(NoiseKey(0, 0, 0, 0)))])
    with pytest.raises(ValueError, match="must be 0 with restore=factors"):
        Trial(opt(), "factors", weight_decay=0.1).steps(1)


class Reader(nn.Module):
    """Reads a layer's weight past the layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return nn.functional.linear(x, self.layer.weight)


def test_weights_that_are_read_past_their_layer_are_refused():
    model = Reader()
    params = ParameterSpace.of(model, "factors")
    optimizer = LOZO(params, LOZOConfig(), lr=LR, seed=0)
    with pytest.raises(RuntimeError, match=r"layer\.weight is not computed with in its layer"):
        optimizer.step(lambda: float(model(torch.ones(2, 3)).sum().detach()))


class Shared(nn.Module):
    """Looks positions up once for all rows."""

    def __init__(self, ids: Tensor):
        super().__init__()
        self.positions, self.ids = nn.Embedding(4, 3), ids

    def forward(self, x):
        return x + self.positions(self.ids)


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (torch.arange(4)[None], "positions: 1 rows are not those of 2 branches"),
        (torch.arange(4), "positions: its rows cannot be told to be of one branch or another"),
    ],
)
def test_rows_that_branches_share_are_refused_by_the_layers_name(ids, why):
    model = Shared(ids)
    params = ParameterSpace.of(model, "factors")
    z = LOZO(params, LOZOConfig(), lr=LR, seed=0).direction()
    params.policy._displace([[(EPS, z)], [(-EPS, z)]])
    with pytest.raises(ValueError, match=why):
        model(torch.zeros(6, 4, 3))
