"""The estimate of a step against numbers worked out by hand."""

import pytest

from benchmarks.steps.cases import METHODS
from benchmarks.steps.roofline import Ceilings, Pass, Workload, forward_roofline, passes, roofline
from zo.optim import OPTIMIZERS
from zo.weights.constraints import RESTORE_POLICIES

TABLE, POSITIONS, NORM = 300 * 32, 66 * 32, 64


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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("restore", RESTORE_POLICIES)
def test_every_registered_policy_and_method_has_a_rule(method, restore):
    if restore != "factors" or method == "lozo":
        assert counts(method, restore)


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
