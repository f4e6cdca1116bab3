"""What single methods promise beyond the contract and their renderings, and when a step is a tie."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import zo
from tests.support.crowd import gather_results
from tests.support.quadratic import ZEROTH_ORDER, Quadratic, make, same, start, steps
from tests.support.tiny_models import opt, seeded
from tests.support.tiny_runs import TinyRun
from zo.distributed.processes import Processes
from zo.lm.scoring.generation import Written
from zo.lm.scoring.texts import TextScorer
from zo.noise import PERTURBATION, NoiseKey
from zo.noise.program import Program
from zo.noise.torch_generator import TorchEngine
from zo.optim import OPTIMIZERS
from zo.optim.es import centred_ranks
from zo.rewards.tally import Ratings
from zo.run.losses import BatchLoss, divided
from zo.tasks import Encoded
from zo.weights import directions
from zo.weights.space import ParameterSpace
from zo.weights.updates import UpdateTargets

SCALE_INVARIANT = "a method whose steps do not depend on the loss's scale says scale_invariant = True in its settings"


@pytest.mark.parametrize(
    "name",
    [n for n in ZEROTH_ORDER if n in OPTIMIZERS and not OPTIMIZERS[n].config.scale_invariant],
)
def test_step_norm_makes_the_first_step_as_long_whatever_the_slope(name):
    """v̂ = c² at t = 1: with one direction θ moves by lr · z/|z| of its slope, at any scale of the loss."""
    bszo = {"k": 1, "prior_std": 1.0, "noise_std": 1e-9} if name.startswith("bszo") else {}
    first = []
    for scale in (0, 1, 64):
        loss = Quadratic(restore="snapshot")
        loss.h = [scale * h for h in loss.h]
        first.append(steps(make(name, loss, 1e-2, 42, step_norm="rms", **bszo), loss, 1))
    words = f"{name}: with step_norm=rms a loss times 64 makes another first step"
    torch.testing.assert_close(
        first[1],
        first[2],
        rtol=0,
        atol=1e-5,
        msg=lambda said: f"{words}; {SCALE_INVARIANT}\n{said}",
    )
    moved = not torch.allclose(first[0][12:], first[1][12:], rtol=0, atol=1e-6)
    assert moved, f"{name}: a loss times 0 makes the same first step; {SCALE_INVARIANT}"


def counting(function, calls):
    """A function whose calls are counted."""
    return lambda *args, **kwargs: calls.append(1) or function(*args, **kwargs)


LOW_RANK = ("lozo", "lozo_m", "subzero", "tezo", "zo_muon")
HALF = [torch.float32, torch.bfloat16]
ENGINE = type(zo.noise.engine("philox", "cpu"))
KINDS = {
    "factors": (directions, "FACTOR_BYTES", 0, ENGINE, ("draw_", "draw_all_"), "merged", 40),
    "displacements": (ENGINE, "prepare", lambda *_: None, Program, ("assembled",), "streamed", 17),
    "updates": (UpdateTargets, "run_program", lambda *_: False, ENGINE, ("run", "add_"), "merged", 9),
}  # fmt: skip
"""What is done for all tensors together, how that is prevented, whose calls are counted, and how many are enough."""
TOGETHER = [
    *(("factors", name, {"rank": 4, "interval": 2}, HALF[0]) for name in LOW_RANK),
    ("factors", "subzero", {"rank": 4, "interval": 2, "square": True}, HALF[0]),
    ("factors", "tezo", {"rank": 4, "interval": 2, "variant": "adam"}, HALF[0]),
    *(("displacements", name, {}, dtype) for name in ("lozo", "tezo", "conmezo") for dtype in HALF),
    *(("updates", name, {}, dtype) for name in ("mezo_adam", "hizoo", "conmezo") for dtype in HALF),
    *(("updates", name, {"n": 2}, dtype) for name in ("zo_sign", "zo_momentum") for dtype in HALF),
]


@pytest.mark.parametrize(("kind", "name", "settings", "dtype"), TOGETHER, ids=str)
def test_what_is_done_for_all_tensors_together_has_the_bits_of_one_at_a_time(
    kind, name, settings, dtype, monkeypatch
):
    """Factors over an interval's end; blocks by one program a probe; an update with state in one pass."""
    module, attribute, apart, counted, methods, restore, most = KINDS[kind]
    if kind != "factors" and not zo.noise.engine("philox", "cpu").runs_programs:
        pytest.skip("torch rounds products before their sums")
    calls, found = [], []
    for method in methods:
        monkeypatch.setattr(counted, method, counting(getattr(counted, method), calls))
    settings = settings | ({"weight_decay": 0.1} if kind == "updates" else {})
    for _ in range(2):
        run = TinyRun(opt().to(dtype), name, restore, "philox", **settings)
        calls.clear()
        found.append((run.steps(3), run.weights(), run.optimizer.state_dict(), len(calls)))
        monkeypatch.setattr(module, attribute, apart)
    (losses, weights, state, together), (others, same_weights, same_state, one_by_one) = found
    assert losses == others
    assert same(weights, same_weights)
    torch.testing.assert_close(state, same_state, rtol=0, atol=0, equal_nan=True)
    assert together <= most
    assert most < one_by_one or (kind, name) == ("updates", "conmezo")  # by tables of tensors


