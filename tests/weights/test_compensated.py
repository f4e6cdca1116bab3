"""Updates whose rounding is compensated: θ and what it lost are, together, the float32 weights, bit for bit."""

import pytest
import torch
from torch import Tensor, nn

from tests.noise.test_philox import same_bits
from tests.support.pairwise import rotated
from tests.support.quadratic import ZEROTH_ORDER
from zo.noise import NOISES, PERTURBATION, ROUNDING, NoiseKey, engine
from zo.optim import OPTIMIZERS
from zo.weights.directions import Gaussian
from zo.weights.space import ParameterSpace

HALVES = [torch.bfloat16, torch.float16]
KEY = NoiseKey(seed=5, stream=ROUNDING, step=0, direction=0)
SETTINGS = {"mezo_adam": {"state_dtype": "float32"}, "hizoo": {"state_dtype": "float32"}}
SETTINGS["zo_momentum"] = {"state_dtype": "float32"}
DECAYING = [name for name in ZEROTH_ORDER if not name.startswith("bszo")]


def gaussian(noise: str, step: int = 0) -> Gaussian:
    return Gaussian(NoiseKey(5, PERTURBATION, step, 0), engine(noise))


class Bowl:
    """½ ‖θ − t‖² of a matrix and a bias that does not decay, in float64."""

    def __init__(self, dtype: torch.dtype, restore: str, noise: str, rounding: str):
        generator = torch.Generator().manual_seed(3)
        start = [torch.randn(shape, generator=generator) for shape in ((6, 5), (9,))]
        self.target = [p.double() + 0.1 for p in start]
        named = [(n, p.to(dtype)) for n, p in zip(("w", "b"), start, strict=True)]
        self.params = ParameterSpace(named, restore, ("b",), noise, rounding)

    def __call__(self) -> float:
        pairs = zip(self.params.tensors, self.target, strict=True)
        return sum(float(((p.double() - t) ** 2).sum()) for p, t in pairs) / 2

    def masters(self) -> list[Tensor]:
        """p + c, float32."""
        residuals = self.params.residuals
        assert residuals is not None
        return [p.float() + c for p, c in zip(self.params.tensors, residuals, strict=True)]


def optimizer(name: str, loss: Bowl, **settings):
    config = OPTIMIZERS[name].config(**{"eps": 1e-2, **SETTINGS.get(name, {}), **settings})
    return OPTIMIZERS[name].optimizer(loss.params, config, lr=1e-3, seed=0)


@pytest.mark.parametrize(
    ("rounding", "noise"),
    [("nearest", "philox"), ("compensated", "philox"), ("compensated", "torch")],
)
def test_two_thousand_updates_of_a_millionth_arrive_only_if_compensated(noise, rounding):
    """θ = 1 in bfloat16: to nearest it never moves; compensated it is the float32 sum, rounded once."""
    one = torch.ones(512)
    half = ParameterSpace([("w", one.bfloat16())], noise=noise, rounding=rounding)
    full = ParameterSpace([("w", one.clone())], noise=noise)
    for _ in range(2000):
        for space in (half, full):
            space.add_([(1e-6, gaussian(noise))], 0.0, KEY)
    (p,), (expected,) = half.tensors, full.tensors
    if rounding == "nearest":
        assert p.eq(1).all()
        return
    assert same_bits(p, expected.bfloat16())
    assert p.ne(1).float().mean() > 0.15  # below z = -0.98 or above 1.95: 19 %
    assert half.residuals is not None
    assert same_bits(p.float() + half.residuals[0], expected)


VARIANTS = [
    *((name, {}) for name in ZEROTH_ORDER),
    *((name, {"weight_decay": 0.1}) for name in DECAYING),
    ("mezo", {"n": 3}),
]


@pytest.mark.parametrize(("variant", "dtype", "noise"), rotated(VARIANTS, HALVES, NOISES), ids=str)
def test_with_an_exact_restore_it_is_mixed_precision_training(variant, dtype, noise):
    """p + c are the weights of a float32 run that is fed the same records, and p those weights rounded."""
    name, settings = variant
    loss = Bowl(dtype, "snapshot", noise, "compensated")
    opt, start = optimizer(name, loss, **settings), loss.masters()
    records = [opt.step(loss).record for _ in range(15)]
    full = Bowl(torch.float32, "snapshot", noise, "nearest")
    for p, q in zip(full.params.tensors, start, strict=True):
        p.copy_(q)
    replayed = optimizer(name, full, **settings)
    for record in records:
        replayed.advance(record)
    for p, master, expected in zip(
        loss.params.tensors, loss.masters(), full.params.tensors, strict=True
    ):
        assert same_bits(master, expected)
        assert same_bits(p, expected.to(dtype))


