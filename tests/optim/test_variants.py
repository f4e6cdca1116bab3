"""The methods beyond the paper's six: 50 steps beside plain renderings, and what each promises beyond the contract."""

import itertools
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.plain_variants import RENDERINGS, Twin
from zo.noise import PhiloxEngine
from zo.optim import OPTIMIZERS
from zo.weights.space import ParameterSpace

STEPS = 50
ALREADY_NORMALISED = ("mezo_adam", "zo_sign", "zo_muon", "fzoo")
"""Their steps are as long at any scale of the loss; divided by it once more they are not."""


class Bowl:
    """½ Σ h (θ − t)² over a vector and a matrix, curvatures from 0.1 to 2, in float64 from the weights."""

    def __init__(
        self,
        restore: str = "snapshot",
        dtype: torch.dtype = torch.float32,
        scale: float = 1.0,
        noise: str = "torch",
    ):
        generator = torch.Generator().manual_seed(3)
        shapes = {"v": (7,), "m": (6, 5)}
        named = [(n, torch.randn(s, generator=generator)) for n, s in shapes.items()]
        self.h = [torch.rand(t.shape, generator=generator).double() * 1.9 + 0.1 for _, t in named]
        self.t = [torch.randn(t.shape, generator=generator).double() for _, t in named]
        self.scale = scale
        self.params = ParameterSpace([(n, t.to(dtype)) for n, t in named], restore, noise=noise)

    def at(self, tensors: list[Tensor]) -> float:
        parts = zip(tensors, self.h, self.t, strict=True)
        return self.scale * sum(float((h * (p.double() - t) ** 2).sum()) for p, h, t in parts) / 2

    def __call__(self) -> float:
        return self.at(self.params.tensors)

    def flat(self) -> np.ndarray:
        return torch.cat([p.double().flatten() for p in self.params.tensors]).numpy()


def make(name: str, loss: Bowl, lr: float = 1e-2, seed: int = 42, **settings):
    config = OPTIMIZERS[name].config(**settings)
    return OPTIMIZERS[name].optimizer(loss.params, config, lr=lr, seed=seed)


def moves(
    name: str, steps: int, lr: float = 1e-2, loss: Bowl | None = None, **settings
) -> np.ndarray:
    """θ after each step, (steps, n)."""
    loss = Bowl() if loss is None else loss
    opt = make(name, loss, lr, **settings)
    return np.array([(opt.step(loss), loss.flat())[1] for _ in range(steps)])


CASES = [
    ("mezo", "meazo", {"step_norm": "rms"}, 1e-2),
    ("mezo", "meazo", {"step_norm": "rms", "norm_beta": 0.5, "n": 3}, 1e-2),
    ("zo_sign", "zo_sign", {}, 1e-2),
    ("zo_sign", "zo_sign", {"n": 3}, 1e-2),
    ("zo_momentum", "zo_momentum", {}, 1e-3),
    ("zo_momentum", "zo_momentum", {"momentum": 0.5, "n": 2}, 1e-3),
    ("zo_conservative", "zo_conservative", {}, 3e-2),
    ("sparse_mezo", "sparse_mezo", {"share": 0.5}, 1e-2),
    ("sparse_mezo", "sparse_mezo", {"n": 3}, 1e-2),
    ("conmezo", "conmezo", {}, 1e-3),
    ("conmezo", "conmezo", {"angle": 0.8, "hold": 5, "ramp": 20}, 1e-3),
    ("adamezo", "adamezo", {}, 1e-5),
    ("adamezo", "adamezo", {"window": 3, "beta1": 0.5, "adam_eps": 1e-2, "scale": 1.0}, 1e-3),
    ("fzoo", "fzoo", {}, 1e-2),
    ("fzoo", "fzoo", {"n": 3}, 1e-2),
    ("lozo_m", "lozo_m", {"interval": 7}, 1e-3),
    ("lozo_m", "lozo_m", {"interval": 7, "rank": 3, "momentum": 0.5}, 1e-3),
    ("subzero", "subzero", {"interval": 20}, 1e-3),
    ("subzero", "subzero", {"rank": 3, "interval": 7}, 1e-3),
    ("tezo", "tezo", {}, 1e-3),
    ("tezo", "tezo", {"variant": "momentum", "rank": 3}, 1e-3),
    ("tezo", "tezo", {"variant": "adam", "rank": 3, "adam_eps": 1e-3}, 1e-3),
    ("zo_muon", "zo_muon", {"msign": "svd", "vector_lr": 0.05}, 1e-2),
    ("zo_muon", "zo_muon", {"msign": "svd", "rank": 3, "interval": 7, "n": 2}, 1e-2),
]


