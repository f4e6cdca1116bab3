"""Counter-based noise: the published words, the same bits from every engine, whatever part is drawn and by whom."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import zo.noise.registry
from tests.support.pairwise import pairwise, rotated
from zo.noise import PERTURBATION, ROUNDING, NoiseKey, PhiloxEngine, engine, philox
from zo.noise.reference import NumpyEngine
from zo.weights.directions import Gaussian, LowRank, Masked, Preconditioned, Rademacher, fused
from zo.weights.updates import add_

KEY = NoiseKey(seed=-7, stream=PERTURBATION, step=3, direction=1)
KEYS = [KEY._replace(direction=i) for i in range(4)]
BITS = NoiseKey(seed=-7, stream=ROUNDING, step=3, direction=0)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EDGES = [0, 1, 2, 3, 2**24, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 3 * 2**30, 2**32 - 2, 2**32 - 1]

# Counter, key and result of philox4x32 with 10 rounds in Random123's file of known answers, kat_vectors.
PUBLISHED = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]

NUMPY = NumpyEngine()


def engines() -> list:
    """Those that can be had here; Triton's runs compiled where there is a GPU, and else through its interpreter."""
    found = [pytest.param(NUMPY, "cpu", id="numpy")]
    if importlib.util.find_spec("numba"):
        found.append(pytest.param(engine("philox"), "cpu", id="numba"))
    if importlib.util.find_spec("triton"):
        from zo.noise.cuda import TritonEngine

        device = "cuda" if torch.cuda.is_available() else "cpu"
        found.append(pytest.param(TritonEngine(), device, id="triton"))
    return found


