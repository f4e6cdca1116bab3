"""Counter-based noise: the published words, the same bits from every engine, whatever part is drawn and by whom."""

import importlib.util

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.pairwise import pairwise, rotated
from zo.noise import PERTURBATION, ROUNDING, Move, NoiseKey, engine, philox
from zo.noise.program import Program
from zo.noise.reference import NumpyEngine
from zo.weights.directions import (
    Gaussian,
    LowRank,
    Masked,
    Preconditioned,
    Rademacher,
    Stored,
    fused,
)
from zo.weights.sharded import Part, PhiloxPartsEngine
from zo.weights.updates import add_

KEY = NoiseKey(seed=-7, stream=PERTURBATION, step=3, direction=1)
KEYS = [KEY._replace(direction=i) for i in range(4)]
BITS = NoiseKey(seed=-7, stream=ROUNDING, step=3, direction=0)
F32 = torch.float32
DTYPES = [F32, torch.bfloat16, torch.float16]
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
GPU = "cuda" if torch.cuda.is_available() else "cpu"  # where Triton's interpreter runs
ENGINES = [pytest.param(NUMPY, "cpu", id="numpy")]
if importlib.util.find_spec("numba"):
    ENGINES.append(pytest.param(engine("philox"), "cpu", id="numba"))
if importlib.util.find_spec("triton"):
    ENGINES.append(pytest.param(engine("philox", "cuda"), GPU, id="triton"))
OTHERS = ENGINES[1:]
SLOWLY = [  # Triton's interpreter
    pytest.param(*of.values, id=of.id, marks=[pytest.mark.process] * (of.id == "triton"))
    for of in OTHERS
]


@pytest.fixture(autouse=True)
def _three_threads(monkeypatch):
    """Also of small tensors: parts begin and end anywhere."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    if importlib.util.find_spec("numba"):
        monkeypatch.setattr("zo.noise.cpu.engine.ALONE", 50)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, but for what a nan carries."""
    a, b = a.cpu(), b.cpu()
    whole = {2: torch.int16, 4: torch.int32}[a.element_size()]
    equal = (a.view(whole) == b.view(whole)) | (a.isnan() & b.isnan())
    return a.dtype == b.dtype and bool(equal.all())