@pytest.mark.process
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")
@pytest.mark.skipif(not ENGINE.runs_programs, reason="torch rounds products before their sums")
@pytest.mark.parametrize(
    ("name", "restore", "launches"),
    [("conmezo", "merged", 3), ("lozo", "streamed", 12), ("mezo", "streamed", 9)],
)
def test_a_gpu_has_the_cpus_bits_in_one_launch_a_pass(name, restore, launches, monkeypatch):
    """Of a unit's weights or of all 36 tensors, of an update, and of a kind of factors."""
    cuda, found, launched = pytest.importorskip("zo.noise.cuda.engine"), [], []
    launching = cuda.compiling.launching
    monkeypatch.setattr(cuda.compiling, "launching", lambda: launched.append(name) or launching())
    for on in ("cpu", "cuda"):
        drawer = zo.noise.engine("philox", on)
        monkeypatch.setattr("zo.weights.tensors.engine", lambda *_, drawer=drawer: drawer)
        run = TinyRun(opt().bfloat16(), name, restore, "philox", weight_decay=0.1)
        launched.clear()
        found.append((run.steps(1), run.weights()))
    (losses, weights), (others, same_weights) = found
    assert losses == others
    assert same(weights, same_weights)
    assert len(launched) == launches


def test_fzoo_leaves_a_step_out_where_losses_tie():
    """All differ from f₀ alone, or by less than a loss is rounded by."""
    loss = Quadratic(restore="snapshot")
    opt, was = make("fzoo", loss), loss.weights()
    for rounding in (0.0, 1e-9):
        answers = iter([0.5, *(0.25 + i * rounding for i in range(8))])
        opt.step(lambda answers=answers: next(answers))
        assert same(loss.weights(), was)


def test_the_step_of_zo_muon_by_newton_schulz_is_about_orthogonal():
    loss = Quadratic(restore="snapshot")
    opt = make("zo_muon", loss, lr=0.1, msign="newton_schulz", rank=3)
    for _ in range(5):
        was = loss.params.local[1].clone()
        opt.step(loss)
        values = torch.linalg.svdvals((loss.params.local[1] - was).double()) / 0.1
        assert ((values[:3] > 0.5) & (values[:3] < 1.3)).all()
        assert (values[3:] < 1e-5).all()


@pytest.mark.parametrize("name", LOW_RANK)
def test_methods_of_low_rank_draw_no_more_at_once_than_a_thin_factor(name, monkeypatch):
    drawn, draw = [], TorchEngine.draw_
    counted = lambda *given: drawn.append(given[1].numel()) or draw(*given)  # noqa: E731
    monkeypatch.setattr(TorchEngine, "draw_", counted)
    weight = torch.ones(64, 48)
    params, method = ParameterSpace([("m", weight)], "snapshot"), OPTIMIZERS[name]
    opt = method.optimizer(params, method.config(rank=4), lr=1e-3, seed=0)
    opt.step(lambda: float(weight.square().mean()))
    assert 0 < max(drawn) <= 4 * 64