ENGINES = engines()
OTHERS = ENGINES[1:]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, but for what a nan carries."""
    a, b = a.cpu(), b.cpu()
    whole = {2: torch.int16, 4: torch.int32}[a.element_size()]
    equal = (a.view(whole) == b.view(whole)) | (a.isnan() & b.isnan())
    return a.dtype == b.dtype and bool(equal.all())


def some(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED, ids=["zeros", "ones", "pi"])
def test_words_are_the_published_ones(counter, key, expected):
    assert philox.philox(np.array([counter]), tuple(key)).tolist() == [expected]
    cpu = pytest.importorskip("zo.noise.cpu.draws", exc_type=ImportError)
    out = np.zeros(4, np.uint32)
    cpu.draw_words(out, counter[0], 1, np.array([*key, *counter[1:]], np.uint32))
    assert out.tolist() == expected


def test_position_and_key_stand_where_they_are_documented():
    low, high = 0x89ABCDEF, 0x01234567
    key = NoiseKey(seed=high << 32 | low, stream=2, step=5, direction=6)
    counters = np.array([[7, 2 * 2**24 + 9, 5, 6], [8, 2 * 2**24 + 9, 5, 6]])
    expected = philox.philox(counters, (low, high)).reshape(-1)
    assert philox.words(key, 9, 4 * 7, 8).tolist() == expected.tolist()
    assert philox.words(key, 9, 4 * 7 + 3, 2).tolist() == expected[3:5].tolist()


def test_normals_are_those_of_box_muller_in_float64():
    """Within 1e-6, also where the words are extreme."""
    words = philox.words(KEY, 0, 0, 400_000).reshape(-1, 2)
    words = np.concatenate([words, [(a, b) for a in EDGES for b in EDGES]]).astype(np.uint32)
    a, b = philox.box_muller(words[:, 0], words[:, 1])
    w0 = words[:, 0].astype(np.float32).astype(np.float64)  # a uniform number has 24 bits
    u = np.where(words[:, 0] < 2**24, words[:, 0] + 0.5, w0) / 2**32
    quadrant, rest = words[:, 1] >> 30, (words[:, 1] << np.uint32(2)).view(np.int32)
    angle = np.pi / 2 * (quadrant + rest / 2**32)
    r = np.sqrt(-2 * np.log(u))
    assert np.abs(a - r * np.cos(angle)).max() < 1e-6
    assert np.abs(b - r * np.sin(angle)).max() < 1e-6
    assert max(abs(a).max(), abs(b).max()) == pytest.approx(np.sqrt(66 * np.log(2)), abs=1e-6)


def test_compiled_normals_of_extreme_words_have_the_same_bits():
    """Among them u = 1, whose normals are zeros with a sign."""
    cpu = pytest.importorskip("zo.noise.cpu.draws", exc_type=ImportError)
    w = np.array([(a, b) for a in EDGES for b in EDGES], np.uint32)
    drawn, words = np.empty(cpu.CHUNK, np.float32), np.zeros((2, cpu.CHUNK // 2), np.uint32)
    words[:, : len(w)] = w.T
    cpu._normals_of_pairs(drawn, words[0], words[1], len(w), None)
    expected = np.stack(philox.box_muller(w[:, 0], w[:, 1]), axis=1).reshape(-1)
    assert drawn[: 2 * len(w)].view(np.uint32).tolist() == expected.view(np.uint32).tolist()


def test_normals_follow_the_normal_distribution():
    """Kolmogorov and Smirnov's test of each of a block's four, and of sums and differences of any two."""
    z = philox.normals(KEY, 0, 0, 1_000_000).reshape(-1, 4).astype(np.float64)
    pairs = [z[:, i] + sign * z[:, j] for i in range(4) for j in range(i) for sign in (1, -1)]
    for sample in [*z.T, *(pair / np.sqrt(2) for pair in pairs)]:
        assert stats.kstest(sample, "norm").pvalue > 1e-3
    many = np.abs(philox.normals(KEY, 1, 0, 4_000_000))
    for bound in (3.0, 4.0, 4.5):
        expected = 2 * stats.norm.sf(bound) * many.size
        assert abs((many > bound).sum() - expected) < 5 * np.sqrt(expected)


@pytest.mark.parametrize(("other", "device"), OTHERS)
@pytest.mark.parametrize("draw", ["normal_", "rademacher_"])
def test_engines_draw_the_same_bits(other, device, draw):
    for start in (0, 3, 127, 128, 2**33 + 5, 2**34 - 2100):
        drawn = getattr(other, draw)(torch.empty(2100, device=device), KEY, 5, start)
        assert same_bits(drawn, getattr(NUMPY, draw)(torch.empty(2100), KEY, 5, start))


@pytest.mark.parametrize(("drawer", "device"), ENGINES)
@pytest.mark.parametrize("draw", ["normal_", "rademacher_"])
def test_any_part_is_that_part_of_the_whole(drawer, device, draw):
    """What a shard of a tensor draws, or the rows of an embedding; and what is added to zeros."""
    make, signs = getattr(drawer, draw), draw == "rademacher_"
    whole = make(torch.empty(5000, device=device), KEY, 2)
    starts = [*range(5), 31, 127, 128, 1023, 1025, *range(2046, 2050), 4096, 4999]
    for start in starts[:6] if interpreted(drawer) else starts:  # which takes its time
        for count in (1, 3, 2047, 2051):
            part = torch.empty(min(count, 5000 - start), device=device)
            inside = whole[start : start + len(part)]
            assert torch.equal(make(part, KEY, 2, start), inside)
        zeros, given = torch.zeros_like(part), {"start": start, "signs": signs}
        assert torch.equal(drawer.add_(part, zeros, 2, [(1.0, KEY)], **given), inside)
    rows = torch.tensor([3, 49, 0, 3], device=device)
    drawn = make(torch.empty(4, 37, device=device), KEY, 2, rows=rows)
    assert torch.equal(drawn, whole[: 50 * 37].view(50, 37)[rows])


@pytest.mark.parametrize(("other", "device"), OTHERS)
@pytest.mark.parametrize(
    ("sums", "limit", "back", "signs", "at_random", "where"),
    rotated(
        pairwise(DTYPES, [None, "own", "float32"], [0, 1, 8]),
        *([None, 0.5], [False, True], [False, True], [False, True], ["in place", "start", "rows"]),
    ),
    ids=str,
)
def test_engines_add_the_same_bits(other, device, sums, limit, back, signs, at_random, where):
    """Sums of directions over √H, below a limit of |θ|, a way back before them, decay, rounding at random."""
    dtype, scaled, directions = sums
    if interpreted(other) and dtype == torch.bfloat16:
        dtype = torch.float16  # the interpreter's cast cuts off; of a GPU's, see what is compiled
    theta = some((60, 37), dtype)
    theta.view(-1)[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3e-8])
    scale = some((60, 37), torch.float32, 1).square().add(0.01)
    scale = None if scaled is None else scale.to(dtype if scaled == "own" else torch.float32)
    limit = None if limit is None else torch.tensor(limit, dtype=dtype)
    terms = [(0.3 * (-0.9) ** j, KEY._replace(direction=j)) for j in range(directions)]
    pending = [(-0.2, KEYS[2]), (0.05, KEYS[0])] if back and limit is None else ()
    rounding = BITS if at_random and dtype != torch.float32 else None

    def added(drawer, on):
        theta_on, scale_on, limit_on = (
            None if t is None else t.clone().to(on) for t in (theta, scale, limit)
        )
        rows = torch.tensor([3, 59, 0, 3], device=on) if where == "rows" else None
        out = theta_on if where == "in place" else torch.empty_like(theta_on)
        out = out[: len(rows)].clone() if rows is not None else out
        start = 77 if where == "start" else 0
        given = 5, terms, 0.25, start, scale_on, rounding, rows, pending, signs
        return drawer.add_(out, theta_on, *given, limit=limit_on)

    expected = added(NUMPY, "cpu")
    assert same_bits(added(other, device), expected)
    if limit is not None and where != "rows":
        alone, limit = (NUMPY.add_(torch.empty_like(theta), theta, 5, [], 0.25), limit), None
        every = added(NUMPY, "cpu")
        small = theta.abs() <= alone[1]
        assert rounding or same_bits(expected, torch.where(small, every, alone[0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_move_and_its_way_back_are_one_pass_as_they_are_two(dtype):
    """Whether or not they share a direction; also of some rows."""
    theta, back = some((30, 100), dtype), [(-0.2, KEYS[2]), (0.05, KEYS[0])]
    rows = torch.tensor([3, 29, 0])
    for terms in ([], [(0.3, KEYS[0])], [(0.3, KEYS[1]), (0.1, KEYS[2])]):
        once = NUMPY.add_(theta.clone(), theta.clone(), 4, back)
        twice = NUMPY.add_(once, once, 4, terms, 0.25)
        got = NUMPY.add_(torch.empty_like(theta), theta, 4, terms, 0.25, pending=back)
        assert torch.equal(got, twice)
        some_rows = torch.empty_like(theta[rows])
        NUMPY.add_(some_rows, theta, 4, terms, 0.25, pending=back, rows=rows)
        assert torch.equal(some_rows, twice[rows])


def interpreted(drawer: PhiloxEngine) -> bool:
    return type(drawer).__name__ == "TritonEngine" and not torch.cuda.is_available()


@pytest.mark.parametrize(("other", "device"), OTHERS)
@pytest.mark.parametrize(
    ("dtypes", "signs", "rounding", "apart"),
    [
        (3 * [torch.float32], True, None, True),
        (3 * [torch.float16], False, BITS, False),
        (DTYPES[::2] + DTYPES[:1], False, None, False),
    ],
    ids=str,
)
def test_all_tensors_are_moved_as_one_by_one(
    other, device, dtypes, signs, rounding, apart, monkeypatch
):
    """In three threads, whose parts begin and end anywhere; in one launch, but for a large one; of several dtypes."""
    if type(other).__name__ == "TritonEngine":
        monkeypatch.setattr("zo.noise.cuda.ALONE", 5000)
    large = (41, 100) if interpreted(other) else (400, 500)
    moved, before = [], torch.get_num_threads()
    terms, back = [(0.5, KEYS[1]), (-0.25, KEYS[2])], [(0.1, KEYS[3])]
    try:
        torch.set_num_threads(3)
        for drawer, on in ((other, device), (NUMPY, "cpu")):
            given = zip([(3,), large, (7001,)], dtypes, strict=True)
            tensors = [some(*of, i).to(on) for i, of in enumerate(given)]
            out = [torch.empty_like(t) for t in tensors] if apart else None
            drawer.add_to_all_(tensors, terms, [0.0, 0.25, 0.5], rounding, back, signs, out)
            moved.append(out or tensors)
    finally:
        torch.set_num_threads(before)
    assert all(map(same_bits, *moved))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(threads):
    drawer, theta = engine("philox"), some((700, 601), torch.bfloat16)
    terms, rows = [(0.1, KEY)], torch.arange(699, -1, -3)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        drawn = drawer.normal_(torch.empty(420_700), KEY, 0, start=1)
        signs = drawer.rademacher_(torch.empty(420_700), KEY, 0)
        added = drawer.add_(torch.empty_like(theta), theta, 0, terms)
        some_rows = torch.empty(len(rows), 601, dtype=theta.dtype)
        drawer.add_(some_rows, theta, 0, terms, rows=rows)
    finally:
        torch.set_num_threads(before)
    assert same_bits(drawn, NUMPY.normal_(torch.empty(420_700), KEY, 0, start=1))
    assert same_bits(signs, NUMPY.rademacher_(torch.empty(420_700), KEY, 0))
    assert same_bits(added, NUMPY.add_(torch.empty_like(theta), theta, 0, terms))
    assert same_bits(some_rows, added[rows])


@pytest.mark.process
def test_a_forked_process_draws_with_threads_of_its_own():
    """Its parent's are not there: whoever waited for them would wait for ever."""
    code = """
import os, torch
from zo.noise import NoiseKey, engine
torch.set_num_threads(2)
key = NoiseKey(1, 0, 0, 0)
expected = engine("philox").normal_(torch.empty(300_000), key, 0)
child = os.fork()
if child == 0:
    os._exit(0 if engine("philox").normal_(torch.empty(300_000), key, 0).equal(expected) else 1)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "0\n", done.stderr


def sequential(theta: Tensor, terms, decay: float = 0.0) -> Tensor:
    """(1 − decay) θ + Σ c_j z_j in float32, every product and every sum rounded, then to θ's dtype."""
    total = theta.float().numpy() * np.float32(1.0 - decay)
    for c, key in terms:
        total = total + np.float32(c) * philox.normals(key, 5, 0, theta.numel())
    return torch.from_numpy(total).to(theta.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_fused_sum_is_the_sequential_one_in_the_order_of_its_terms(dtype):
    theta, terms = some((4001,), dtype), [(0.3, KEYS[0]), (-0.7, KEYS[1]), (1e-3, KEYS[2])]
    fused_sum = engine("philox").add_(torch.empty_like(theta), theta, 5, terms, 0.1)
    assert same_bits(fused_sum, sequential(theta, terms, 0.1))
    backwards = engine("philox").add_(torch.empty_like(theta), theta, 5, terms[::-1], 0.1)
    assert same_bits(backwards, sequential(theta, terms[::-1], 0.1))
    assert dtype != torch.float32 or not same_bits(fused_sum, backwards)


class Bare:
    """A direction that says nothing of its keys: its pass is not fused."""

    def __init__(self, z):
        self.z = z

    def sample(self, i: int, p: Tensor) -> Tensor:
        return self.z.sample(i, p)


def moved(theta: Tensor, terms) -> Tensor:
    out = torch.empty_like(theta)
    add_(out, theta, 5, terms)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_and_unfused_passes_agree(dtype):
    """Bit for bit where c z is exact, as for c = 2⁻ⁿ; else torch may round c z + θ once, not twice."""
    theta, z = some((4001,), dtype), Gaussian(KEY, engine("philox"))
    for c in (2.0**-10, -(2.0**-3)):
        assert same_bits(moved(theta, [(c, z)]), moved(theta, [(c, Bare(z))]))
    a, b = moved(theta, [(0.3, z)]), moved(theta, [(0.3, Bare(z))])
    unit = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]
    near = b.double().abs().clamp(min=0.3) * unit  # one unit in the last place, of the terms
    assert (a.double() - b.double()).abs().le(near).all()
    assert (a != b).double().mean() < {torch.float32: 0.5, torch.bfloat16: 1e-3}.get(dtype, 2e-3)


