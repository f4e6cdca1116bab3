"""restore=factors: the weights of a low-rank method, by one forward pass per step and one write per interval."""

import copy
import math
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils._python_dispatch import TorchDispatchMode

import zo
from tests.support.quadratic import Interrupted, interrupt, same
from tests.support.tiny_models import opt
from tests.support.tiny_runs import TinyRun
from zo.lm.float16 import widen
from zo.optim.base import NonFiniteError
from zo.optim.config_low_rank import LOZOConfig
from zo.optim.lozo import LOZO
from zo.weights import patching
from zo.weights.restore import factors
from zo.weights.restore.base import RestoreError
from zo.weights.space import ParameterSpace

INTERVAL = 3


class Trial(TinyRun):
    """A method on a tiny model, under one policy."""

    def __init__(self, model, restore="factors", candidates=(1, 1), method="lozo", **settings):
        given = {"eps": 1e-3, "candidates": candidates, "lr": 1e-4, **settings}
        given |= {"interval": INTERVAL} if "lozo" in method or method == "subzero" else {}
        super().__init__(model, method, restore, **given)

    def sides(self) -> list[tuple[Tensor, Tensor]]:
        """Aᵀ and Vᵀ of every tensor, in float64; of vectors A alone."""
        z, policy = self.optimizer.direction(), self.params.policy
        pairs = enumerate(zip(policy.a, self.params.local, strict=True))
        return [(a.double(), (z.right(i, p) if p.dim() > 1 else a).double()) for i, (a, p) in pairs]

    def theta(self) -> list[Tensor]:
        """W + A Vᵀ, in float64."""
        return [
            p.double() + (a.t() @ v if p.dim() > 1 else 0)
            for p, (a, v) in zip(self.params.local, self.sides(), strict=True)
        ]


def test_layers_that_round_their_products_otherwise_are_linear_ones():
    """As those of float16 on a CPU."""
    losses = []
    for restore in ("factors", "snapshot"):
        torch.manual_seed(0)
        model = opt().half()
        widen(model)
        trial = Trial(model, restore)
        losses.append(trial.optimizer.step(trial.loss).losses)
    assert losses[0] == pytest.approx(losses[1], abs=1e-2)


@pytest.mark.parametrize(
    ("settings", "branches"), [({}, 2), ({"n": 3}, 6), ({"n": 2, "two_sided": False}, 3)]
)
def test_a_step_is_one_forward_pass_of_all_branches(settings, branches):
    trial, rows = Trial(opt(), **settings), []
    trial.model.base_model.register_forward_pre_hook(
        lambda _, __, inputs: rows.append(len(inputs["input_ids"])), with_kwargs=True
    )
    trial.loss()
    info = trial.optimizer.step(trial.loss)
    assert rows == [rows[0], branches * rows[0]]
    assert info.forwards == trial.optimizer.config.forwards_per_step == branches
    assert len(set(info.losses)) == branches