@pytest.mark.parametrize(
    ("name", "restore", "noise"), rotated(ZEROTH_ORDER, ["subtract", "merged"], NOISES)
)
def test_a_drifting_restore_drifts_and_the_update_is_exact(name, restore, noise):
    """Where the probes left p, p + c moves as float32 weights would, from there, by the same record."""
    loss = Bowl(torch.bfloat16, restore, noise, "compensated")
    opt, start, drifted = optimizer(name, loss), loss.masters(), False
    for _ in range(10):
        full = Bowl(torch.float32, "snapshot", noise, "nearest")
        twin = optimizer(name, full)
        state = opt.state_dict()
        before = [p.clone() for p in loss.params.tensors]
        advance = opt.advance

        def watched(record, advance=advance, full=full, before=before):
            nonlocal drifted
            loss.params.settle()  # the way back that merged owes, rounded for itself
            drifted |= not all(map(torch.equal, before, loss.params.tensors))
            for p, master in zip(full.params.tensors, loss.masters(), strict=True):
                p.copy_(master)
            advance(record)

        opt.advance = watched
        record = opt.step(loss).record
        opt.advance = advance
        twin.load_state_dict({**state, "residual": None})
        twin.advance(record)
        for master, expected in zip(loss.masters(), full.params.tensors, strict=True):
            assert same_bits(master, expected)
    assert drifted
    assert not all(map(torch.equal, start, loss.masters()))


@pytest.mark.parametrize("restore", ["subtract", "merged"])
@pytest.mark.parametrize("noise", NOISES)
def test_a_probe_and_an_update_of_nothing_leave_the_residual_alone(restore, noise):
    """c is three quarters of the unit below 1, to which the way back leads: rounding p + c again would move p."""
    space = ParameterSpace([("w", torch.ones(64).bfloat16())], restore, (), noise, "compensated")
    assert space.residuals is not None
    (c,), (p,) = space.residuals, space.tensors
    c.fill_(0.75 * 2.0**-8)
    p.fill_(1 - 2.0**-8)
    was, z = c.clone(), gaussian(noise)
    with space.excursion() as probe:
        probe.to([(2.0**-12, z)])  # lost to nearest, each time
    space.add_([], 0.0, KEY)
    space.settle()
    assert same_bits(c, was)
    assert p.eq(1 - 2.0**-8).all()


@pytest.mark.parametrize("noise", NOISES)
def test_streamed_probes_lead_to_the_same_bits_as_snapshot(noise):
    weights, residuals = [], []
    for restore in ("snapshot", "streamed"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)).bfloat16()
        space = ParameterSpace.of(model, restore, noise, "compensated")
        x = torch.linspace(-1, 1, 12).view(2, 6).bfloat16()
        method = OPTIMIZERS["mezo"]
        config = method.config(eps=1e-2, weight_decay=0.1)
        opt = method.optimizer(space, config, lr=1e-3, seed=1)

        def loss(model=model, x=x) -> float:
            with torch.no_grad():
                return float(model(x).float().square().mean())

        for _ in range(10):
            opt.step(loss)
        assert space.residuals is not None
        weights.append(space.tensors)
        residuals.append(space.residuals)
    assert all(map(same_bits, *weights))
    assert all(map(same_bits, *residuals))
    assert any(c.ne(0).any() for c in residuals[0])


@pytest.mark.parametrize(
    ("dtype", "restore", "says"),
    [
        (torch.float32, "subtract", "float32, in which updates are computed"),
        (torch.bfloat16, "factors", "adds updates up in float32"),
    ],
)
def test_a_space_refuses_what_cannot_be_compensated(dtype, restore, says):
    with pytest.raises(ValueError, match=f"rounding='compensated': .*{says}"):
        ParameterSpace([("w", torch.ones(3, 3, dtype=dtype))], restore, rounding="compensated")