def test_preconditioned_passes_agree():
    """Bit for bit where √H is exact too: torch's own root may be a unit in the last place off."""
    theta, h = some((40, 100), torch.float32), some((40, 100), torch.float32, 1).square().add(0.1)
    for scale, exact in ((h.mul(8).ceil().square(), True), (h, False)):
        z = Preconditioned(Gaussian(KEY, engine("philox")), [torch.empty(0)] * 5 + [scale])
        a, b = moved(theta, [(2.0**-8, z)]), moved(theta, [(2.0**-8, Bare(z))])
        assert same_bits(a, b) or not exact
        torch.testing.assert_close(a, b, rtol=2.0**-23, atol=2.0**-30)


def test_what_is_fused_is_of_one_distribution_one_engine_and_one_h():
    drawer = engine("philox")
    z, sign = [Gaussian(key, drawer) for key in KEYS], Rademacher(KEY, drawer)
    h, g = [torch.ones(3)], [torch.ones(3)]
    found = fused([(0.5, z[0]), (0.25, z[1])], h[0])
    assert (found.engine, found.h) == (drawer, None)
    assert found.terms == [(0.5, KEYS[0]), (0.25, KEYS[1])]
    assert fused([(1.0, Preconditioned(z[0], h)), (1.0, Preconditioned(z[1], h))], h[0]).h is h
    assert [fused([(1.0, part)], h[0]).signs for part in (z[0], sign)] == [False, True]
    assert fused([(1.0, Masked(sign, h)), (1.0, Masked(sign, h))], h[0]).limits is h
    low_rank = LowRank(KEY, KEY._replace(stream=1), rank=1, engine=drawer)
    for terms in (
        [],
        [Gaussian(KEY)],  # torch's generator
        [z[0], Gaussian(KEY)],
        [z[0], low_rank],
        [z[0], sign],
        [z[0], Preconditioned(z[1], h)],
        [Preconditioned(z[0], g), Preconditioned(z[1], h)],
        [Preconditioned(low_rank, h)],
        [Masked(z[0], g), Masked(z[1], h)],
        [Bare(z[0])],
    ):
        assert fused([(1.0, part) for part in terms], h[0]) is None
    assert fused([(1.0, z[0])], torch.ones(3, dtype=torch.int8)) is None


