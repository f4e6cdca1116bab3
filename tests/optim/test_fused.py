"""HiZOO's and Adam's updates in one pass: compiled and not, the same bits; and what today's separate passes give."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from tests.noise.test_philox import OTHERS
from tests.support.quadratic import DTYPES, same
from zo.noise import PERTURBATION, ROUNDING, NoiseKey
from zo.noise.reference import NumpyEngine
from zo.optim import OPTIMIZERS
from zo.optim.hizoo import HiZOOScalars, HiZOOUpdate
from zo.optim.mezo_adam import AdamScalars, AdamUpdate
from zo.weights.directions import Gaussian, Preconditioned, Rademacher
from zo.weights.space import ParameterSpace
from zo.weights.updates import ParameterUpdate, Rounding, UpdateTarget

SIZE = 2600  # three chunks of a compiled pass, the last one not full
KEYS = [NoiseKey(11, PERTURBATION, 4, j) for j in range(3)]
BITS = NoiseKey(11, ROUNDING, 4, 0)
KINDS = [*itertools.product(DTYPES, ["param", "float32"]), (torch.float32, "half")]
"""Of θ and state; state narrower than what is moved is compensated rounding's, which moves p + c."""

MOVES = list(itertools.product([None, 0.03], [0.0, 0.25], [False, True]))


def values(seed: int, dtype: torch.dtype, positive: bool = False) -> Tensor:
    made = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))
    return ((made.abs() + 0.1) if positive else made).to(dtype)


def moved_by(engine, kind, pending, decay, at_random, on="cpu") -> list[Tensor]:
    """θ and state after HiZOO's pass, after Adam's along a direction, and along three of signs."""
    dtype, state = kind
    kept = {"param": dtype, "float32": torch.float32, "half": torch.bfloat16}[state]
    rounding = Rounding(engine, BITS) if at_random and dtype != torch.float32 else None
    found = []
    for count, direction in ((0, Gaussian), (1, Gaussian), (3, Rademacher)):
        at = UpdateTarget(values(1, dtype).to(on), 3, decay, rounding)
        m, v = {3: values(3, kept).to(on)}, {3: values(4, kept, positive=True).to(on)}
        z = [direction(key, engine) for key in KEYS]
        if count:
            scalars = AdamScalars(0.9, 0.99, 0.3, 0.4, 1e-3, -0.02)
            gradient = [(0.7 - j, z_j) for j, z_j in enumerate(z[:count])]
            update, along = AdamUpdate(gradient, m, v, scalars), z[count - 1]
        else:
            scalars = HiZOOScalars(-0.02, 0.3, 0.1, 0.02, state == "float32")
            update, along = HiZOOUpdate(z[0], v, scalars), Preconditioned(z[0], v)
        update.kernel(at, [(pending, along)] if pending else [])()
        found += [at.p.cpu(), m[3].cpu(), v[3].cpu()]
    return found