@pytest.mark.parametrize(("name", "rendering", "settings", "lr"), CASES, ids=str)
def test_fifty_steps_are_those_of_the_plain_rendering(name, rendering, settings, lr):
    """θ within two float32 units of a weight of size one (2⁻²²) per step, slopes within a unit of the loss over ε."""
    loss = Bowl()
    twin = [p.clone() for p in loss.params.tensors]
    opt = make(name, loss, lr, **{"eps": 1e-2, **settings})
    step = RENDERINGS[rendering](Twin(opt, asdict(opt.config), lr, twin, lambda: loss.at(twin)))
    start = loss.flat()
    for _ in range(STEPS):
        expected = step()
        np.testing.assert_allclose(opt.step(loss).record, expected, rtol=1e-4, atol=2e-4)
        for p, q in zip(loss.params.tensors, twin, strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=STEPS * 2.0**-22)
    assert np.abs(loss.flat() - start).max() > 0.01, "the trajectory went somewhere"


PAPERS = {"mezo", "mezo_adam", "hizoo", "lozo", "bszo", "bszo_b", "adam", "sgd"}
"""Those of tests/optim/test_parity.py."""


def test_every_method_has_a_rendering_here_or_in_the_parity_tests():
    training = {name for name, method in OPTIMIZERS.items() if method.config.trains}
    assert training == PAPERS | {name for name, *_ in CASES}


def test_a_momentum_of_nothing_is_mezo():
    np.testing.assert_allclose(
        moves("zo_momentum", 20, momentum=0.0), moves("mezo", 20, eps=1e-3), atol=1e-6
    )


@pytest.mark.parametrize(
    "name", [n for n, m in OPTIMIZERS.items() if m.config.trains and m.config.replays]
)
def test_step_norm_makes_the_first_step_as_long_whatever_the_slope(name):
    """v̂ = c² at t = 1: with one direction θ moves by lr · z/|z| of its slope, at any scale of the loss."""
    settings = {"k": 1} if name.startswith("bszo") else {}
    settings |= {"prior_std": 1.0, "noise_std": 1e-9} if settings else {}
    first = [
        moves(name, 1, loss=Bowl(scale=s), step_norm="rms", **settings)[0] for s in (1.0, 64.0)
    ]
    if name not in ALREADY_NORMALISED:
        np.testing.assert_allclose(first[0], first[1], rtol=0, atol=1e-5)
    assert np.abs(first[0] - Bowl().flat()).max() > 1e-6


def test_signs_move_every_weight_by_the_learning_rate():
    change = np.diff(moves("zo_sign", 5), axis=0)
    np.testing.assert_allclose(np.abs(change), 1e-2, rtol=1e-4)


def test_a_conservative_step_never_raises_the_loss_of_its_batch():
    loss = Bowl()
    opt = make("zo_conservative", loss, lr=0.1)
    values, sides = [loss()], []
    for _ in range(100):
        sides.append(opt.step(loss).scalars["side"])
        values.append(loss())
    assert all(b <= a + 1e-6 for a, b in itertools.pairwise(values))
    assert {0.0, 1.0} <= set(sides), "some steps are too long"