def test_what_does_not_fit_is_refused():
    drawer, z, w = engine("philox"), torch.empty(8), torch.zeros(4, 2)
    for key, tensor, start, name in [
        (KEY, 2**24, 0, "tensor"),
        (KEY, -1, 0, "tensor"),
        (KEY._replace(stream=256), 0, 0, "stream"),
        (KEY._replace(step=2**32), 0, 0, "step"),
        (KEY._replace(direction=-1), 0, 0, "direction"),
        (KEY, 0, -1, "positions"),
        (KEY, 0, 2**34 - 7, "positions"),
    ]:
        with pytest.raises(ValueError, match=name):
            drawer.normal_(z, key, tensor, start)
    with pytest.raises(ValueError, match="float32"):
        drawer.normal_(z.bfloat16(), KEY, 0)
    with pytest.raises(ValueError, match="out: must be"):
        drawer.add_(z.bfloat16(), z, 0, [])
    with pytest.raises(ValueError, match="shape"):
        drawer.add_(z, z[:7], 0, [])
    with pytest.raises(ValueError, match="scale"):
        drawer.add_(z, z, 0, [], scale=z[:7])
    for rows in ([4], [-1]):
        with pytest.raises(ValueError, match="rows"):
            drawer.add_(torch.empty(1, 2), w, 0, [], rows=torch.tensor(rows))
    with pytest.raises(ValueError, match="noise"):
        engine("dice")
    with pytest.raises(ValueError, match="mps"):
        engine("philox", "mps")