@pytest.mark.parametrize("name", ZEROTH_ORDER)
def test_equal_losses_are_a_tie_and_move_nothing(name):
    loss = Quadratic(restore="snapshot")
    opt, home, loss.answers = start(name, loss), loss.weights(), dict.fromkeys(range(99), 1.5)
    assert opt.step(loss).tied
    assert same(loss.weights(), home)
    loss.answers = {}
    assert not opt.step(loss).tied
    assert not same(loss.weights(), home)


@pytest.mark.parametrize("scope", ["matrices", "all"])
def test_sparse_mezo_leaves_embeddings_norms_biases_and_matrices_of_zeros_unmasked(scope):
    """A step moves a quarter of a masked tensor's weights, the small ones, and all of a free one's."""
    torch.manual_seed(0)
    embedding, linear, zeros = nn.Embedding(8, 4), nn.Linear(4, 8), nn.Linear(4, 4, bias=False)
    model = nn.Sequential(embedding, nn.LayerNorm(4), zeros, linear, nn.Conv1d(8, 4, 2))
    nn.init.zeros_(zeros.weight)
    was = {name: p.detach().clone() for name, p in model.named_parameters()}
    opt = zo.SparseMeZO(model, lr=1.0, scope=scope, restore="snapshot")

    def loss():
        return sum(p.square().sum() + p.sum() for p in model.parameters())

    opt.step(loss)
    moved = {name: (p != was[name]).sum() / p.numel() for name, p in model.named_parameters()}
    equal = {"1.weight", "1.bias", "2.weight"}  # all within the quantile
    masked = {"3.weight"} if scope == "matrices" else moved.keys() - equal
    assert moved == {name: 0.25 if name in masked else 1.0 for name in moved}
    small = was["3.weight"].abs() <= was["3.weight"].abs().flatten().kthvalue(8).values
    assert ((model[3].weight != was["3.weight"]) == small).all()
    step = zeros.weight.detach().clone()
    opt.step(loss)
    again = (zeros.weight != step).any()
    assert bool(again) == (scope == "matrices"), "zeros leave an empty mask behind"


@pytest.mark.parametrize(
    ("n", "shape"), [(8 * 2048, (128, 128)), (5 * 300, (30, 50)), (20, (4, 5)), (7, (1, 7))]
)
def test_subzero_counts_an_adapters_values_as_a_matrix_nearly_square(n, shape):
    """Its core of 48 × 48 stays whole where 8 × 2048 would leave 8 × 48; entries keep variance 1."""
    p = torch.zeros(8, 2048) if n == 8 * 2048 else torch.zeros(1, n)
    params = ParameterSpace([("lora_A", p)], "snapshot")
    method = OPTIMIZERS["subzero"]
    opt = method.optimizer(params, method.config(square=True), lr=1e-3, seed=0)
    assert tuple(opt.state[key][0].shape[1] for key in "pq") == shape
    z = opt.direction_at(0).sample(0, p)
    assert z.shape == p.shape
    assert torch.equal(opt.direction_at(0).sample(0, p, torch.tensor([0])), z[:1])
    left, right = (opt.state[key][0] for key in "pq")
    rows, columns = (min(48, length) for length in shape)
    core = left @ z.view(shape) @ right.mT * (rows * columns / n) ** 0.5
    drawn = params.engine.draw_(torch.empty(48, 48), NoiseKey(0, PERTURBATION, 0, 0), 0)
    torch.testing.assert_close(core[:rows, :columns], drawn[:rows, :columns])
    torch.testing.assert_close(left.mT @ left @ z.view(shape), z.view(shape))


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
    method = OPTIMIZERS["eggroll"]
    opt = method.optimizer(params, method.config(n=6), lr=1e-2, seed=5)
    for _ in range(5):
        loss = BatchLoss(scorer, PROMPTS, params)
        if processes.world > 1:
            loss = divided(scorer, PROMPTS, 1, params, processes)
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