@pytest.mark.parametrize("noise", ["torch", "philox"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_mask_is_that_of_theta_in_every_probe_and_in_the_update(noise, dtype):
    """ε so large that displaced weights would be masked otherwise: what is beyond the threshold never moves."""
    loss = Bowl("snapshot", dtype, noise=noise)
    opt = make("sparse_mezo", loss, lr=1e-3, eps=1.0, share=0.5, weight_decay=0.0)
    for _ in range(10):
        was, seen = [p.clone() for p in loss.params.tensors], []
        small = [p.abs() <= h for p, h in zip(was, opt.state["threshold"], strict=True)]
        opt.step(
            lambda seen=seen: (seen.append([*map(Tensor.clone, loss.params.tensors)]), loss())[1]
        )
        assert len(seen) == 2
        for there in seen:
            moved = [p != q for p, q in zip(there, was, strict=True)]
            assert all(torch.equal(a, b) for a, b in zip(moved, small, strict=True))
        for p, q, mask in zip(loss.params.tensors, was, small, strict=True):
            assert torch.equal(p[~mask], q[~mask])


@pytest.mark.parametrize("restore", ["subtract", "merged"])
def test_a_mask_of_displaced_weights_is_refused(restore):
    with pytest.raises(
        ValueError, match="must be one of snapshot, streamed: the method's directions depend on"
    ):
        make("sparse_mezo", Bowl(restore))


def test_sparse_mezo_keeps_the_contract():
    """What `test_contract.py` holds the others to, under the policies that it works with."""
    from tests.optim import test_contract as contract

    loss = contract.Quadratic(restore="snapshot")
    opt, first = contract.start("sparse_mezo", loss), loss.value()
    for _ in range(200):
        opt.step(loss)
    assert loss.value() < 0.5 * first
    contract.test_theta_is_back_after_probing("sparse_mezo", "snapshot", torch.bfloat16)
    contract.test_a_failed_step_can_be_repeated("sparse_mezo")
    contract.test_losses_replay_the_run_bit_for_bit_without_a_forward_pass(
        "sparse_mezo", "snapshot", (torch.float16, "torch", "nearest")
    )


def test_fzoo_makes_the_same_steps_at_any_scale_of_the_loss():
    first, second = (moves("fzoo", 30, loss=Bowl(scale=s)) for s in (1.0, 2.0**10))
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-5)


def test_fzoo_leaves_a_step_out_where_losses_tie():
    loss = Bowl()
    opt, was = make("fzoo", loss), loss.flat()
    info = opt.step(lambda: 0.5)
    assert info.scalars["std"] == 0.0
    np.testing.assert_array_equal(loss.flat(), was)
    for rounding in (0.0, 1e-9):  # all differ from f₀ alone, and by less than a loss is rounded by
        answers = iter([0.5, *(0.25 + i * rounding for i in range(8))])
        opt.step(lambda answers=answers: next(answers))
        np.testing.assert_array_equal(loss.flat(), was)


@pytest.mark.parametrize(
    ("method", "least", "most"), [("svd", 0.9999, 1.0001), ("newton_schulz", 0.5, 1.3)]
)
def test_the_step_of_zo_muon_is_orthogonal(method, least, most):
    """Its singular values are η; by Newton-Schulz about η."""
    loss = Bowl()
    opt = make("zo_muon", loss, lr=0.1, msign=method, rank=3)
    for _ in range(5):
        was = loss.params.tensors[1].clone()
        opt.step(loss)
        values = torch.linalg.svdvals((loss.params.tensors[1] - was).double()) / 0.1
        assert (values[:3] > least).all()
        assert (values[:3] < most).all()
        assert (values[3:] < 1e-5).all()


def test_the_bases_of_subzero_are_orthonormal_and_new_after_an_interval():
    loss = Bowl()
    opt = make("subzero", loss, rank=3, interval=4)
    seen = []
    for _ in range(8):
        p, q = opt.state["p"][1], opt.state["q"][1]
        for basis in (p, q):
            torch.testing.assert_close(basis @ basis.T, torch.eye(3), rtol=0, atol=1e-6)
        seen.append(p.clone())
        opt.step(loss)
    assert torch.equal(seen[0], seen[3])
    assert torch.equal(seen[4], seen[7])
    assert not torch.equal(seen[3], seen[4])


def test_the_probes_of_conmezo_make_the_angle_with_its_momentum():
    """z is cos ϑ of its length along m and sin ϑ across it, in expectation: at 1.35 0.22 and 0.98, not exchanged."""
    for angle in (0.3, 1.35):
        loss = Bowl()
        opt = make("conmezo", loss, angle=angle)
        cosines = []
        for _ in range(200):
            m = torch.cat([x.flatten() for x in opt.state["m"]])
            z = torch.cat(
                [
                    sum(c * d.sample(i, p) for c, d in opt.along(0)).flatten()
                    for i, p in enumerate(loss.params.tensors)
                ]
            )
            cosines.append(float(torch.cosine_similarity(m, z, dim=0)))
            opt.step_index += 1
        assert np.mean(cosines) == pytest.approx(np.cos(angle), abs=0.05)


def test_a_cone_without_opening_along_the_noise_is_mezo():
    ours = moves("conmezo", 20, angle=np.pi / 2)
    np.testing.assert_allclose(ours, moves("mezo", 20, eps=1e-3), rtol=0, atol=1e-5)


def test_lozo_m_and_tezo_without_momentum_are_plain():
    plain = moves("lozo", 20, 1e-3, eps=1e-3, interval=7)
    np.testing.assert_allclose(
        moves("lozo_m", 20, 1e-3, momentum=0.0, interval=7), plain, rtol=0, atol=1e-5
    )
    ours = moves("tezo", 20, 1e-3, variant="momentum", beta1=0.0)
    np.testing.assert_allclose(ours, moves("tezo", 20, 1e-3), rtol=0, atol=1e-5)


LOW_RANK = ("lozo", "lozo_m", "subzero", "tezo", "zo_muon")


@pytest.mark.parametrize("name", [*LOW_RANK, "mezo"])
def test_methods_of_low_rank_draw_no_tensor_of_the_weights_size(name, monkeypatch):
    """Numbers drawn per pass over a matrix of 64 × 48 at rank 4: those of thin factors; MeZO's are its weights."""
    drawn = []
    for method, at in (("_checked_draw", 1), ("add_", 4)):
        made = getattr(PhiloxEngine, method)

        def counted(*args, made=made, at=at, **more):
            drawn.append(args[1].numel() * (1 if at == 1 else len(args[at])))
            return made(*args, **more)

        monkeypatch.setattr(PhiloxEngine, method, counted)
    weight = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    params = ParameterSpace([("m", weight)], "snapshot", noise="philox")
    settings = {} if name == "mezo" else {"rank": 4}
    opt = OPTIMIZERS[name].optimizer(params, OPTIMIZERS[name].config(**settings), lr=1e-3, seed=0)
    drawn.clear()
    moves = opt.forwards_per_step - (not opt.config.two_sided) + 1
    opt.step(lambda: float(weight.square().mean()))
    if name == "mezo":
        assert sum(drawn) == moves * weight.numel()
    else:
        assert 0 < sum(drawn) <= moves * 4 * (64 + 48) + 4 * (64 + 48)
        assert max(drawn) <= 4 * 64


class Words(nn.Module):
    """An embedding, a norm and two linear layers, of random weights that are the same each time."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(30, 8), nn.LayerNorm(8)
        self.middle, self.out = nn.Linear(8, 6), nn.Linear(6, 3)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in self.parameters():
                p.normal_(0, 0.3, generator=generator)
        self.ids = torch.randint(0, 30, (4, 5), generator=generator)

    def forward(self) -> Tensor:
        return self.out(torch.tanh(self.middle(self.norm(self.table(self.ids)))))


def trained(name: str, restore: str, dtype: torch.dtype, **settings) -> list[Tensor]:
    """The weights after three steps."""
    model = Words().to(dtype).eval()
    params = ParameterSpace.of(model, restore, "philox")
    config = OPTIMIZERS[name].config(
        **{"interval": 2, **settings} if "interval" in vars(OPTIMIZERS[name].config()) else settings
    )
    opt = OPTIMIZERS[name].optimizer(params, config, lr=1e-3, seed=3)
    target = torch.arange(20) % 3

    @torch.no_grad()
    def loss() -> float:
        return nn.functional.cross_entropy(model().float().flatten(0, 1), target).item()

    for _ in range(3):
        opt.step(loss)
    params.fold()
    return [p.detach() for p in model.parameters()]


NEW = list(dict.fromkeys(name for name, *_ in CASES if name != "mezo"))


@pytest.mark.parametrize("name", NEW)
def test_streamed_probes_are_those_of_snapshot(name):
    dtype = (torch.float32, torch.bfloat16, torch.float16)[NEW.index(name) % 3]
    pairs = zip(trained(name, "streamed", dtype), trained(name, "snapshot", dtype), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("lozo_m", {}), ("subzero", {"rank": 3}), ("tezo", {}), ("tezo", {"variant": "momentum"})],
)
def test_low_rank_methods_run_with_factors(name, settings):
    """Both probes in one matrix, updates added up in A and folded: the weights of snapshot but for rounding."""
    pairs = zip(
        trained(name, "factors", torch.float32, **settings),
        trained(name, "snapshot", torch.float32, **settings),
        strict=True,
    )
    for p, q in pairs:
        torch.testing.assert_close(p, q, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "settings"), [("zo_muon", {}), ("tezo", {"variant": "adam"}), ("fzoo", {})]
)
def test_factors_is_refused_where_a_move_is_not_of_low_rank(name, settings):
    with pytest.raises(
        ValueError, match="factors needs a method whose directions are all of low rank"
    ):
        trained(name, "factors", torch.float32, **settings)