def test_without_numba_numpy_draws_the_same_and_says_so(monkeypatch):
    expected = engine("philox").normal_(torch.empty(100), KEY, 0)
    engine.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(zo.noise.registry.importlib.util, "find_spec", lambda name: None)
        with pytest.warns(UserWarning, match="pip install"):
            drawer = engine("philox")
    engine.cache_clear()
    assert isinstance(drawer, NumpyEngine)
    assert drawer.backend == "philox-cpu"
    assert torch.equal(drawer.normal_(torch.empty(100), KEY, 0), expected)


@pytest.mark.process
def test_the_kernels_compile_for_a_gpu_without_a_fused_multiply_add():
    """For Hopper, whether or not one is here; and its cast to bfloat16 rounds to nearest."""
    pytest.importorskip("triton")
    code = """
import collections, re, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from zo.noise import cuda
def show(dtype, kernel, types, fixed):
    types |= dict.fromkeys(fixed, "constexpr")
    compiled = triton.compile(
        ASTSource(kernel, types, fixed), target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    ptx = collections.Counter(re.findall(r"^\\s+([a-z0-9_.]+)\\s", compiled.asm["ptx"], re.M))
    print(dtype, any(op.startswith("fma") or "approx" in op for op in ptx), ptx["mul.rn.f32"] > 99,
          any(op.startswith("cvt.rn.bf16") for op in ptx))
kinds = ("bf16", {}), ("fp16", {"AT_RANDOM": True}), ("fp32", {"rows": None}), ("bf16", {"SIGNS": True})
for dtype, extra in kinds:
    types = dict.fromkeys(("out", "theta", "scale", "limit"), "*" + dtype) | {"rows": "*i64", "table": "*i64"}
    types |= dict.fromkeys(("count", "pending", "tensor", "start", "width", "parts"), "i32") | {"keep": "fp32"}
    fixed = {"AT_RANDOM": False, "SIGNS": False, "BLOCK": cuda.BLOCK, **extra}
    show(dtype, cuda._pass, types, fixed)
types = {"like": "*bf16", "places": "*i64", "table": "*i64", **dict.fromkeys(("tensors", "count", "pending"), "i32")}
fixed = {"STEPS": 9, "AT_RANDOM": False, "SIGNS": False, "BLOCK": cuda.BLOCK}
show("bf16", cuda._pass_of_many, types, fixed)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env=without_interpreter(),
    )
    expected = ["bf16 False True True", "fp16 False True False", "fp32 False True False"]
    expected += ["bf16 False False True", "bf16 False True True"]
    assert done.stdout.splitlines() == expected, done.stderr


def without_interpreter() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