@pytest.mark.process
@pytest.mark.parametrize(("compiled", "on"), OTHERS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_compiled_passes_are_the_reference_bit_for_bit(compiled, on, kind):
    for move in MOVES:
        assert same(moved_by(compiled, kind, *move, on), moved_by(NumpyEngine(), kind, *move))


FUSED = [
    *(("hizoo", {"hessian_smooth": 0.1, "weight_decay": 0.1}, "param", dtype) for dtype in DTYPES),
    ("hizoo", {"hessian_smooth": 0.1}, "float32", torch.float16),
    ("mezo_adam", {"adam_eps": 1e-3}, "param", torch.float32),
    ("mezo_adam", {}, "param", torch.bfloat16),
    ("mezo_adam", {"n": 3, "weight_decay": 0.1}, "float32", torch.bfloat16),
    ("mezo_adam", {"n": 2, "directions": "rademacher"}, "float32", torch.float32),
]


@pytest.mark.parametrize(("name", "settings", "state_dtype", "dtype"), FUSED, ids=str)
def test_one_pass_is_several_within_a_rounding(name, settings, state_dtype, dtype, monkeypatch):
    """Separate operations may round a product and a sum together: a unit of float32 apart, for which a value of half
    precision that lies near a tie, fewer than one in a hundred, goes to the other side. HiZOO's products of H are taken
    one after another in its own dtype, as the released code does: bit for bit.
    """
    runs = []
    for _ in range(2):
        params = ParameterSpace([("w", values(1, dtype))], noise="philox")
        config = OPTIMIZERS[name].config(state_dtype=state_dtype, eps=1e-2, **settings)
        opt = OPTIMIZERS[name].optimizer(params, config, lr=1e-2, seed=5)
        for seed, (which, (tensor,)) in enumerate(opt.state.items()):
            tensor.copy_(values(7 + seed, torch.float32, positive=which != "m").to(tensor.dtype))
        before = [params.local[0].clone(), *(t.clone() for (t,) in opt.state.values())]
        opt.advance((0.7, 2e-4) if name == "hizoo" else (0.7, -0.4, 0.2)[: opt.config.n])
        runs.append([params.local[0], *(t for (t,) in opt.state.values())])
        for change in (HiZOOUpdate, AdamUpdate):
            monkeypatch.setattr(change, "along", ())
            monkeypatch.setattr(change, "change", ParameterUpdate.change)
    for was, one, several in zip(before, *runs, strict=True):
        assert not torch.equal(one, was)
        unit = torch.finfo(was.dtype).eps * ((name, state_dtype) != ("hizoo", "param"))
        torch.testing.assert_close(several, one, rtol=4 * unit, atol=unit)
        if was.dtype != torch.float32:
            assert (one != several).float().mean() < 0.01


COMPILED = """
import re, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tests.noise.test_philox import BITS, KEY, program
from zo.noise.cuda import passes, programs
from zo.noise.cuda.engine import BLOCK, PROGRAM_BLOCK, steps_of
from zo.noise.program import Program

def show(kernel, types, dtype, fixed, fuses=False):
    fixed = {name: value for name, value in fixed.items() if name in kernel.arg_names}
    types = {name: types.get(name) for name in kernel.arg_names} | dict.fromkeys(fixed, "constexpr")
    compiled = triton.compile(
        ASTSource(kernel, types, fixed), target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    found = set(re.findall(r"^\\s+([a-z0-9_.]+)\\s", compiled.asm["ptx"], re.M))
    assert not [op for op in found if "approx" in op]
    assert fuses == bool([op for op in found if op.startswith("fma")])
    wanted = ["mul.rn.f32", "sqrt.rn.f32", "div.rn.f32"] + ["cvt.rn.bf16"] * (dtype == "bf16")
    assert all(any(one.startswith(op) for one in found) for op in wanted), (found, wanted)

def show_pass(dtype, **fixed):
    types = dict.fromkeys(passes.run.arg_names, "i32") | dict.fromkeys(("rows", "table", "places"), "*i64")
    types |= dict.fromkeys(("out", "theta", "scale", "limit"), "*" + dtype) | {"keep": "fp32"}
    switches = {"SIGNS": False, "AT_RANDOM": False, "PENDING": True, "ONE": False, "KEEPS": True}
    show(passes.run, types, dtype, {**switches, "LEVELS": 9, "BLOCK": BLOCK, **fixed})

def show_program(dtype, program, fuses):
    kinds = ({"fp32": 0, "bf16": 1, "fp16": 2}[dtype], 0, 0, 0)
    fixed = {"STEPS": steps_of(program), "KINDS": kinds, "WIDE": bool(program.signs)}
    fixed |= {"LEVELS": 9, "BLOCK": PROGRAM_BLOCK}
    show(programs.run, dict.fromkeys(("places", "table"), "*i64"), dtype, fixed, fuses)

show_pass("bf16", places=None)
show_pass("bf16")
show_pass("fp16", AT_RANDOM=True)
show_pass("fp32", rows=None)
show_pass("bf16", SIGNS=True)
show_program("fp16", program(BITS), True)
plain = Program()
z = plain.draw(KEY)
plain.write(0, plain.read(0).plus(z.mul(z).div(plain.read(1).sqrt()), 0.3))
show_program("bf16", plain, False)
"""


@pytest.mark.process
def test_the_kernels_compile_for_a_gpu_and_fuse_only_what_a_program_fuses():
    """For Hopper, whether or not one is here; and the cast to bfloat16 rounds to nearest."""
    pytest.importorskip("triton")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr.decode()