def some(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def program(bits: NoiseKey | None) -> Program:
    """Every operation, on tensors, state and factors of rank 5."""
    made = Program()
    x, m, z = made.read(0), made.read(1), made.draw(KEYS[0])
    signs, low_rank = made.draw(KEYS[1], signs=True), made.outer(2, 3, 5, 0.7)
    x = x.mul(made.keep()).add(z, alpha=0.3).plus(signs, 0.1).add(low_rank, alpha=-0.2)
    m = m.mul(0.9).rounded(1).add(x.sign(), alpha=0.2).addcmul(z, z, value=0.3)
    made.write(1, m)
    made.write(0, x.div(m.mul(m).add(0.1).sqrt()), bits)
    return made


@pytest.mark.skipif(
    not engine("philox").runs_programs, reason="torch rounds products before their sums"
)
@pytest.mark.parametrize(("other", "device"), SLOWLY)
@pytest.mark.parametrize("bits", [None, BITS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_program_gives_the_bits_of_the_reference_in_any_parts(other, device, dtype, bits):
    shapes, found = [(33, 41), (5,), (300, 7), (3, 5000), (1, 9), (40, 1)], []
    for drawer, on in ((other, device), (NUMPY, "cpu")):
        tensors, state = (
            [some(of, to, n).to(on) for of in shapes] for n, to in enumerate((dtype, F32))
        )
        left = [some((5, of[0]) if of[1:] else of, F32).to(on) for of in shapes]
        right = [some((5, of[1]) if of[1:] else (0,), F32).to(on) for of in shapes]
        lists, keeps = [tensors, state, left, right], np.linspace(0.5, 1, 6, dtype=np.float32)
        assert drawer.run(program(bits if dtype != F32 else None), lists, [4, 1, 0, 9, 2, 3], keeps)
        found.append(tensors + state)
    assert all(map(same_bits, *found))
    assert not drawer.run(program(None), [[of[0].mT] for of in lists], [0], keeps[:1])


@pytest.mark.skipif(
    not engine("philox").runs_programs, reason="torch rounds products before their sums"
)
@pytest.mark.parametrize(("other", "device"), ENGINES)
def test_a_program_updates_parts_of_sharded_tensors_as_in_the_whole(other, device):
    made, places = Program(), [(slice(0, 40), slice(20, 60)), (slice(10, 40), slice(0, 100))]
    made.write(0, made.read(0).add(made.draw(KEYS[0]), alpha=0.3).mul(made.read(1)), BITS)
    wholes, state = ([some((40, 100), torch.bfloat16, n + m) for n in (0, 1)] for m in (0, 2))
    lists = [
        [t[at].clone().to(device) for t, at in zip(of, places, strict=True)]
        for of in (wholes, state)
    ]
    parts = {i: Part(wholes[i].shape, at) for i, at in enumerate(places)}
    assert PhiloxPartsEngine(other, parts).run(made, lists, [0, 1], np.ones(2, np.float32))
    assert NUMPY.run(made, [wholes, state], [0, 1], np.ones(2, np.float32))
    assert all(map(same_bits, lists[0], (wholes[i][at] for i, at in enumerate(places))))


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED, ids=["zeros", "ones", "pi"])
def test_words_are_the_published_ones(counter, key, expected):
    assert philox.philox(np.array([counter]), tuple(key)).tolist() == [expected]


def test_position_and_key_stand_where_they_are_documented():
    low, high = 0x89ABCDEF, 0x01234567
    key = NoiseKey(seed=high << 32 | low, stream=2, step=5, direction=6)
    counters = np.array([[7, 2 * 2**24 + 9, 5, 6], [8, 2 * 2**24 + 9, 5, 6]])
    expected = philox.philox(counters, (low, high)).reshape(-1)
    assert philox.words(key, 9, 4 * 7, 8).tolist() == expected.tolist()
    assert philox.words(key, 9, 4 * 7 + 3, 2).tolist() == expected[3:5].tolist()


def test_normals_are_those_of_box_muller_in_float64():
    """Two normals of two words each, within 1e-6, also where the words are extreme."""
    words = philox.words(KEY, 0, 0, 400_000).reshape(-1, 2)
    pairs = np.stack(philox.box_muller(*words.T), axis=1)
    assert np.array_equal(philox.normals(KEY, 0, 0, 400_000), pairs.reshape(-1))
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


def counters_of(words: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """The counters, (n, 4), of which Philox makes these words: its rounds backwards."""
    c0, c1, c2, c3 = words.T.astype(np.uint64)
    back = [np.uint64(pow(m, -1, 2**32)) for m in philox.MULTIPLIERS]
    low, high = np.uint64(philox.WORD), np.uint64(32)
    for n in reversed(range(philox.ROUNDS)):
        k0, k1 = (
            np.uint64((k + n * w) & philox.WORD) for k, w in zip(key, philox.WEYL, strict=True)
        )
        a, b = c3 * back[0] & low, c1 * back[1] & low
        p0, p1 = a * np.uint64(philox.MULTIPLIERS[0]), b * np.uint64(philox.MULTIPLIERS[1])
        c0, c1, c2, c3 = a, p1 >> high ^ c0 ^ k0, b, p0 >> high ^ c2 ^ k1
    return np.stack([c0, c1, c2, c3], axis=1)


@pytest.mark.parametrize(("drawer", "device"), SLOWLY)
def test_normals_of_extreme_words_have_the_bits_of_the_reference(drawer, device):
    """Among them u = 1, whose normals are zeros with a sign. Two pairs of words are a block's."""
    words = np.array([(a, b) for a in EDGES for b in EDGES], np.uint32)
    for block, (at, of, step, direction) in enumerate(counters_of(words.reshape(-1, 4), (5, 7))):
        key = NoiseKey(7 << 32 | 5, int(of) >> 24, int(step), int(direction))
        drawn = torch.empty(4, device=device)
        drawer.draw_(drawn, key, int(of) % philox.TENSORS, start=4 * int(at))
        expected = np.stack(philox.box_muller(*words[2 * block : 2 * block + 2].T), axis=1)
        assert same_bits(drawn, torch.from_numpy(expected.reshape(-1))), block


@pytest.mark.parametrize(("drawer", "device"), ENGINES)
@pytest.mark.parametrize("signs", [False, True])
def test_any_part_is_that_part_of_the_whole_whoever_draws_it(drawer, device, signs):
    """What a shard of a tensor draws, or the rows of an embedding; and what is added to zeros."""
    for start in (2**33 + 5, 2**34 - 2100):
        far = drawer.draw_(torch.empty(2100, device=device), KEY, 5, signs, start)
        assert same_bits(far, NUMPY.draw_(torch.empty(2100), KEY, 5, signs, start))
    whole = NUMPY.draw_(torch.empty(5000), KEY, 2, signs).to(device)
    for start, count in ((0, 5000), (1, 3), (2, 2047), (31, 2051), (127, 1), (2047, 2), (4999, 1)):
        part, inside = torch.zeros(count, device=device), whole[start : start + count]
        move = Move(2, [(1.0, KEY)], start=start, signs=signs)
        assert torch.equal(drawer.add_(torch.empty_like(part), part, move), inside)
        assert torch.equal(drawer.draw_(part, KEY, 2, signs, start), inside)
    rows = torch.tensor([3, 49, 0, 3], device=device)
    drawn = drawer.draw_(torch.empty(4, 37, device=device), KEY, 2, signs, rows=rows)
    assert torch.equal(drawn, whole[: 50 * 37].view(50, 37)[rows])


@pytest.mark.parametrize(("other", "device"), SLOWLY)
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
        given = 5, terms, 0.75, start, scale_on, rounding, rows, pending, signs, limit_on
        return drawer.add_(out, theta_on, Move(*given))

    assert same_bits(added(other, device), added(NUMPY, "cpu"))


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
def test_all_tensors_are_moved_as_one_by_one(other, device, dtypes, signs, rounding, apart):
    """In one launch; of several dtypes, also once one has moved in memory."""
    moved, terms = [], [(0.5, KEYS[1]), (-0.25, KEYS[2])]
    move = Move(0, terms, rounding=rounding, pending=[(0.1, KEYS[3])], signs=signs)
    for drawer, on in ((other, device), (NUMPY, "cpu")):
        given = zip([(3,), (41, 100), (9001,)], dtypes, strict=True)
        tensors = [some(*of, i).to(on) for i, of in enumerate(given)]
        moved.append([torch.empty_like(t) for t in tensors] if apart else tensors)
        table = drawer.table(moved[-1], tensors, None, [False, True, True])
        for decay in (0.25, 0.5):
            table.add_(move, decay)
            moved[-1][1].data = moved[-1][1].clone()
    assert all(map(same_bits, *moved))


@pytest.mark.parametrize(("other", "device"), SLOWLY)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("signs", [False, True])
def test_a_tensor_may_begin_at_any_address(other, device, dtype, signs):
    """In the middle of 16 bytes, at any position of the tensor that it is a shard of."""
    for offset, start in ((0, 0), (1, 0), (0, 1), (3, 5), (8, 4), (8, 16)):
        theta, out = some((9000,), dtype), torch.zeros(9000, dtype=dtype)
        move = Move(3, [(0.5, KEY)], start=start, signs=signs)
        found = [
            drawer.add_(out.to(on)[offset:], theta.to(on)[offset:], move)
            for drawer, on in ((other, device), (NUMPY, "cpu"))
        ]
        assert same_bits(*found)


PHILOX, H = engine("philox"), 6 * [some((40, 100), torch.float32, 1).square().add(0.1)]
Z, SIGNS = [Gaussian(key, PHILOX) for key in KEYS], Rademacher(KEY, PHILOX)
OVER_H, OVER_G = ([Preconditioned(z, h) for z in Z] for h in (H, 6 * [1 / H[0]]))
NARROW, WIDE = (
    [Masked(z, limits) for z in (*Z, SIGNS)]
    for limits in (6 * [torch.tensor(0.5)], 6 * [torch.tensor(1.0)])
)
LOW_RANK = LowRank(KEY, KEY._replace(stream=1), rank=1, engine=PHILOX)
TOGETHER = [Z[:1], Z[:3], [SIGNS], OVER_H[:2], NARROW[:2], NARROW[4:]]
APART = [
    [Gaussian(KEY)],  # torch's generator
    [Z[0], Gaussian(KEY)],
    [Z[0], LOW_RANK],
    [Z[0], SIGNS],
    [Z[0], OVER_H[1]],
    [OVER_G[0], OVER_H[1]],
    [Preconditioned(LOW_RANK, H)],
    [NARROW[0], WIDE[1]],
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("directions", TOGETHER + APART)
def test_fused_and_unfused_passes_agree(directions, dtype):
    """Those of one distribution, one engine and one H are fused; to the bit where c z is exact, as for c = 2⁻ⁿ.

    Else torch may round c z + θ once, not twice, and its root of H may be a unit in the last place off.
    """
    theta = some((40, 100), dtype)
    for c, exact in ((2.0**-10, directions in (TOGETHER[0], TOGETHER[2])), (0.3, False)):
        terms = [(c * 0.7**i, z) for i, z in enumerate(directions)]
        assert (fused(terms, theta) is not None) == (directions in TOGETHER)
        drawn = [(c, Stored({5: z.sample(5, theta)})) for c, z in terms]  # not fused
        a, b = torch.empty_like(theta), torch.empty_like(theta)
        add_(a, theta, 5, terms)
        add_(b, theta, 5, drawn)
        assert same_bits(a, b) or not exact
        unit = len(terms) * torch.finfo(dtype).eps
        torch.testing.assert_close(a, b, rtol=unit, atol=unit)
        assert dtype == torch.float32 or (a != b).double().mean() < 5e-3


def test_what_does_not_fit_is_refused():
    z, w, nothing = torch.empty(8), torch.zeros(4, 2), Move(0, [])
    draw, add = PHILOX.draw_, PHILOX.add_
    for name, call in [
        ("tensor", lambda: draw(z, KEY, 2**24)),
        ("stream", lambda: draw(z, KEY._replace(stream=256), 0)),
        ("direction", lambda: draw(z, KEY._replace(direction=-1), 0)),
        ("positions", lambda: draw(z, KEY, 0, start=2**34 - 7)),
        ("float32", lambda: draw(z.bfloat16(), KEY, 0)),
        ("out: must be", lambda: add(z, z.bfloat16(), nothing)),
        ("out: must be", lambda: add(z.double(), z, nothing)),
        ("rounding: only", lambda: add(z, z, Move(0, [], rounding=BITS))),
        ("shape", lambda: add(z, z[:7], nothing)),
        ("scale", lambda: add(z, z, Move(0, [], scale=z[:7]))),
        ("rows", lambda: add(w[:1], w, Move(0, [], rows=torch.tensor([4])))),
        ("noise", lambda: engine("dice")),
        ("mps", lambda: engine("philox", "mps")),
    ]:
        with pytest.raises(ValueError, match=name):
            call()


def test_without_numba_numpy_draws_and_says_so(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="pip install"):
        drawer = engine.__wrapped__("philox")
    assert isinstance(drawer, NumpyEngine)
    assert drawer.backend == PHILOX.backend
