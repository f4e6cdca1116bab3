"""The estimate of a step against numbers worked out by hand."""

from dataclasses import replace

import pytest

from benchmarks.steps.cases import METHODS
from benchmarks.steps.roofline import Ceilings, Pass, Workload, forward_roofline, passes, roofline
from tests.support import tiny_models
from zo.optim import OPTIMIZERS
from zo.tasks import Encoded
from zo.weights.constraints import RESTORE_POLICIES

# Two layers of width 32: 4 (32·32 + 32) for attention, (32·64 + 64) + (64·32 + 32) behind it, 2 · 64 for two norms.
LAYER = 4 * 1056 + 2112 + 2080 + 128
TABLE, POSITIONS, NORM = 300 * 32, 66 * 32, 64
DECODER = [Encoded([2, 7, 8], [[5], [6, 9]], 0), Encoded([2], [[5], [6, 9]], 1)]


def test_work_of_a_decoder():
    """Two rows of 4 and 2 tokens: the second candidate adds its first token. Each row predicts at two places."""
    work = Workload.of(tiny_models.opt(), "decoder", DECODER)
    assert work.values == TABLE + POSITIONS + 2 * LAYER + NORM
    assert work.read == work.values - POSITIONS  # the token table is the head as well
    matrices = 2 * (4 * 32 * 32 + 2 * 32 * 64)
    pairs = 4 * 5 // 2 + 2 * 3 // 2
    attention = 2 * (2 * 32 * pairs + 2 * 32 * pairs)  # per layer: queries · keys, weights · values
    assert work.operations == 2 * matrices * 6 + attention + 2 * TABLE * 4
    vectors = 4 * 32 + 64 + 32 + 128
    matrices = 4 * (32 + 32) + 2 * (32 + 64)
    assert work.low_rank == (300 + 32) + (66 + 32) + 2 * (matrices + vectors) + NORM


def test_work_of_a_decoder_with_a_head_of_its_own():
    """Grouped attention: 4 heads of 8, keys and values of 2; the token table is looked up, not read."""
    work = Workload.of(tiny_models.llama(tie_word_embeddings=False), "decoder", DECODER)
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    assert work.values == 2 * TABLE + 2 * (layer + 2 * 32) + 32
    assert work.read == work.values - TABLE
    assert work.operations == 2 * 2 * layer * 6 + 2 * 4 * 32 * 13 + 2 * TABLE * 4