class Calls(TorchDispatchMode):
    """Counts torch's calls by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.of = Counter[str]()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.of[function.name()] += 1
        return function(*args, **(kwargs or {}))


def test_branches_are_filled_by_passes_over_all_tensors_not_by_a_call_for_each():
    trial = Trial(opt(), noise="philox")
    if not trial.params.engine.runs_programs:
        pytest.skip("torch rounds otherwise than a pass here, and fills them itself")
    trial.steps(1)
    points = [[(c, trial.optimizer.direction())] for c in (0.1, -0.1)]
    with Calls() as calls:
        trial.params.policy.displace_to(points)
    assert calls.of == {"aten::_foreach_add.List": 1}


@pytest.mark.parametrize("grad", [False, True])
def test_linear_layers_read_their_weights_past_the_guard_unless_gradients_are_recorded(
    grad, monkeypatch
):
    trial, plain, called = Trial(opt()), patching.GuardedParameter.__torch_function__, []

    def noting(cls, function, *args):
        called.append(function.__name__)
        return plain.__func__(cls, function, *args)

    guard = patching.GuardedParameter
    monkeypatch.setattr(guard, "__torch_function__", classmethod(noting))
    with torch.set_grad_enabled(grad):
        trial.model(torch.tensor([[5, 6]]))
    assert ("linear" in called) == grad
    assert "embedding" in called


def test_matrices_are_written_once_per_interval():
    trial = Trial(opt())
    start = trial.weights()
    matrices = [i for i, p in enumerate(start) if p.dim() > 1]
    for step in range(1, 2 * INTERVAL + 1):
        was = trial.weights()
        trial.steps(1)
        for i, (p, q) in enumerate(zip(trial.params.local, was, strict=True)):
            assert torch.equal(p, q) == (i in matrices and step % INTERVAL != 0)
    assert not any(a.any() for a in trial.params.policy.a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_fold_rounds_once_and_in_whatever_pieces(dtype, monkeypatch):
    merged = []
    for values in (factors.MERGED_VALUES, 100):
        monkeypatch.setattr(factors, "MERGED_VALUES", values)
        trial = Trial(opt().to(dtype), rank=3)
        trial.steps(2)
        exact, was, sides = trial.theta(), trial.weights(), trial.sides()
        trial.params.policy.merge_factors()
        merged.append(trial.weights())
        for p, q, e, (a, v) in zip(merged[-1], was, exact, sides, strict=True):
            size = q.double().abs() + (a.abs().t() @ v.abs() if p.dim() > 1 else 0)
            half = e.abs().clamp_min(torch.finfo(dtype).tiny) * torch.finfo(dtype).eps / 2
            assert (p.double() - e).abs().le(half + 2**-22 * size).all()
    assert same(*merged)


@pytest.mark.parametrize("where", ["model.decoder.embed_positions", "lm_head", None])
def test_theta_is_as_it_was_after_a_forward_pass_or_a_branch_that_fails(where, monkeypatch):
    trial, twin = (Trial(opt(tie_word_embeddings=False)) for _ in range(2))
    trial.steps(1), twin.steps(1)
    was, branches = trial.theta(), trial.loss.branches
    with monkeypatch.context() as patch:
        if where is None:
            patch.setattr(trial.loss, "branches", lambda n: [branches(n)[0], math.nan])
        else:
            patch.setattr(trial.model.get_submodule(where), "_forward_hooks", {0: interrupt})
        with pytest.raises(NonFiniteError if where is None else Interrupted):
            trial.optimizer.step(trial.loss)
    assert trial.optimizer.step_index == 1
    assert same(trial.theta(), was)
    assert trial.loss() == twin.loss()
    assert trial.steps(4) == twin.steps(4)


def test_a_state_goes_on_bit_for_bit_in_the_middle_of_an_interval():
    """With factors that nobody has merged."""
    first, second = (Trial(opt(), n=2) for _ in range(2))
    first.steps(1)
    for p, q in zip(second.params.local, first.params.local, strict=True):
        p.copy_(q)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert second.loss() == first.loss()
    assert second.steps(3) == first.steps(3)
    assert same(second.params.gathered(collect=False)[1], first.params.gathered(collect=False)[1])


def of(*layers: nn.Module) -> ParameterSpace:
    return ParameterSpace.of(nn.Sequential(*layers), "factors")


LOW_RANK_ALONE = "factors needs a method whose directions are all of low"
REFUSED = [
    ("must be one of snapshot, streamed", lambda: Trial(opt(), "merged", method="sparse_mezo")),
    ("0.in_proj_weight belongs to no linear", lambda: of(nn.MultiheadAttention(4, 1))),
    ("0.weight belongs to no linear", lambda: of(nn.Conv1d(2, 3, 1))),
    ("0.weight belongs to no linear", lambda: of(nn.Embedding(4, 2, max_norm=1.0))),
    (LOW_RANK_ALONE, lambda: Trial(opt(), method="zo_muon")),
    (LOW_RANK_ALONE, lambda: Trial(opt(), method="tezo", variant="adam")),
    (LOW_RANK_ALONE, lambda: Trial(opt(), method="fzoo")),
    ("must be 0 with restore=factors", lambda: Trial(opt(), weight_decay=0.1)),
]


@pytest.mark.parametrize(("why", "make"), REFUSED)
def test_layers_and_methods_that_a_policy_cannot_move_are_refused(why, make):
    with pytest.raises(ValueError, match=why):
        make()


def test_weights_that_are_read_past_their_layer_are_refused():
    layers, x = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), torch.ones(2, 3)
    optimizer = LOZO(ParameterSpace.of(layers, "factors"), LOZOConfig(), lr=1e-4, seed=0)
    for name, p in layers.named_parameters():
        with pytest.raises(RestoreError, match=rf"{name} is read outside of the call"):
            optimizer.step(lambda p=p: float(layers(x).sum() + p.sum()))
    first = zo.LOZO(nn.Linear(3, 3), lr=1e-4, restore="factors")
    alias = first.param_groups[0]["params"][0].data
    with pytest.raises(RestoreError, match=r"as with `\.data` or a view"):
        first.step(lambda: (x @ alias.T).square().sum())


def test_a_layer_that_is_not_called_is_no_error_and_another_thread_is_one():
    heads, x = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)]), torch.ones(2, 3)
    optimizer = LOZO(ParameterSpace.of(heads, "factors"), LOZOConfig(), lr=1e-4, seed=0)
    optimizer.step(lambda: float(heads[0](x).square().sum()))
    with ThreadPoolExecutor(1) as pool, pytest.raises(RestoreError, match="in another thread"):
        optimizer.step(lambda: float(pool.submit(heads[1], x).result().sum()))


def test_whoever_reads_by_address_and_a_state_that_is_loaded_leave_the_updates(tmp_path):
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), torch.ones(2, 3)
    optimizer = zo.LOZO(model, lr=1e-2, restore="factors")
    state = optimizer.state_dict()
    for _ in range(3):
        optimizer.step(lambda: model(x).square().mean())
    save_file(dict(model.named_parameters()), tmp_path / "x.safetensors")
    trained = model(x).square().mean().item()
    optimizer.step(lambda: model(x).square().mean())
    after = model(x).square().mean().item()
    optimizer.load_state_dict(state)
    assert model(x).square().mean().item() == pytest.approx(after, rel=1e-5)
    model.load_state_dict(load_file(tmp_path / "x.safetensors"))
    assert model(x).square().mean().item() == pytest.approx(trained, rel=1e-5) != after


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (torch.arange(3)[None], r"0 has 1 rows, .*restore=\"snapshot\""),
        (torch.arange(4), r"0 \(Embedding\) has rows .*restore=\"snapshot\""),
    ],
)
def test_rows_that_branches_share_are_refused_by_the_layers_name(ids, why):
    layers = nn.Sequential(nn.Embedding(4, 3))
    params = ParameterSpace.of(layers, "factors")
    z = LOZO(params, LOZOConfig(), lr=1e-4, seed=0).direction()
    params.policy.displace_to([[(1e-3, z)], [(-1e-3, z)]])
    with pytest.raises(RestoreError, match=why):
        layers(ids)


IDS = torch.arange(24).view(2, 12)


def loss_of(model):
    with torch.no_grad():
        return float(model(input_ids=IDS, labels=IDS).loss)


def trained(name, steps=2, record=None, **kwargs):
    """Returns a model in the middle of an interval, and its optimizer."""
    model = opt(**kwargs)
    given = {"eps": 1e-3, "restore": "factors", "record": record, "seed": 2}
    optimizer = zo.optimizer(name, model, 1e-3, **given)
    for _ in range(steps):
        optimizer.step(lambda: loss_of(model))
    return model, optimizer


def reloaded(model, path):
    fresh = opt()
    fresh.load_state_dict(model.state_dict())
    return fresh


def saved(model, path):
    model.save_pretrained(path)
    return type(model).from_pretrained(path)


def averaged(model, path):
    """An average that was made before the optimizer."""
    average = AveragedModel(opt(tie_word_embeddings=model.config.tie_word_embeddings))
    average.update_parameters(model)
    return average


def of_parameters(model, path):
    fresh = opt()
    for p, q in zip(fresh.parameters(), model.parameters(), strict=True):
        p.data = q.clone()
    return fresh


READERS = [reloaded, saved, averaged, of_parameters]
READERS += [lambda m, _: copy.deepcopy(m), lambda m, _: AveragedModel(m)]
METHODS = ["tezo", "lozo", "subzero", "lozo_m"]


@pytest.mark.parametrize(("name", "read"), [(METHODS[i % 4], r) for i, r in enumerate(READERS)])
def test_whoever_reads_the_weights_gets_what_the_model_computes_with(name, read, tmp_path):
    model, optimizer = trained(name)
    live = loss_of(model)
    other = read(model, tmp_path)
    found = loss_of(other)
    assert found == loss_of(model) == pytest.approx(live, abs=1e-5)
    assert abs(found - loss_of(opt())) > 1e-3
    optimizer.step(lambda: loss_of(model))
    assert loss_of(other) == found != loss_of(model)
    model.load_state_dict(opt().state_dict())
    assert loss_of(model) == loss_of(opt())


@pytest.mark.parametrize("name", ["tezo", "lozo"])
def test_a_state_that_was_saved_inside_an_interval_goes_on_with_the_same_bits(name, tmp_path):
    """Losses of an open optimizer and a closed one differ by rounding: A Vᵀ is added to outputs or weights."""
    file = tmp_path / "run.zo"
    whole, optimizer = trained(name, record=file)
    states = [optimizer.state_dict(), copy.deepcopy(whole.state_dict())]
    whole.save_pretrained(tmp_path)
    for _ in range(2):
        optimizer.step(lambda: loss_of(whole))
    resumed, second = trained(name, 0, record=file)
    resumed.load_state_dict(states[1])
    second.load_state_dict(states[0])
    for _ in range(2):
        second.step(lambda: loss_of(resumed))
    replayed = opt()
    third = zo.replay(replayed, file)
    assert loss_of(whole) == loss_of(resumed) == loss_of(replayed)
    for of in (optimizer, second, third):
        of.close()
    assert loss_of(whole) == loss_of(resumed) == loss_of(replayed)
    assert same(*([*of.parameters()] for of in (whole, resumed)))
    assert same(*([*of.parameters()] for of in (whole, replayed)))


@pytest.mark.slow
def test_a_compiled_model_measures_what_it_measures_uncompiled():
    """Reading the weights in between merges the factors."""
    found = []
    for compiled in (False, True):
        model, optimizer = trained("tezo", 1)
        computes = torch.compile(model, backend="eager") if compiled else model
        found.append([])
        for _ in range(3):
            optimizer.step(lambda: loss_of(computes))  # noqa: B023
            found[-1] += [*optimizer.info.losses, float(model.lm_head.weight.sum())]
    assert found[0] == pytest.approx(found[1], abs=1e-6)


@pytest.mark.process
def test_a_compiler_may_leave_a_call_in_the_middle_of_a_layer():
    """A changed shape has it compile again, up to its limit, beyond which Python goes on in a replaced forward."""
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        layers = [nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU()]
        model = nn.Sequential(*layers, nn.Linear(16, 8), nn.Linear(8, 4, bias=False))
        computes = torch.compile(model, backend="aot_eager", dynamic=False) if compiled else model
        optimizer = zo.LOZO(model, lr=1e-2, restore="factors")
        losses.append([])
        for i in range(5):
            ids = IDS[:, : 5 + i % 2] % 20
            losses[-1].append(optimizer.step(lambda: computes(ids).square().mean()))  # noqa: B023
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_one_optimizer_at_a_time_moves_a_model_and_close_leaves_it_trained_and_its_own():
    model, optimizer = trained("lozo")
    own = opt()
    live = loss_of(model)
    with pytest.raises(TypeError, match=r"state_dict.*close\(\)"):
        pickle.dumps(model)
    for restore in ("factors", "merged"):
        with pytest.raises(ValueError, match=r"another optimizer.*close\(\)"):
            zo.LOZO(model, 1e-3, restore=restore)
    with optimizer:
        pass  # closes it
    assert loss_of(model) == pytest.approx(live, abs=1e-5)
    assert [m.__dict__.keys() for m in model.modules()] == [
        m.__dict__.keys() for m in own.modules()
    ]
    assert {type(p) for p in model.parameters()} == {nn.Parameter}
    with pytest.raises(RuntimeError, match="the optimizer is closed; make a new one"):
        optimizer.step(lambda: loss_of(model))
    assert loss_of(pickle.loads(pickle.dumps(model))) == loss_of(model)
    zo.MeZO(model, 1e-3).step(lambda: loss_of(model))


def test_what_layers_add_is_not_cast_by_autocast():
    """The embedding's displacement keeps float32, and the linear layer's is rounded to its output's dtype once."""
    found = []
    for cast in (False, True):
        layers = nn.Embedding(16, 8), nn.Linear(8, 8, bias=False)
        for layer in layers:
            nn.init.zeros_(layer.weight)
        model = nn.ModuleList(layers)
        rows = torch.arange(24.0).remainder(7).view(3, 8)  # the same numbers in bfloat16
        optimizer = zo.LOZO(model, lr=1e-2, eps=1e-1, restore="factors", check_closure=False)

        def closure():
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):  # noqa: B023
                parts = model[0](torch.arange(12).view(2, 6)), model[1](rows)  # noqa: B023
            found.append(parts)
            return sum(part.float().sum() for part in parts)

        optimizer.step(closure)
    half = len(found) // 2
    for (looked_up, product), (under, rounded) in zip(found[:half], found[half:], strict=True):
        assert torch.equal(looked_up, under)
        assert torch.equal(product.bfloat16(), rounded)
    assert found[-1][1].any()