def test_answers_of_one_token_need_their_own_rows_of_the_output_embedding():
    rows = [replace(e, candidate_ids=[[5], [6], [9]]) for e in DECODER]
    matrices = 2 * (4 * 32 * 32 + 2 * 32 * 64)
    attention = 2 * 4 * 32 * (3 * 4 // 2 + 1)
    for model, tables in (
        (tiny_models.opt(), TABLE + POSITIONS),
        (tiny_models.opt(tie_word_embeddings=False), 2 * TABLE + POSITIONS),
    ):
        work = Workload.of(model, "decoder", rows)
        assert work.read == work.values - tables
        assert work.operations == 2 * matrices * 4 + attention + 2 * 32 * 3 * 2


def test_work_of_a_masked_model():
    """All tokens see all; at the mask a dense layer, and of the token table the label words' rows."""
    rows = [Encoded([0, 7, 4, 2], [[5], [6]], 0, 2), Encoded([0, 4, 2], [[5], [6]], 0, 1)]
    work = Workload.of(tiny_models.roberta(), "masked", rows)
    body = 2 * (4 * 32 * 32 + 2 * 32 * 64)
    attention = 2 * 4 * 32 * (4 * 4 + 3 * 3)
    assert work.operations == 2 * body * 7 + attention + 2 * (32 * 32 + 32 * 2) * 2
    assert work.values - work.read == TABLE + 66 * 32 + 2 * 32  # positions, and two token types


def counts(method, restore, **settings):
    return passes(OPTIMIZERS[method].config(**settings), restore)


def move(directions, state=0.0):
    return Pass(2.0, state, directions)


def streamed(directions, state=0.0):
    return Pass(2.0, state, directions, of_read=True)


COPY = Pass(2.0)


@pytest.mark.parametrize(
    ("method", "restore", "expected"),
    [
        ("mezo", "subtract", [move(1)] * 4),
        ("mezo", "merged", [move(1)] * 3),
        ("mezo", "snapshot", [COPY, COPY, move(1), move(1), move(1)]),
        ("mezo", "streamed", [streamed(1)] * 2 + [move(1)]),
        ("lozo", "factors", [Pass(2 / 50, 0, 2.0)]),
        ("bszo", "subtract", [move(1)] * 4 + [move(2)]),
        ("bszo", "merged", [move(1), move(2), move(2)]),
        ("bszo", "snapshot", [COPY, COPY, move(1)] * 2 + [move(2)]),
        ("bszo", "streamed", [streamed(1), streamed(1), move(2)]),
        ("bszo_b", "subtract", [move(1)] * 4 + [move(2)] * 3),
        ("bszo_b", "merged", [move(1)] + [move(2)] * 3),
        ("hizoo", "subtract", [move(1, 1)] * 3 + [move(1, 2)]),
        ("hizoo", "merged", [move(1, 1)] * 2 + [move(1, 2)]),
        ("mezo_adam", "subtract", [move(1)] * 3 + [move(1, 4)]),
        ("mezo_adam", "streamed", [streamed(1)] * 2 + [move(1, 4)]),
        ("hizoo", "streamed", [streamed(1, 1)] * 2 + [move(1, 2)]),
    ],
)
def test_passes_of_a_step(method, restore, expected):
    assert sorted(counts(method, restore)) == sorted(expected)


def test_passes_follow_the_settings():
    assert len(counts("bszo", "subtract", k=4)) == 9
    assert len(counts("bszo", "streamed", k=4, two_sided=True)) == 9
    assert len(counts("bszo", "streamed", k=2, m=5, adaptive_sampling=False)) == 6
    assert counts("mezo", "subtract", n=2)[2] == move(2)  # from -ε z₁ to +ε z₂ in one pass
    assert len(counts("mezo", "subtract", two_sided=False)) == 3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("restore", RESTORE_POLICIES)
def test_every_registered_policy_and_method_has_a_rule(method, restore):
    if restore != "factors" or method == "lozo":
        assert counts(method, restore)


def test_an_unknown_policy_or_method_is_an_error():
    with pytest.raises(KeyError, match="wishful"):
        counts("mezo", "wishful")
    with pytest.raises(KeyError, match="adam"):
        counts("adam", "subtract")


WORK = Workload(values=1000, read=900, operations=10_000, low_rank=50)


def least(method, restore, limits, forwards=2, **settings):
    config = OPTIMIZERS[method].config(**settings)

    class Cfg:
        optimizer = config

        class precision:
            pass

    Cfg.precision.restore = restore
    return roofline(Cfg, WORK, limits, forwards, value_bytes=2, state_bytes=4)


def test_what_is_slowest_decides():
    """1,000 values of 2 bytes; 900 of them read by a forward pass of 10,000 operations."""
    memory, matrix, draws = (
        Ceilings(100, 1e9, 1e9),
        Ceilings(1e9, 100, 1e9),
        Ceilings(1e9, 1e9, 100),
    )
    assert forward_roofline(WORK, memory, 2) == pytest.approx(18)
    assert forward_roofline(WORK, matrix, 2) == pytest.approx(100)
    for limits, forward, weights in ((memory, 36, 160), (matrix, 200, 0), (draws, 0, 40)):
        found = least("mezo", "subtract", limits)
        assert found.forward == pytest.approx(forward, abs=1e-3)
        assert found.weights == pytest.approx(weights, abs=1e-3)
    assert least("mezo", "subtract", memory).step == pytest.approx(196)


def test_state_and_rank_are_counted():
    memory, draws = Ceilings(100, 1e9, 1e9), Ceilings(1e9, 1e9, 100)
    assert least("hizoo", "merged", memory).weights == pytest.approx(
        (3 * 2 * 2 + 4 * 4) * 1000 / 100
    )
    assert least("mezo_adam", "merged", memory).weights == pytest.approx((3 * 2 * 2 + 4 * 4) * 10)
    assert least("lozo", "merged", draws).weights == pytest.approx(3 * 2 * 50 / 100, abs=1e-3)


def test_streamed_leaves_out_tables_and_factors_read_the_weights_once():
    memory, matrix = Ceilings(100, 1e9, 1e9), Ceilings(1e9, 100, 1e9)
    streamed = (2 * 900 + 1000) * 2 * 2 / 100
    assert least("mezo", "streamed", memory).weights == pytest.approx(streamed)
    draws = Ceilings(1e9, 1e9, 100)
    assert least("mezo", "streamed", draws).weights == pytest.approx(28, abs=1e-3)
    factors = least("lozo", "factors", memory)
    assert factors.forward == pytest.approx(18)
    assert factors.weights == pytest.approx(2 / 50 * 2 * 1000 / 100)
    assert least("lozo", "factors", matrix).forward == pytest.approx(200)
